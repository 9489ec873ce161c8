"""Values that stay in memory: read once for each state, whoever asks at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.storage.delta import arrow_writer, delta, table_cache
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
        delta, "OpenedTable", lambda path: openings.append(path) or OpenedTable(path)
    )
    assert arrow_writer.append(path, rows)
    after = delta.open_table(path)
    assert openings == []
    assert (after.version(), len(after.file_uris())) == (1, 1)
    # Whoever holds the table sees it as it was.
    assert (before.version(), before.file_uris()) == (0, [])
    # A commit of another process is seen.
    deltalake.write_deltalake(path, rows, mode="append")
    assert delta.open_table(path).version() == 2
    assert openings == [path]


def test_a_table_that_others_have_changed_meanwhile_is_not_kept(
    tmp_path: Path, enabled: None
) -> None:
    path, rows = str(tmp_path / "table"), pa.table({"n": pa.array([1], pa.int64())})
    deltalake.write_deltalake(path, rows)
    old = deltalake.DeltaTable(path)
    deltalake.write_deltalake(path, rows, mode="append")
    delta.keep_table(path, old)
    assert delta.open_table(path).version() == 1
