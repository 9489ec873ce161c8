"""Values that stay in memory: read once for each state, whoever asks at the same time."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.storage.delta import arrow_writer, delta, opened_table, table_cache
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache

THREADS = 8


def test_of_several_who_want_the_same_one_reads():
    kept: VersionedCache[list[int]] = VersionedCache()
    begun, may_end = threading.Event(), threading.Event()
    reads = []

    def read() -> list[int]:
        reads.append(threading.get_ident())
        begun.set()
        assert may_end.wait(10)
        return [1]

    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(kept.get, "a", 1, read)
        assert begun.wait(10)
        others = [pool.submit(kept.get, "a", 1, read) for _ in range(THREADS - 2)]
        # Another key is not held up by it.
        assert pool.submit(kept.get, "b", 1, lambda: [2]).result(10) == [2]
        may_end.set()
        assert all(other.result(10) is first.result(10) for other in others)
    assert len(reads) == 1


def test_whoever_waits_for_one_that_fails_reads_for_itself():
    kept: VersionedCache[str] = VersionedCache()
    begun, may_fail = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        assert may_fail.wait(10)
        raise OSError

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept.get, "a", 1, fail)
        assert begun.wait(10)
        second = pool.submit(kept.get, "a", 1, lambda: "read")
        may_fail.set()
        assert second.result(10) == "read"
        with pytest.raises(OSError):
            first.result(10)


def test_changed_tables_are_reread_and_recent_ones_kept():
    kept: VersionedCache[int] = VersionedCache(capacity=2)
    reads = []

    def value(key: str, state: int) -> int:
        def read() -> int:
            reads.append((key, state))
            return state

        return kept.get(key, state, read)

    assert [value("a", 1), value("a", 1), value("a", 2), value("a", 2)] == [1, 1, 2, 2]
    assert [value("b", 1), value("a", 2), value("c", 1), value("a", 2)] == [1, 2, 1, 2]
    assert value("b", 1) == 1
    assert reads == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("b", 1)]


@pytest.fixture
def enabled() -> Iterator[None]:
    table_cache.enable()
    yield
    table_cache.disable()


def test_a_table_is_not_opened_again_after_an_append(
    tmp_path: Path, enabled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = str(tmp_path / "table"), pa.table({"n": pa.array([1], pa.int64())})
    arrow_writer.create_table(path, arrow_writer.struct(n="long"))
    before = delta.open_table(path)
    openings: list[str] = []
    monkeypatch.setattr(
        opened_table, "OpenedTable", lambda path: openings.append(path) or OpenedTable(path)
    )
    assert arrow_writer.append(path, rows)
    after = delta.open_table(path)
    assert (after.version(), len(after.file_uris())) == (1, 1)
    # Whoever holds the table sees it as it was, for which it is opened a second time.
    assert (before.version(), before.file_uris()) == (0, [])
    assert openings == [path]
    del before, after
    assert arrow_writer.append(path, rows)
    # A commit of another process is seen, and read by itself.
    deltalake.write_deltalake(path, rows, mode="append")
    held = delta.open_table(path)
    assert (held.version(), len(held.file_uris())) == (3, 3)
    assert openings == [path]
    deltalake.write_deltalake(path, rows, mode="append")
    assert (delta.open_table(path).version(), held.version()) == (4, 3)
    assert openings == [path, path]


def test_a_table_that_was_brought_up_to_date_is_as_one_that_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"n": [1, 2], "p": ["a", "b"]}), partition_by=["p"])
    delta.open_table(path)
    openings: list[str] = []
    monkeypatch.setattr(opened_table, "OpenedTable", lambda path: openings.append(path))
    more = pa.table({"n": [3], "p": ["a"], "x": [0.5]})
    for change in (
        lambda table: deltalake.write_deltalake(table, more, mode="append", schema_mode="merge"),
        lambda table: table.delete("n = 1"),
        lambda table: table.alter.set_table_properties({"delta.checkpointInterval": "3"}),
        lambda table: table.optimize.compact(),
        lambda table: table.create_checkpoint(),
        lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda table: table.alter.add_constraint({"positive": "n > 0"}),
        lambda table: deltalake.write_deltalake(table, more, mode="overwrite"),
    ):
        change(deltalake.DeltaTable(path))
        actual, expected = delta.open_table(path), deltalake.DeltaTable(path)
        assert actual.version() == expected.version()
        assert sorted(actual.file_uris()) == sorted(expected.file_uris())
        assert actual.schema() == expected.schema()
        assert actual.metadata().configuration == expected.metadata().configuration
        assert actual.protocol() == expected.protocol()
        stated = [pa.table(each.get_add_actions(flatten=True)) for each in (actual, expected)]
        rows = [sorted(each.to_pylist(), key=str) for each in stated]
        assert rows[0] == rows[1]
        del actual
    assert openings == []


def test_another_table_in_the_place_of_one_is_opened(tmp_path: Path) -> None:
    path, rows = str(tmp_path / "table"), pa.table({"n": pa.array([1], pa.int64())})
    deltalake.write_deltalake(path, rows)
    first = delta.identity_of(path)
    shutil.rmtree(path)
    for _ in range(3):
        deltalake.write_deltalake(path, rows, mode="append")
    assert delta.identity_of(path) != first
    assert delta.open_table(path).count() == 3


def test_transactions_of_others_are_read_from_their_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = str(tmp_path / "table"), pa.table({"n": pa.array([1], pa.int64())})
    arrow_writer.create_table(path, arrow_writer.struct(n="long"))
    looks: list[str] = []
    look = deltalake.DeltaTable.transaction_version

    def counted(table: deltalake.DeltaTable, app: str) -> int | None:
        looks.append(app)
        return look(table, app)

    monkeypatch.setattr(deltalake.DeltaTable, "transaction_version", counted)

    def commit(app: str, version: int) -> None:
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(app, version)]
        )
        deltalake.write_deltalake(path, rows, mode="append", commit_properties=properties)

    assert arrow_writer.append(path, rows, txn=Txn("a", 1), unless=Txn("b", 0))
    assert looks == ["a", "b"]
    assert not arrow_writer.append(path, rows, txn=Txn("a", 1))
    commit("a", 4)
    assert not arrow_writer.append(path, rows, txn=Txn("a", 3))
    commit("c", 1)
    assert arrow_writer.append(path, rows, txn=Txn("a", 5), unless=Txn("b", 0))
    commit("b", 0)
    assert not arrow_writer.append(path, rows, txn=Txn("a", 6), unless=Txn("b", 0))
    assert looks == ["a", "b"]
    commit("b", 7)
    assert arrow_writer.append(path, rows, txn=Txn("a", 6))
    assert delta.open_table(path).transaction_version("b") == 7
    for version in range(7, 16):
        commit("a", version)
    assert delta.open_table(path).transaction_version("a") == 15
    assert looks == ["a", "b", "a"]


def test_a_table_that_others_have_changed_meanwhile_is_not_kept(
    tmp_path: Path, enabled: None
) -> None:
    path, rows = str(tmp_path / "table"), pa.table({"n": pa.array([1], pa.int64())})
    deltalake.write_deltalake(path, rows)
    old = deltalake.DeltaTable(path)
    deltalake.write_deltalake(path, rows, mode="append")
    opened_table.keep_table(path, old)
    assert delta.open_table(path).version() == 1
