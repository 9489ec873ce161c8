"""The tables of a tape that each micro-batch adds a file to stay short, and tell what they told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pytest

from capstan.capture.synthetic.stall_check import commit_times
from capstan.errors import RangeLockedError, SystemFailureError
from capstan.storage.compaction import index_compaction, merging
from capstan.storage.compaction.growing_tables import GrowingTable, index_tables
from capstan.storage.compaction.index_compaction import compact_index, keep_short
from capstan.storage.compaction.policy import INDEX
from capstan.storage.delta import delta, table_cache
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.lake import Lake
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Consumed, Origin
from capstan.storage.tape.index_sums import read_sums
from capstan.storage.tape.index_totals import EVERY
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from capstan.telemetry import instrumentation
from tests.support.bulk_tapes import HOUR, counting, lay_index
from tests.support.jvmless_lake import go_on
from tests.support.work_between import Between

NAME = "little"
ALL = replace(INDEX, many=2, fan=1)


def lay(root: Path, commits: int) -> Tape:
    """A tape of this many commits, each with a file of the index and one of the feed."""
    lay_index(Lake.at(root), NAME, commits)
    tape = open_tape(Lake.at(root), NAME)
    for batch in range(commits):
        register(tape, batch)
    return tape


def register(tape: Tape, batch: int) -> None:
    entry = BatchEntry(batch, Origin.CAPTURE, "own", batch, (Consumed("t/0", None, batch),))
    feed.register_batch(tape, entry)


def advance(tape: Tape, root: Path, batches: int) -> None:
    """What a capture commits to the index and to the feed."""
    for _ in range(batches):
        at = newest_cut(tape).commit + 1
        register(tape, at)
        go_on(Lake.at(root), NAME, [(at * HOUR,)], ((at + 1) * HOUR,))
        if (at + 1) % EVERY == 0:
            keep_short(tape, at)


def table(tape: Tape, name: str = "events") -> GrowingTable:
    [found] = [each for each in index_tables(tape) if each.name == name]
    return replace(found, sizes=ALL)


def rows(path: str, *order: str) -> pa.Table:
    names = [field.name for field in delta.open_table(path).schema().fields]
    names = [name for name in names if name != "origin"]
    return read_columns(path, names).sort_by([(name, "ascending") for name in order])


def log(path: str) -> list[dict[str, object]]:
    newest = delta.open_table(path).version()
    return list(delta.read_commit(path, newest))


def files(path: str) -> list[dict[str, object]]:
    actual: list[dict[str, object]] = pa.table(
        deltalake.DeltaTable(path).get_add_actions(flatten=True)
    ).to_pylist()
    return actual


@pytest.mark.parametrize("batches", [1, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_capture_keeps_its_index_and_feed_short(tmp_path: Path, batches: int) -> None:
    tape = lay(tmp_path, EVERY)
    advance(tape, tmp_path, batches * EVERY)
    last = newest_cut(tape).commit
    assert last == (batches + 1) * EVERY - 1
    for name in ("events", "feed"):
        assert len(files(table(tape, name).path)) <= 32
    with counting() as opened:
        register(tape, last + 1)
        states = index.worker_states(tape, newest_cut(tape))
    assert (opened["events"], opened["feed"], opened["totals"]) == (0, 0, 1)
    assert [state.records for state in states] == [last + 1, last + 1]
    assert [entry.batch for entry in feed.entries_from(tape, 0)] == list(range(last + 2))


@pytest.mark.parametrize("commits", [2 * EVERY, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_an_index_that_has_grown_is_merged_at_once(tmp_path: Path, commits: int) -> None:
    lay_index(Lake.at(tmp_path), NAME, commits)
    tape = open_tape(Lake.at(tmp_path), NAME)
    before, old = rows(tape.paths.events, "worker", "seq"), len(files(tape.paths.events))
    keep_short(tape, newest_cut(tape).commit)
    # At most 8 groups of 512 files, while a capture has other work.
    assert len(files(tape.paths.events)) <= 32 + max(0, old - 8 * 511)
    if old > 8 * 512:
        compact_index(replace(table(tape), sizes=INDEX))
        assert len(files(tape.paths.events)) <= 32
    assert rows(tape.paths.events, "worker", "seq").equals(before)
    version = delta.version_of(tape.paths.events)
    keep_short(tape, newest_cut(tape).commit)
    assert delta.version_of(tape.paths.events) == version


def test_a_merged_file_tells_readers_of_the_table_nothing_new(tmp_path: Path) -> None:
    tape = lay(tmp_path, 3)
    advance(tape, tmp_path, 3)
    events = tape.paths.events
    times = list(commit_times(tape, newest_cut(tape).commit))
    before, old = rows(events, "commit", "worker", "seq"), files(events)
    assert compact_index(table(tape)).rewritten == sum(int(str(f["size_bytes"])) for f in old)
    [new] = files(events)
    # In the order in which rows arrived.
    assert read_columns(events, before.column_names).equals(before)
    actions = [action for entry in log(events) for action in entry.items()]
    changes = [fields["dataChange"] for kind, fields in actions if kind in ("add", "remove")]
    assert changes == [False] * (1 + len(old))
    assert list(commit_times(tape, newest_cut(tape).commit)) == times
    for name in ("worker", "seq", "batch", "commit", "time.event"):
        assert new[f"min.{name}"] == min(file[f"min.{name}"] for file in old)  # type: ignore[type-var]
        assert new[f"max.{name}"] == max(file[f"max.{name}"] for file in old)  # type: ignore[type-var]
    assert new["num_records"] == before.num_rows
    assert new["modification_time"] == max(int(str(file["modification_time"])) for file in old)
    # Of the files that were laid without them, no nulls are known.
    assert new["null_count.seq"] is None


def test_rows_of_the_feed_stay_with_their_origin(tmp_path: Path) -> None:
    tape = lay(tmp_path, 4)
    for batch in (4, 5):
        feed.register_batch(tape, BatchEntry(batch, Origin.IDLE, detail={"workers": [0]}))
    before = feed.entries_from(tape, 0)
    compact_index(table(tape, "feed"))
    assert sorted((f["partition.origin"], f["num_records"]) for f in files(tape.paths.feed)) == [
        ("capture", 4), ("idle", 2),
    ]  # fmt: skip
    assert feed.entries_from(tape, 0) == before
    assert [entry.batch for entry in feed.synthetic_batches(tape)] == [4, 5]


def test_of_two_that_merge_the_same_files_one_lands(tmp_path: Path) -> None:
    tape = lay(tmp_path, 5)
    before = rows(tape.paths.events, "worker", "seq")
    between = Between("maintain.written", lambda: compact_index(table(tape)))
    with instrumentation.subscribe(between):
        done = compact_index(table(tape))
    assert between.done
    assert (done.rewritten, done.files) == (0, 1)
    assert rows(tape.paths.events, "worker", "seq").equals(before)


def test_a_commit_in_between_is_kept(tmp_path: Path) -> None:
    tape = lay(tmp_path, 5)
    between = Between("maintain.written", lambda: advance(tape, tmp_path, 1))
    with instrumentation.subscribe(between):
        done = compact_index(table(tape))
    assert done.rewritten > 0
    assert between.done
    assert newest_cut(tape).commit == 5
    assert [state.records for state in index.worker_states(tape, newest_cut(tape))] == [6, 6]


def test_one_who_always_comes_too_late_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = lay(tmp_path, 5)
    monkeypatch.setattr(merging.arrow_writer, "replace_files", lambda *_: False)
    with pytest.raises(RangeLockedError, match="CAP-CONFLICT"):
        compact_index(table(tape))


def page(tape: Tape) -> tuple[list[object], int]:
    """What a page reads of an index, and the files that it opens for that."""
    table_cache.enable()
    try:
        with counting() as opened:
            sums = read_sums(tape)
    finally:
        table_cache.disable()
    return sorted(sums.by("commit").to_pylist(), key=json.dumps), opened["events"]


def test_a_page_does_not_read_merged_rows_again(tmp_path: Path) -> None:
    tape = lay(tmp_path, 5)
    before, opened = page(tape)
    assert (len(before), opened) == (5, 5)
    advance(tape, tmp_path, 2)
    compact_index(table(tape))
    advance(tape, tmp_path, 1)
    after, opened = page(tape)
    assert after[:5] == before
    # Two files are merged with those that were read, and are still there.
    assert (len(after), opened) == (8, 3)
    advance(tape, tmp_path, 1)
    compact_index(table(tape))
    for path in Path(tape.paths.events).glob("*.parquet"):
        if str(path) not in delta.open_table(tape.paths.events).file_uris():
            path.unlink()
    again, opened = page(tape)
    # What was merged before it was read is gone, so all is read.
    assert again[:8] == after
    assert (len(again), opened) == (9, 1)


def test_a_capture_merges_a_part_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_index(Lake.at(tmp_path), NAME, 80)
    tape = open_tape(Lake.at(tmp_path), NAME)
    monkeypatch.setattr(index_compaction, "OF_CAPTURES", replace(ALL, count=10))
    monkeypatch.setattr(index_compaction, "_AT_ONCE", 3)
    before = len(files(tape.paths.events))
    keep_short(tape, newest_cut(tape).commit)
    assert len(files(tape.paths.events)) == before - 3 * 9


def test_a_capture_goes_on_without_a_file_that_is_lost(tmp_path: Path) -> None:
    """Maintenance, which has no other work, ends by it."""
    tape = lay(tmp_path, EVERY)
    lost = min(file["path"] for file in files(tape.paths.feed))  # type: ignore[type-var]
    (Path(tape.paths.feed) / unquote(str(lost))).unlink()
    left = []

    def note(point: str, fields: dict[str, object]) -> None:
        if point == "capture.left":
            left.append(fields["table"])

    with instrumentation.subscribe(note):
        keep_short(tape, newest_cut(tape).commit)
    assert left == ["feed"]
    assert len(files(tape.paths.events)) <= 32
    with pytest.raises(SystemFailureError, match="CAP-DAMAGED"):
        compact_index(table(tape, "feed"))
