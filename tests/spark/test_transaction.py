"""Writes under a transaction identity: as Delta's own writer makes them, without its price."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from capstan.storage.delta import arrow_writer, delta, file_rewrite, idempotent_write
from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import Lake
from capstan.storage.ledger import tables
from tests.bench.counters import own_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([StructField("a", LongType())])
# What no two commits have in common.
VOLATILE = {
    "deletionTimestamp",
    "lastUpdated",
    "modificationTime",
    "path",
    "timestamp",
    "txnId",
    "userMetadata",
}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    create_table(spark, path, SCHEMA)
    return path


def one(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(number, number + 1).selectExpr("id AS a")


def held(path: str) -> list[int]:
    return sorted(deltalake.DeltaTable(path).to_pyarrow_table()["a"].to_pylist())


def actions(path: str, version: int) -> list[dict[str, object]]:
    text = Path(path, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
    return [lasting(json.loads(line)) for line in text.splitlines()]


def lasting(value: object) -> object:
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in VOLATILE}
    return value


def jobs(spark: SparkSession, frame: DataFrame, path: str, txn: Txn | None) -> int:
    with own_jobs(spark) as started:
        delta.append(frame, path, txn=txn)
    return len(started)


def test_of_one_app_only_a_rising_version_is_committed(spark: SparkSession, table: str) -> None:
    assert delta.append(one(spark, 1), table, txn=Txn("a", 4)) is not None
    for stale in (4, 3, 0):
        assert delta.append(one(spark, 2), table, txn=Txn("a", stale)) is None
    assert delta.append(one(spark, 3), table, txn=Txn("b", 0)) is not None
    assert delta.append(one(spark, 4), table, txn=Txn("a", 5)) is not None
    assert (held(table), delta.version_of(table)) == ([1, 3, 4], 3)


@pytest.mark.parametrize("mode", ["Append", "Overwrite"])
def test_a_commit_is_the_one_that_delta_s_own_writer_makes(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    options = {"userMetadata": "noted"} | ({"replaceWhere": "a > 1"} if mode == "Overwrite" else {})
    actual = []
    for ours in (True, False):
        path = str(tmp_path / str(ours))
        create_table(spark, path, SCHEMA)
        one(spark, 2).write.format("delta").mode("append").save(path)
        if ours:
            assert idempotent_write.write_once(one(spark, 3), path, mode, options, Txn("a", 7)) == 2
        else:
            given = {**options, "txnAppId": "a", "txnVersion": "7"}
            one(spark, 3).write.format("delta").mode(mode).options(**given).save(path)
        assert held(path) == ([2, 3] if mode == "Append" else [3])
        actual.append(sorted(actions(path, 2), key=str))
    assert actual[0] == actual[1]
    assert {"txn": {"appId": "a", "version": 7}} in actual[0]


def test_an_identity_costs_no_job(spark: SparkSession, table: str) -> None:
    jobs(spark, one(spark, 0), table, None)
    plain = jobs(spark, one(spark, 1), table, None)
    assert plain > 0
    assert jobs(spark, one(spark, 2), table, Txn("a", 0)) == plain
    assert jobs(spark, one(spark, 3), table, Txn("a", 1)) == plain


def test_a_commit_adds_two_files_to_the_log(spark: SparkSession, table: str) -> None:
    log = Path(table, "_delta_log")
    before = set(log.iterdir())
    delta.append(one(spark, 1), table, txn=Txn("a", 0))
    fresh = {item.name for item in set(log.iterdir()) - before}
    assert fresh == {f"{1:020}.json", f"{1:020}.crc"}


def test_foreign_checksum_files_are_ignored(spark: SparkSession, table: str) -> None:
    checksum = Path(table, "_delta_log", "._last_checkpoint.crc")
    checksum.write_bytes(b"crc\0\0\0\2\0nonsense")
    delta.append(one(spark, 1), table, txn=Txn("a", 0))
    assert not checksum.exists()


@pytest.mark.parametrize(("other", "stands"), [("a", [7]), ("b", [1, 7])])
def test_of_two_at_once_under_one_app_the_second_is_skipped(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch, other: str, stands: list[int]
) -> None:
    look = idempotent_write.is_committed

    def overtaken(path: str, txn: Txn) -> bool:
        actual = look(path, txn)
        # Between our look and our commit.
        properties = CommitProperties(app_transactions=[Transaction(other, 3)])
        rows = pa.table({"a": pa.array([7], pa.int64())})
        write_deltalake(path, rows, mode="append", commit_properties=properties)
        return actual

    monkeypatch.setattr(idempotent_write, "is_committed", overtaken)
    commit = delta.append(one(spark, 1), table, txn=Txn("a", 3))
    assert (commit is None) == (other == "a")
    assert held(table) == stands


def test_a_new_column_is_taken_where_it_may_be(spark: SparkSession, table: str) -> None:
    wider = one(spark, 1).selectExpr("a", "'x' AS b")
    with pytest.raises(PySparkException, match="schema"):
        delta.append(wider, table, txn=Txn("a", 0))
    assert delta.version_of(table) == 0
    assert delta.append(wider, table, txn=Txn("a", 0), merge_schema=True) is not None
    assert deltalake.DeltaTable(table).to_pyarrow_table()["b"].to_pylist() == ["x"]


def exchanged(spark: SparkSession, path: str) -> None:
    (name,) = deltalake.DeltaTable(path).get_add_actions(flatten=True)["path"].to_pylist()
    assert file_rewrite.exchange(spark, path, {name: 1}, None, leaves_out=1) is not None


COMMITS: dict[str, Callable[[SparkSession, str], object]] = {
    "append": lambda spark, path: delta.append(one(spark, 1), path, txn=Txn("a", 0)),
    "plain": lambda spark, path: delta.append(one(spark, 1), path),
    "replace": lambda spark, path: delta.replace(one(spark, 0), path, "a = 0", txn=Txn("a", 0)),
    "merge": lambda spark, path: delta.merge(one(spark, 0), path, ("a",), txn=Txn("a", 0)),
    "delete": lambda spark, path: delta.delete_rows(spark, path, "a = 0"),
    "properties": lambda spark, path: arrow_writer.set_properties(path, {"x": "y"}),
    "exchange": exchanged,
}


def test_no_kind_of_commit_lands_while_another_process_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = {kind: str(tmp_path / kind) for kind in COMMITS}
    for path in paths.values():
        create_table(spark, path, SCHEMA)
        delta.append(one(spark, 0), path)
    with ThreadPoolExecutor(len(COMMITS)) as pool:
        with ExitStack() as held:
            for path in paths.values():
                held.enter_context(committing(path))
            begun = [
                pool.submit(commit, spark.newSession(), paths[kind])
                for kind, commit in COMMITS.items()
            ]
            # Long enough for each of them to land, if nothing kept it from it.
            time.sleep(8)
            assert {kind: delta.version_of(path) for kind, path in paths.items()} == dict.fromkeys(
                COMMITS, 1
            )
        for item in begun:
            item.result(120)
    assert {kind: delta.version_of(path) for kind, path in paths.items()} == dict.fromkeys(
        COMMITS, 2
    )


def test_rows_of_many_runs_need_one_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, many = Lake.at(tmp_path), [f"run-{number}" for number in range(5)]
    requested: list[tuple[Sequence[str] | None, set[str]]] = []
    tables.append_rows(lake, "runs", [{"run": run, "step": "first"} for run in many])
    began, read_rows = tables.now(), tables.read_rows

    def counted(
        lake: Lake, ledger: str, columns: Sequence[str] | None = None, /, **equal: object
    ) -> list[dict[str, object]]:
        if ledger == "runs":
            requested.append((columns, set(equal["run"])))  # type: ignore[call-overload]
        return read_rows(lake, ledger, columns, **equal)

    monkeypatch.setattr(tables, "read_rows", counted)
    monkeypatch.setattr(tables, "now", lambda: began - timedelta(hours=1))

    tables.append_rows(lake, "runs", [{"run": run, "step": "second"} for run in many])

    assert requested == [(("at",), set(many))]
    for run in many:
        assert [row["step"] for row in read_rows(lake, "runs", run=run)] == ["first", "second"]
    # Nothing else is read than what is theirs.
    tables.append_rows(lake, "runs", [{"run": many[0], "step": "third"}])
    assert requested[1:] == [(("at",), {many[0]})]
