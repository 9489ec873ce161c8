"""What the first look of a new process reads: what has changed since the last one, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pytest

from capstan.core.config import ProjectConfig, Replay
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting import coverage_view, stream_view
from capstan.reporting.coverage_view import Coverage, view_coverage
from capstan.reporting.run_view import list_runs
from capstan.reporting.stream_view import StreamHistory, view_stream
from capstan.storage.delta import incremental_read, opened_table, table_cache
from capstan.storage.delta.incremental_read import Parts
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake
from tests.support.bulk_tapes import HOUR, counting, lay_index
from tests.support.jvmless_lake import EVENT, Books, go_on
from tests.support.recorded_tapes import Recorded
from tests.support.sample_streams import declared, little_stream

AT = datetime(2024, 6, 1, 12, tzinfo=UTC)
COMMITS = 20


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.at(tmp_path / "lake")
    Recorded("a", ["EWR", "JFK"], COMMITS, late={"late": 3}).lay(lake)
    recorded = Recorded("b", ["EWR"], COMMITS)
    recorded.lay(lake)
    recorded.verified(lake, 2, AT)
    kept = Books(lake, "a", lake.table("t"))
    kept.published("t-00000001-1", [0, 1], Region(Box.everything(EVENT)))
    kept.failed("t-00000002-1", [0, 1], Region(Box.everything(EVENT)))
    return lake


@pytest.fixture
def page(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], tuple[object, Counter[str]]]]:
    """The overview as a process that has just started reads it, and what it opens."""
    streams = declared(little_stream(tmp_path / "source"))
    streams = replace(streams, replays={"r": Replay(name="r", stream="a", target="t")})
    opened: list[str] = []

    def open_counted(path: str, version: int | None = None) -> OpenedTable:
        opened.append(path.rpartition("/")[2])
        return OpenedTable(path, version)

    monkeypatch.setattr(opened_table, "OpenedTable", open_counted)

    def look() -> tuple[object, Counter[str]]:
        for module, name in (
            (stream_view, "_CACHE"), (stream_view, "_VIOLATIONS"),
            (coverage_view, "_CACHE"), (incremental_read, "_values"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, VersionedCache())
        table_cache.disable()
        table_cache.enable(tmp_path / "read")
        opened.clear()
        with counting() as files:
            shown = shown_of(lake, streams)
        return shown, Counter(opened) + Counter({f"{name} files": n for name, n in files.items()})

    yield look
    table_cache.disable()


def shown_of(lake: Lake, streams: ProjectConfig) -> object:
    views = [view_stream(lake, streams, name) for name in ("a", "b")]
    assert all(isinstance(view, StreamHistory) for view in views)
    coverage = view_coverage(lake, streams, "r")
    assert isinstance(coverage, Coverage)
    return views, list_runs(lake), replace(coverage, declared=None)  # type: ignore[arg-type]


def test_a_new_process_opens_what_has_changed(
    lake: Lake, page: Callable[[], tuple[object, Counter[str]]]
) -> None:
    first, opened = page()
    assert opened["events files"] >= 2 * COMMITS
    again, opened = page()
    assert again == first
    # A replay is planned at the newest cut of its stream and the newest version of its target; and
    # the first event of each worker is read.
    assert opened == {"events": 1, "t": 1, "events files": 1}
    go_on(lake, "b", [], (COMMITS * HOUR,))
    third, opened = page()
    assert third != first
    assert (opened["events"], opened["events files"]) == (2, 2)


@contextmanager
def page_process(folder: Path | None) -> Iterator[None]:
    table_cache.enable(folder)
    try:
        yield
    finally:
        table_cache.disable()


def test_long_indexes_are_kept_again_when_enough_of_them_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_index(lake, "long", 32)
    path = lake.stream("long").events
    monkeypatch.setattr(incremental_read, "_SMALL", -1)
    added: list[int] = []

    def add(earlier: Parts, opened: OpenedTable, files: Sequence[str]) -> Parts:
        added.append(len(files))
        return {}

    for _ in range(5):
        monkeypatch.setattr(incremental_read, "_values", VersionedCache())
        with page_process(tmp_path / "read"):
            incremental_read.read_incrementally("n", path, add)
        go_on(lake, "long", [(99 * HOUR,)], (99 * HOUR,))
    assert added == [32, 1, 2, 3, 1]


def test_rows_of_a_table_that_was_compacted_are_not_read_again(
    lake: Lake, page: Callable[[], tuple[object, Counter[str]]]
) -> None:
    path = lake.stream("b").events
    rows = deltalake.DeltaTable(path).to_pyarrow_table()
    before, _ = page()
    deltalake.DeltaTable(path).optimize.compact()
    assert len(deltalake.DeltaTable(path).file_uris()) == 1
    after, opened = page()
    # The first events of the workers are read alone.
    assert opened["events files"] == 1
    assert rows.num_rows == deltalake.DeltaTable(path).to_pyarrow_table().num_rows
    assert [view.workers for view in after[0]] == [view.workers for view in before[0]]  # type: ignore[index]
