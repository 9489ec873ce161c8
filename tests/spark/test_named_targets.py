"""Targets by their names in a catalog, tables that were moved, and tables created as declared."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from capstan.core.config import Creation, Target
from capstan.errors import InvalidRequestError
from capstan.replay.preview import preview
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import coverage, moved_tables, runs
from tests.support.replay_harness import Play
from tests.support.sample_streams import rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

EARLY = {"since": "2024-05-01T00:00", "until": "2024-05-01T04:00"}
LATER = {"since": "2024-05-01T02:00", "until": "2024-05-01T06:00"}
FOLLOW = {"follow": "f", "workers": ("a", "b")}
ORDERS = Target(
    name="orders",
    table="shop.orders",
    create=Creation(
        cluster_by=("_time.event", "place"),
        properties={"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
    ),
)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("named"), rows(range(24)))


@pytest.fixture
def shop(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql("CREATE DATABASE shop")
    yield spark
    spark.sql("DROP DATABASE shop CASCADE")


def declaring(play: Play, *targets: Target) -> Play:
    """The same lake with declared targets."""
    named = {target.name: target for target in targets}
    return replace(play, declarations=replace(play.declarations, targets=named))


def ids(play: Play, place: str) -> list[int]:
    """The ids in a table, by its path or its name in the catalog."""
    frame = delta.load(play.spark, place) if "/" in place else play.spark.table(place)
    return sorted(row.id for row in frame.select("id").collect())


def test_a_table_is_created_registered_renamed_and_moved(play: Play, shop: SparkSession) -> None:
    play = declaring(play, ORDERS)
    first = play.run("orders", **EARLY)
    [detail] = shop.sql("DESCRIBE DETAIL shop.orders").collect()
    path = play.lake.table("orders")
    assert detail.location.removeprefix("file:") == path
    assert (detail.clusteringColumns, detail.partitionColumns) == (["_time.event", "place"], [])
    assert ORDERS.create is not None
    assert ORDERS.create.properties.items() <= detail.properties.items()
    assert ids(play, "shop.orders") == list(range(8))
    assert play("orders", **EARLY).unchanged

    # Renamed, as an external table, and then moved by its owner.
    shop.sql("ALTER TABLE shop.orders RENAME TO shop.sales")
    renamed = declaring(play, replace(ORDERS, name="sales", table="shop.sales"))
    assert renamed("sales", **EARLY).unchanged
    second = renamed.run("sales", **LATER)
    shop.sql("DROP TABLE shop.sales")
    moved = f"{path}_moved"
    shutil.move(path, moved)
    shop.sql(f"CREATE TABLE shop.sales USING delta LOCATION '{moved}'")
    assert renamed("sales", **LATER).unchanged
    assert [entry.run for entry in coverage.current(play.lake, moved)] == [first, second]
    assert runs.read_history(play.lake, first).last.target == moved
    renamed.rollback(second)
    assert ids(play, "shop.sales") == list(range(8))
    assert not is_table(path)


def test_a_renamed_managed_table_keeps_its_followed_runs(play: Play, shop: SparkSession) -> None:
    shop.sql(
        "CREATE TABLE shop.events (_worker INT, _time STRUCT<event: TIMESTAMP>, id BIGINT, "
        "place STRING, at TIMESTAMP, amount INT, note STRING) USING delta PARTITIONED BY (place)"
    )
    target = Target(name="events", table="shop.events")
    named = declaring(play, target)
    first = named("events", **FOLLOW).certificate
    assert first is not None
    assert first.target_path != play.lake.table("events")
    assert not is_table(play.lake.table("events"))
    whole = ids(play, "shop.events")
    assert len(whole) > 8

    shop.sql("ALTER TABLE shop.events RENAME TO shop.visits")
    renamed = declaring(play, replace(target, table="shop.visits"))
    again = renamed("events", **FOLLOW)
    assert again.unchanged
    assert again.certificate is not None
    assert again.certificate.run == first.run
    assert again.certificate.target_path != first.target_path
    assert preview(play.lake, renamed.declarations, play.request("events", **EARLY)).covered
    renamed.rollback(str(first.run))
    assert ids(play, "shop.visits") == []

    # Another table under the first name starts anew.
    shop.sql("CREATE TABLE shop.events USING delta AS SELECT * FROM shop.visits")
    third = named("events", **FOLLOW).certificate
    assert third is not None
    assert (third.generation, ids(play, "shop.events")) == (1, whole)
    assert third.run != first.run
    assert ids(play, "shop.visits") == []


def test_a_table_is_named_without_a_declaration(play: Play, shop: SparkSession) -> None:
    play = declaring(play)
    first = play.run("shop.trips", **EARLY)
    assert ids(play, "shop.trips") == list(range(8))
    assert is_table(f"{play.lake.root}/tables/shop.trips")
    shop.sql("ALTER TABLE shop.trips RENAME TO shop.tours")
    # Declared later, and under its new name, it keeps its runs.
    later = declaring(play, Target(name="tours", table="shop.tours"))
    assert later("tours", **EARLY).unchanged
    second = later.run("tours", **LATER)
    assert play("spark_catalog.shop.Tours", **LATER).unchanged
    play.rollback(second)
    assert ids(play, "shop.tours") == list(range(8))
    certificate = runs.read_history(play.lake, first).certificate
    assert certificate is not None
    assert certificate.target == "shop.trips"
    with pytest.raises(InvalidRequestError, match="CAP-CATALOG: table nowhere.trips"):
        play("nowhere.trips", **EARLY)
    assert not is_table(f"{play.lake.root}/tables/nowhere.trips")


def test_catalog_tables_that_are_not_delta_are_refused(
    play: Play, shop: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shop.sql(f"CREATE TABLE shop.files (id BIGINT) USING parquet LOCATION '{tmp_path}/files'")
    shop.sql("CREATE VIEW shop.few AS SELECT * FROM shop.files")
    for table, printed in {
        "shop.files": "is in the format parquet",
        "shop.few": "cannot be looked up",
        "nowhere.orders": "there is no schema nowhere",
    }.items():
        target = Target(name="refused", table=table)
        with pytest.raises(InvalidRequestError, match=f"CAP-CATALOG: table {table} .*{printed}"):
            declaring(play, target)("refused", **EARLY)
        assert not is_table(play.lake.table("refused"))

    path = f"{tmp_path}/of the shop/gone"
    gone = declaring(play, Target(name="gone", table="shop.`Gone`", path=path))
    first = gone.run("gone", **EARLY)
    assert gone("gone", **EARLY).unchanged
    assert [entry.run for entry in coverage.current(play.lake, path)] == [first]
    shop.sql("DROP TABLE shop.gone")
    monkeypatch.setattr(moved_tables, "is_lasting", lambda _session, _name: True)
    for call in (lambda: gone("gone", **LATER), lambda: gone.rollback(first)):
        with pytest.raises(InvalidRequestError, match="CAP-CATALOG: the catalog no longer has"):
            call()
    monkeypatch.undo()
    # Spark's catalog in memory forgets its names.
    gone.run("gone", **LATER)
    assert ids(play, "shop.gone") == list(range(12))


def test_a_layout_that_the_rows_cannot_have_is_refused(play: Play) -> None:
    layouts = {
        "nosuch": Creation(partition_by=("nosuch",)),
        "nested": Creation(partition_by=("_time",)),
        "placed": Creation(partition_by=("place", "_worker")),
    }
    targets = [Target(name=name, create=create) for name, create in layouts.items()]
    play = declaring(play, *targets)
    for name, printed in {
        "nosuch": "is to be partitioned or clustered by column nosuch, which its rows do not have",
        "nested": "cannot be partitioned by column _time, which is struct<event:timestamp>",
    }.items():
        with pytest.raises(
            InvalidRequestError, match=f"CAP-TARGET-COLUMNS: target {name} {printed}"
        ):
            play(name, **EARLY)
        assert not is_table(play.lake.table(name))
    play("placed", **EARLY)
    placed = delta.open_table(play.lake.table("placed"))
    assert placed.metadata().partition_columns == ["place", "_worker"]


def test_the_runs_of_a_moved_lake_are_rolled_back_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = Play.of(spark, tmp_path, rows(range(24)))
    first, second = old.run("t", **EARLY), old.run("t", **LATER)
    shutil.copytree(old.lake.root, tmp_path / "new")
    new = replace(old, lake=Lake.at(tmp_path / "new"))
    new.rollback(second)
    assert (ids(new, new.lake.table("t")), ids(old, old.lake.table("t"))) == (
        list(range(8)), list(range(12)),
    )  # fmt: skip
    assert new("t", **EARLY).unchanged
    new.rollback(first)
    assert ids(new, new.lake.table("t")) == []
    assert ids(old, old.lake.table("t")) == list(range(12))


@pytest.mark.nightly
def test_a_hive_metastore_keeps_names_between_processes(tmp_path: Path) -> None:
    for step in ("first", "second"):
        command = [sys.executable, "-m", "tests.support.metastore_job", str(tmp_path), step]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout.rstrip().endswith("whole"), done.stderr[-4000:]
