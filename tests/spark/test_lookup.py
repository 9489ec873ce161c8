"""Lookup tables: which version a run, its retry and its audit read, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.capture.run import capture, close
from capstan.core.config import ByKey, EventTime, ProjectConfig, Source, Stream
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay, rollback
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, delete_file, delete_folder, is_table
from capstan.storage.ledger.certificate import Certificate
from capstan.telemetry.instrumentation import subscribe
from tests.support.contexts import DeclaredContext
from tests.support.lookup_pipelines import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Row = tuple[object, ...]
FIRST: list[Row] = [("x", "Ada", 1), ("y", "Bo", 2), (None, "Nobody", 3)]
SECOND: list[Row] = [("x", "Eve", 4), ("z", "Di", 5)]
ORDERS = "(1, 'x'), (2, 'y'), (3, 'z'), (4, NULL), (5, 'x')"
BY_FIRST = {(1, "Ada", 1), (2, "Bo", 2), (3, None, None), (4, None, None), (5, "Ada", 1)}
BY_SECOND = {(1, "Eve", 4), (2, None, None), (3, "Di", 5), (4, None, None), (5, "Eve", 4)}


@dataclass
class Shop:
    """A captured stream of five orders, and a table of customers."""

    spark: SparkSession
    lake: Lake
    declarations: ProjectConfig

    def customers(self, rows: list[Row], key: str = "STRING") -> None:
        frame = self.spark.createDataFrame(rows, f"id {key}, name STRING, region INT")
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(self.lake.table("customers"))

    def replay(self, into: str = "named", **asked: Any) -> ReplayResult:
        request = Request("orders", into, **{"pipeline": "named_orders", **asked})
        return replay(self.spark, self.lake, self.declarations, request)

    def published(self, into: str = "named", **asked: Any) -> Certificate:
        certificate = self.replay(into, **asked).certificate
        assert certificate is not None
        assert certificate.published
        return certificate

    def audit(self, certificate: Certificate) -> bool:
        history = require_auditable(self.lake, str(certificate.run), None)
        return audit_run(self.spark, self.lake, self.declarations, history).audit.passed

    def rows(self, into: str = "named") -> set[Row]:
        frame = delta.load(self.spark, self.lake.table(into))
        actual = frame.select("id", "customer_name", "customer_region").collect()
        assert len(actual) == 5
        return {tuple(row) for row in actual}


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql("CREATE DATABASE shop")
    yield spark
    spark.sql("DROP DATABASE shop CASCADE")


def version(certificate: Certificate) -> int:
    assert certificate.pipeline is not None
    [lookup] = certificate.pipeline["lookups"]
    return int(lookup["version"])


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("lookup")
    source, lake = str(folder / "source"), Lake.at(folder / "lake")
    orders = spark.sql(
        "SELECT bigint(id) AS id, customer, timestamp_seconds(id * 60) AS at "
        f"FROM VALUES {ORDERS} AS t(id, customer)"
    )
    orders.write.format("delta").save(source)
    stream = Stream(
        name="orders",
        source=Source(format="delta", path=source),
        workers=ByKey(columns=("id",), count=2),
        time=EventTime(column="at", every=timedelta(microseconds=1), lateness=timedelta(0)),
    )
    capture(spark, lake, stream)
    close(spark, lake, "orders")
    declared = ProjectConfig(Path("streams.yaml"), {"orders": stream}, {}, {}, {}, REFERENCES)
    return Shop(spark, lake, declared)


def test_a_run_its_retry_and_its_audit_read_the_pinned_version(shop: Shop) -> None:
    shop.customers(FIRST)

    def kill(point: str, _facts: object) -> None:
        if point == "replay.intent":
            raise KeyboardInterrupt

    with subscribe(kill), pytest.raises(KeyboardInterrupt):
        shop.replay()
    shop.customers(SECOND)
    first = shop.published()
    assert (shop.rows(), version(first), first.attempt) == (BY_FIRST, 0, 2)
    assert shop.audit(first)
    for file in delta.added_files(shop.lake.table("customers"), 0):
        delete_file(file)
    with pytest.raises(InvalidRequestError, match="^CAP-LOOKUP: .*version 0 of .*lacks part-"):
        shop.audit(first)


@pytest.mark.nightly
def test_a_replay_is_unchanged_until_its_lookup_table_changes(shop: Shop) -> None:
    shop.customers(FIRST)
    first = shop.published("moving")
    shop.customers(SECOND)
    second = shop.published("moving")
    assert (shop.rows("moving"), second.run != first.run) == (BY_SECOND, True)
    assert shop.replay("moving").unchanged
    assert shop.replay("moving", lookups={"customers": version(second)}).unchanged
    assert version(shop.published("old", lookups={"customers": version(first)})) == version(first)
    assert shop.rows("old") == BY_FIRST
    rollback(shop.spark, shop.lake, shop.declarations, str(second.run))
    assert shop.rows("moving") == BY_FIRST
    assert shop.audit(first)
    # Rows are taken back without the table.
    delete_folder(shop.lake.table("customers"))
    rollback(shop.spark, shop.lake, shop.declarations, str(first.run))
    with pytest.raises(InvalidRequestError, match="^CAP-LOOKUP: .*there is no Delta table"):
        shop.replay("moving")


@pytest.mark.parametrize(
    ("rows", "key", "code", "said"),
    [
        ([*FIRST, ("x", "Twin", 9)], "STRING", "CAP-LOOKUP", "a value of id has several rows"),
        ([(1, "Ada", 1)], "INT", "CAP-PIPELINE", "by customer, which is string .*id .*is int"),
    ],
)
@pytest.mark.nightly
def test_tables_that_do_not_fit_are_refused(
    shop: Shop, rows: list[Row], key: str, code: str, said: str
) -> None:
    shop.customers(rows, key)
    with pytest.raises(InvalidRequestError, match=f"^{code}: .*{said}"):
        shop.replay("refused")
    assert not is_table(shop.lake.table("refused"))


@pytest.mark.nightly
def test_followed_pipelines_pin_lookup_versions_per_run(shop: Shop) -> None:
    shop.customers(FIRST)
    titles = shop.spark.sql(
        "SELECT int(code) AS code, int(worker) AS worker, title FROM "
        "VALUES (1, 0, 'north'), (1, 1, 'north'), (2, 0, 'south'), (2, 1, 'south') "
        "AS t(code, worker, title)"
    )
    titles.write.format("delta").save(shop.lake.table("regions"))
    done = shop.published("sums", pipeline="by_customer", follow="nightly")
    frame = delta.load(shop.spark, shop.lake.table("sums"))
    actual = {tuple(row) for row in frame.select("customer_name", "title", "ids").collect()}
    assert actual == {("Ada", "north", 6), ("Bo", "south", 2), (None, None, 7)}
    assert done.pipeline is not None
    assert [item["name"] for item in done.pipeline["lookups"]] == ["customers", "regions"]
    assert shop.replay("sums", pipeline="by_customer", follow="nightly").unchanged
    assert shop.audit(done)


def test_a_table_is_named_as_in_a_catalog(shop: Shop, catalog: SparkSession) -> None:
    requested = {"pipeline": "orders_by_name"}
    with pytest.raises(InvalidRequestError, match="CAP-CATALOG: the catalog has no table Shop.C"):
        shop.replay("by_name", **requested)
    columns = "id STRING, name STRING, region INT"
    catalog.sql(f"CREATE TABLE shop.customers ({columns}) USING delta")
    for rows in (FIRST, SECOND):
        catalog.createDataFrame(rows, columns).write.mode("overwrite").insertInto("shop.customers")
    request = Request("orders", "by_name", **requested)
    planned = DeclaredContext(shop.lake, shop.declarations, catalog).plan(request).to_json()
    assert planned["pipeline"]["lookups"][0]["table"] == "Shop.Customers"
    first = shop.published("by_name", **requested, lookups={"customers": 1})
    assert (version(first), shop.rows("by_name")) == (1, BY_FIRST)
    second = shop.published("by_name", **requested)
    assert (version(second), shop.rows("by_name")) == (2, BY_SECOND)
    # While another table has the name, that is not taken for the pinned one.
    catalog.sql("ALTER TABLE shop.customers RENAME TO shop.former")
    catalog.sql("CREATE TABLE shop.customers USING delta AS SELECT * FROM shop.former")
    third = shop.published("other", **requested)
    assert (version(third), shop.rows("other")) == (0, BY_SECOND)
    with pytest.raises(InvalidRequestError, match="CAP-LOOKUP"):
        shop.audit(second)
    catalog.sql("DROP TABLE shop.customers")
    catalog.sql("ALTER TABLE shop.former RENAME TO shop.customers")
    assert shop.audit(second)
    catalog.sql("DROP TABLE shop.customers")
    rollback(catalog, shop.lake, shop.declarations, str(second.run))
    assert shop.rows("by_name") == BY_FIRST
