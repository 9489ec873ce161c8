"""What is asked of the newest state of a tape reads what is new, however long the tape is."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.capture.batch.roster import Roster
from capstan.core.config import Replay
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.reporting import listings
from capstan.reporting.coverage_view import Coverage, view_coverage
from capstan.reporting.frontier_history import read_progress
from capstan.reporting.stream_view import StreamHistory, view_stream
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake, children
from capstan.storage.late.late_rows import count_late
from capstan.storage.tape import feed, index
from capstan.storage.tape.index_totals import EVERY, store_totals, totals_at
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape
from tests.support.bulk_tapes import HOUR, counting, lay_index
from tests.support.jvmless_lake import go_on, lay_tape
from tests.support.sample_streams import declared, little_stream

NAME = "little"
LATE = pa.schema(
    [
        ("reason", pa.string()), ("worker", pa.int32()), ("batch", pa.int64()),
        ("time", pa.struct([("event", pa.timestamp("us", "UTC"))])),
    ]
)  # fmt: skip


def grown(root: Path, commits: int) -> Tape:
    lake = Lake.at(root)
    lay_index(lake, NAME, commits)
    deltalake.DeltaTable.create(lake.stream(NAME).late, LATE)
    return open_tape(lake, NAME)


def more(root: Path, tape: Tape, commits: int) -> None:
    at = newest_cut(tape).commit
    for n in range(at + 1, at + 1 + commits):
        go_on(Lake.at(root), NAME, [(n * HOUR,)], ((n + 1) * HOUR,))


def plan_of_a_day(root: Path) -> None:
    day = {"since": "1970-01-02T00:00:00Z", "until": "1970-01-03T00:00:00Z"}
    streams = declared(little_stream(root / "source"))
    plan = make_plan(Lake.at(root), streams, Request(NAME, "t", **day))  # type: ignore[arg-type]
    [stream] = plan.inputs
    assert stream.content(plan.reads).messages == 48


def looks(root: Path, tape: Tape) -> dict[str, Callable[[], object]]:
    """What looks at the newest state, and for a day of records."""
    cut, streams = newest_cut(tape), declared(little_stream(root / "source"))
    return {
        "roster": lambda: Roster.load(tape, cut),
        "streams": lambda: listings.stream_rows(Lake.at(root), streams),
        "show": lambda: index.worker_states(tape, cut),
        "an earlier cut": lambda: index.find_cut(tape, cut.commit // 2),
        "plan": lambda: plan_of_a_day(root),
    }


@pytest.mark.parametrize("commits", [100, 1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_looks_open_a_constant_number_of_files(tmp_path: Path, commits: int) -> None:
    tape = grown(tmp_path, commits)
    assert store_totals(tape, newest_cut(tape).commit)
    more(tmp_path, tape, 3)
    actual = {}
    for name, look in looks(tmp_path, tape).items():
        with counting() as opened:
            look()
        actual[name] = opened["events"], opened["totals"]
    day = 24 + 3
    assert actual == {
        "roster": (3, 1), "streams": (3, 1), "show": (3, 1), "an earlier cut": (0, 0),
        "plan": (day, 1),
    }  # fmt: skip


@pytest.mark.parametrize("commits", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_a_page_reads_the_new_files_of_an_index_alone(tmp_path: Path, commits: int) -> None:
    tape = grown(tmp_path, commits)
    table_cache.enable()
    try:
        first = read_progress(tape, newest_cut(tape))
        more(tmp_path, tape, 1)
        with counting() as opened:
            second = read_progress(tape, newest_cut(tape))
        earlier = read_progress(tape, Cut(commits - 1, commits - 1))
    finally:
        table_cache.disable()
    assert opened["events"] == 1
    assert sum(s.records for s in second.workers) == sum(s.records for s in first.workers) + 2
    assert (earlier.workers, earlier.frontiers, earlier.newest) == (
        first.workers, first.frontiers, first.newest,
    )  # fmt: skip
    with counting() as opened:
        anew = read_progress(tape, newest_cut(tape))
    assert (second.workers, second.frontiers, second.newest) == (
        anew.workers, anew.frontiers, anew.newest,
    )  # fmt: skip
    assert opened["events"] == commits + 1


def test_a_page_reads_each_file_of_an_index_once(tmp_path: Path) -> None:
    grown(tmp_path, 20)
    lake, stream = Lake.at(tmp_path), little_stream(tmp_path / "source")
    replay = Replay(name="r", stream=NAME, target="t", schedule="@daily")
    streams = replace(declared(stream), replays={"r": replay})
    table_cache.enable()
    try:
        with counting() as opened:
            view = view_stream(lake, streams, NAME)
            coverage = view_coverage(lake, streams, "r")
    finally:
        table_cache.disable()
    assert isinstance(view, StreamHistory)
    assert isinstance(coverage, Coverage)
    # The first events of the workers are read alone again.
    assert opened["events"] == 20 + 1
    assert opened["workers"] == 1


def test_it_is_kept_again_once_there_are_enough_new_files(tmp_path: Path) -> None:
    tape = grown(tmp_path, EVERY - 1)
    assert not store_totals(tape, newest_cut(tape).commit)
    more(tmp_path, tape, 1)
    with counting() as opened:
        assert store_totals(tape, newest_cut(tape).commit)
        assert opened["events"] == EVERY
        more(tmp_path, tape, 1)
        opened.clear()
        # To find out that there is not enough to do opens no file of the index.
        assert not store_totals(tape, newest_cut(tape).commit)
        assert opened["events"] == 0
    for _ in range(6):
        more(tmp_path, tape, 1)
        assert store_totals(tape, newest_cut(tape).commit, 0)
    assert len(children(tape.paths.totals)) == 4


@pytest.mark.rest
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=8),
    st.sets(st.integers(0, 8)),
)
@settings(max_examples=20)
def test_kept_or_not_a_cut_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[int]], kept: set[int]
) -> None:
    root = tmp_path_factory.mktemp("kept")
    lake = Lake.at(root)
    lay_tape(lake, NAME, ["a", "b"], [(0,)], (HOUR,))
    tape = open_tape(lake, NAME)
    for number, times in enumerate(commits, 1):
        if number - 1 in kept:
            store_totals(tape, newest_cut(tape).commit, 0)
        go_on(lake, NAME, [((number + n) * HOUR,) for n in times], ((number + 1) * HOUR,))
    cuts = [Cut(number, number) for number in range(len(commits) + 1)]
    actual = [index.tape_state(tape, cut) for cut in cuts]
    shutil.rmtree(tape.paths.totals, ignore_errors=True)
    assert actual == [index.tape_state(tape, cut) for cut in cuts]
    assert [index.find_cut(tape, cut.commit) for cut in cuts] == cuts


def test_restored_indexes_are_read_as_they_are(tmp_path: Path) -> None:
    tape = grown(tmp_path / "lake", 3)
    shutil.copytree(tape.paths.events, tmp_path / "copy")
    more(tmp_path / "lake", tape, 2)
    assert store_totals(tape, newest_cut(tape).commit, 0)
    shutil.rmtree(tape.paths.events)
    shutil.copytree(tmp_path / "copy", tape.paths.events)
    for _ in range(3):
        at = newest_cut(tape).commit + 1
        go_on(Lake.at(tmp_path / "lake"), NAME, [], ((at + 1) * HOUR,))
    with counting() as opened:
        states = index.worker_states(tape, newest_cut(tape))
    assert [state.records for state in states] == [3, 3]
    assert opened["events"] == 6


@pytest.mark.parametrize("damage", [b"", b"PAR1 or not"])
def test_what_was_kept_and_is_damaged_is_not_needed(tmp_path: Path, damage: bytes) -> None:
    tape = grown(tmp_path, 3)
    before = totals_at(tape, 2)
    assert store_totals(tape, 2, 0)
    [name] = children(tape.paths.totals)
    (Path(tape.paths.totals) / name).write_bytes(damage)
    assert totals_at(tape, 2) == before


def test_late_records_are_counted_by_the_log(tmp_path: Path) -> None:
    tape = grown(tmp_path, 3)
    write = deltalake.write_deltalake
    for batch in range(20):
        rows = [{"reason": "late", "worker": 0, "batch": batch}] * 2
        write(tape.paths.late, pa.Table.from_pylist(rows, schema=LATE), mode="append")
    mixed = [{"reason": reason, "worker": 0, "batch": 2} for reason in ("late", "no-time")]
    write(tape.paths.late, pa.Table.from_pylist(mixed, schema=LATE), mode="append")
    with counting() as opened:
        assert count_late(tape, Cut(2, 2)) == {"late": 7, "no-time": 1}
    assert opened["late"] == 1
    with counting() as opened:
        assert count_late(tape, Cut(30, 30)) == {"late": 41, "no-time": 1}
    assert opened["late"] == 1


def test_a_file_of_totals_says_what_it_is_of(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    tape = grown(tmp_path, 3)
    store_totals(tape, 2, 0)
    [name] = children(tape.paths.totals)
    about = json.loads(pq.read_schema(Path(tape.paths.totals) / name).metadata[b"capstan"])
    assert name == f"{2:020}.parquet"
    assert set(about) == {"format", "tape", "version", "entry", "greatest"}


def test_the_last_inserted_batch_is_found_by_the_log(tmp_path: Path) -> None:
    tape = grown(tmp_path, 3)
    assert feed.last_synthetic(tape) is None
    for batch in range(3, 40):
        origin = feed.Origin.IDLE if batch % 10 == 5 else feed.Origin.CAPTURE
        by = (None, None) if origin is feed.Origin.IDLE else ("some", batch)
        feed.register_batch(tape, feed.BatchEntry(batch, origin, *by))
    with counting() as opened:
        actual = feed.last_synthetic(tape)
    assert actual is not None
    assert (actual.batch, opened["feed"]) == (35, 1)
    with counting() as opened:
        assert [item.batch for item in feed.synthetic_batches(tape)] == [5, 15, 25, 35]
        assert [item.batch for item in feed.entries_from(tape, 38)] == [38, 39]
    assert opened["feed"] == 4 + 2


def test_inserted_batches_are_counted_by_the_log(tmp_path: Path) -> None:
    tape = grown(tmp_path, 3)
    assert feed.count_synthetic(tape, 0, 99) == 0
    assert feed.entry_of(tape, "some", 4) is None
    for batch in range(3, 40):
        origin = feed.Origin.IDLE if batch % 10 == 5 else feed.Origin.CAPTURE
        by = (None, None) if origin is feed.Origin.IDLE else ("some", batch - 2)
        feed.register_batch(tape, feed.BatchEntry(batch, origin, *by))
    with counting() as opened:
        assert feed.count_synthetic(tape, 0, 39) == 4
        assert feed.count_synthetic(tape, 6, 39) == 3
        assert feed.count_synthetic(tape, 6, 34) == 2
        assert opened["feed"] == 0
        actual = feed.entry_of(tape, "some", 30)
        assert opened["feed"] == 1
    assert actual is not None
    assert (actual.batch, actual.by) == (32, (feed.Origin.CAPTURE, "some", 30))
    assert feed.entry_of(tape, "other", 30) is None
    assert feed.entry_of(tape, "some", 40) is None
    # Maintenance merges files: the one with the bound in it is opened.
    deltalake.DeltaTable(tape.paths.feed).optimize.compact()
    with counting() as opened:
        assert feed.count_synthetic(tape, 0, 39) == 4
        assert opened["feed"] == 0
        assert feed.count_synthetic(tape, 6, 34) == 2
        assert feed.entry_of(tape, "some", 30) == actual
    assert opened["feed"] == 2


def calls(work: Callable[[], object]) -> int:
    """The calls of functions that some work makes in this thread."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # What is kept was read before.
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_worker_more_costs_few_calls(tmp_path: Path) -> None:
    actual: dict[str, list[int]] = {}
    for workers in (100, 1_100):
        lake = Lake.at(tmp_path / f"{workers}")
        lay_index(lake, NAME, 3, workers)
        tape = open_tape(lake, NAME)
        cut = newest_cut(tape)
        assert store_totals(tape, cut.commit, 0)
        loads = [calls(partial(Roster.load, tape, cut))]
        table_cache.enable()
        try:
            progress = read_progress(tape, cut)
            loads.append(calls(partial(read_progress, tape, cut)))
            loads.append(calls(partial(progress.frontiers.least, 0)))
        finally:
            table_cache.disable()
        actual[f"{workers}"] = loads
    more = [(large - small) / 1_000 for small, large in zip(*actual.values(), strict=True)]
    roster, progress_of_all, least = more
    assert roster <= 12
    assert progress_of_all <= 7
    assert least < 0.1
