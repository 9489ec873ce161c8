"""Compaction policy and file layout: runs, file assignment, and how often rows are rewritten."""

from __future__ import annotations

import errno
import operator
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capstan.errors import CheckFailedError, RangeLockedError, SystemFailureError
from capstan.maintenance.compact_records import assign, row_bytes
from capstan.maintenance.expected_content import settled_batch
from capstan.maintenance.run import MaintenanceResult, _is_import, _stream_error, maintain
from capstan.replay.execution.staging import Why, list_staged
from capstan.storage.compaction.growing_tables import aside_tables
from capstan.storage.compaction.outcome import TableResult
from capstan.storage.compaction.policy import Run, Sizes, TapeFile, runs_of, worth_writing
from capstan.storage.delta.file_rewrite import require_rows
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake
from capstan.storage.tape.index import WorkerState, worker_states
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.recorded_tapes import Recorded

SIZES = Sizes(file=1000, full=640, share=40, least=10, many=8, fan=4, most=10_000)


def file(low: int, high: int | None = None, bytes_: int = 10, **more: object) -> TapeFile:
    high = low if high is None else high
    return TapeFile(f"{low}-{high}-{bytes_}", bytes_, bytes_, low, high, **more)  # type: ignore[arg-type]


def written(group: tuple[TapeFile, ...]) -> TapeFile:
    """The files of a rewritten group in a table without workers."""
    total = sum(f.bytes for f in group)
    return file(min(f.low for f in group), max(f.high for f in group), total)


def maintained(
    files: list[TapeFile], sizes: Sizes = SIZES, *, ended: bool = False
) -> tuple[list[TapeFile], int]:
    """The files after maintenance, and the bytes written."""
    rewritten = 0
    for _ in range(20):
        groups = worth_writing(runs_of(files), sizes, ended=ended)
        if not groups:
            return files, rewritten
        for group in groups:
            rewritten += sum(f.bytes for f in group)
            files = [f for f in files if f not in group] + [written(group)]
    raise AssertionError("it does not come to an end")


def test_runs_are_files_whose_batches_touch() -> None:
    files = [file(3), file(0, 2), file(1), file(4, 6), file(5, 9)]
    assert [(run.low, run.high, len(run.files)) for run in runs_of(files)] == [
        (0, 2, 2), (3, 3, 1), (4, 9, 2),
    ]  # fmt: skip


def test_few_small_files_wait() -> None:
    files = [file(n) for n in range(7)]
    assert worth_writing(runs_of(files), SIZES) == []
    assert len(worth_writing(runs_of(files), SIZES, ended=True)) == 1
    assert len(worth_writing(runs_of([*files, file(7)]), SIZES)) == 1


def test_full_runs_are_never_rewritten() -> None:
    full = file(0, 9, 640)
    files = [full, *(file(n) for n in range(10, 17))]
    (group,) = worth_writing(runs_of([*files, file(17)]), SIZES)
    assert full not in group
    assert worth_writing(runs_of([full]), SIZES, ended=True) == []


def test_one_large_batch_is_laid_out_by_worker() -> None:
    mixed = [file(0, bytes_=400, workers=(0, 3)), file(0, bytes_=401, workers=(0, 3))]
    own = [file(0, bytes_=200 + n, workers=(n, n)) for n in range(4)]
    assert worth_writing(runs_of(mixed), SIZES, 4) == [tuple(mixed)]
    assert worth_writing(runs_of(own), SIZES, 4) == []
    assert not Run(tuple(mixed)).is_sound(SIZES)
    assert worth_writing(runs_of([file(0, bytes_=700, workers=(0, 3))]), SIZES, 4)
    # What is small may be of several.
    assert Run((file(0, bytes_=19, workers=(0, 3)),)).is_sound(SIZES)
    assert Run(tuple(own)).is_sound(SIZES)


@given(
    batches=st.lists(st.integers(1, 3000), max_size=300),
    turns=st.lists(st.integers(1, 60), max_size=40),
)
def test_rows_are_rewritten_about_once(batches: list[int], turns: list[int]) -> None:
    files: list[TapeFile] = []
    total = rewritten = 0
    waiting = [file(n, bytes_=size) for n, size in enumerate(batches)]
    for turn in turns:
        files += waiting[:turn]
        total += sum(f.bytes for f in waiting[:turn])
        del waiting[:turn]
        files, more = maintained(files)
        rewritten += more
        # Runs never overlap, and lose no file.
        assert sum(f.bytes for f in files) == total
        assert all(len(run.files) == 1 for run in runs_of(files))
        # A run grows `fan` times with each time it is taken up, up to the full size.
        assert rewritten <= total * 5
        again, nothing = maintained(files)
        assert (again, nothing) == (files, 0)


def test_batches_worth_a_run_a_day_are_written_once() -> None:
    files: list[TapeFile] = []
    rewritten = 0
    for day in range(30):
        files += [file(24 * day + hour, bytes_=40) for hour in range(24)]
        files, more = maintained(files)
        rewritten += more
    assert rewritten == 30 * 24 * 40
    assert len(files) == 30


def test_files_stay_bounded_however_small_the_batches() -> None:
    files: list[TapeFile] = []
    rewritten = 0
    for batch in range(2000):
        files, more = maintained([*files, file(batch, bytes_=1)])
        rewritten += more
    assert len(files) < 40
    assert rewritten <= 4 * 2000


@given(
    counts=st.dictionaries(
        st.integers(0, 50), st.lists(st.integers(1, 500), min_size=1), max_size=20
    )
)
def test_every_record_is_assigned_to_a_file(counts: Mapping[int, list[int]]) -> None:
    cells = {worker: [((n,), c) for n, c in enumerate(some)] for worker, some in counts.items()}
    seats = assign(cells, dict.fromkeys(cells, 1.0), SIZES)
    held: dict[int, set[int]] = {}
    size: dict[int, int] = {}
    for worker, some in cells.items():
        for time, count in some:
            seat = seats.first[worker] + sum(time >= step for step in seats.starts.get(worker, ()))
            held.setdefault(seat, set()).add(worker)
            size[seat] = size.get(seat, 0) + count
    assert set(held) <= set(range(seats.count))
    assert not held or set(held) == set(range(seats.count))
    for seat, workers in held.items():
        # Only who has little shares a file, and such a file stays small.
        assert len(workers) == 1 or size[seat] < 2 * SIZES.least
        largest = max(c for some in counts.values() for c in some)
        assert size[seat] <= SIZES.file + 2 * largest


def test_workers_with_few_rows_share_a_file() -> None:
    cells = {worker: [((0,), 3)] for worker in range(12)}
    seats = assign(cells, dict.fromkeys(cells, 1.0), SIZES)
    assert (seats.count, set(seats.first.values())) == (2, {0, 1})


def test_record_sizes_are_estimated_from_files() -> None:
    files = [
        TapeFile("a", 100, 10, 0, 0, (0, 2)),
        TapeFile("b", 50, 50, 0, 0, (4, 4)),
        TapeFile("c", 20, 10, 0, 0, (2, 3)),
    ]
    assert row_bytes(files, [0, 1, 2, 3, 4, 5]) == {0: 10, 1: 10, 2: 6, 3: 2, 4: 1, 5: 0}
    assert row_bytes([TapeFile("a", 0, 0, 0, 0, (0, 2))], []) == {}


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12),
    batches=st.integers(1, 9),
)
@example(sizes=[(60, 1), (1, 40), (1, 40)], batches=1)
def test_layouts_converge_for_uneven_record_sizes(
    sizes: list[tuple[int, int]], batches: int
) -> None:
    """With fixed counts and sizes of records, rewriting ends after a few rounds."""
    wide = replace(SIZES, file=10**6, most=10**9)
    rows, size = zip(*sizes, strict=True)
    workers = range(len(sizes))
    total = sum(map(operator.mul, rows, size))
    files = [TapeFile(f"{n}", total, sum(rows), n, n, (0, workers[-1])) for n in range(batches)]
    for _ in range(len(sizes) + 2):
        groups = worth_writing(runs_of(files), wide, len(sizes), ended=True)
        if not groups:
            return
        (group,) = groups
        cells = {worker: [((), batches * rows[worker])] for worker in workers}
        first = assign(cells, row_bytes(group, cells), wide).first
        files = [
            TapeFile(
                f"{seat}",
                sum(batches * rows[w] * size[w] for w in own),
                sum(batches * rows[w] for w in own),
                0,
                batches - 1,
                (min(own), max(own)),
            )
            for seat in sorted(set(first.values()))
            for own in [[worker for worker in workers if first[worker] == seat]]
        ]
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize(("workers", "whole"), [(1, 640), (16, 640), (100, 4000)])
def test_a_full_run_has_a_share_for_every_worker(workers: int, whole: int) -> None:
    assert SIZES.whole(workers) == whole


def test_a_rewrite_must_keep_the_number_of_rows() -> None:
    require_rows("/t", 5, [2, 3])
    for written in ([], [5, 1]):
        with pytest.raises(SystemFailureError, match="5 rows of /t were to be rewritten") as caught:
            require_rows("/t", 5, written)
        assert caught.value.code == "CAP-REWRITE"


def test_damage_is_reported_before_violations_and_skipped_work() -> None:
    done = MaintenanceResult(["a", "b"], busy=[RangeLockedError("CAP-HELD", "others were faster")])
    assert done.refusal is done.busy[0]
    for stream in done.streams:
        printed = f"stream {stream}, worker 0 breaks seq"
        done.violations.append(CheckFailedError("CAP-VIOLATION", printed, "", stream=stream))
        assert done.refusal is not None
        assert (done.refusal.code, done.refusal.exit_code) == ("CAP-VIOLATION", 1)
    assert done.refusal.message == "recordings of 2 streams break a rule: a, b"
    done.violations.pop()
    assert done.refusal is done.violations[0]
    done.tables["b"] = [TableResult("records", damaged=[(3, 5)])]
    assert done.refusal.code == "CAP-TAPE"
    assert [item["error"] for item in done.to_json()["violations"]] == ["CAP-VIOLATION"]  # type: ignore[attr-defined]


def test_failed_streams_are_reported_first() -> None:
    failed = [SystemFailureError("CAP-DAMAGED", "stream a: gone", "put it back", stream="a")]
    done = MaintenanceResult(
        ["c"], failed=failed, violations=[CheckFailedError("CAP-VIOLATION", "c", "", stream="c")]
    )
    assert done.refusal is done.failed[0]
    done.failed.append(SystemFailureError("CAP-FORMAT", "stream b is in format 9", "", stream="b"))
    assert isinstance(done.refusal, SystemFailureError)
    assert str(done.refusal) == "CAP-DAMAGED: stream a: gone; also failed: b"
    assert done.to_json()["failed"] == [
        {"stream": "a", "error": "CAP-DAMAGED", "message": "stream a: gone", "hint": "put it back"},
        {"stream": "b", "error": "CAP-FORMAT", "message": "stream b is in format 9", "hint": ""},
    ]


def test_lake_wide_errors_belong_to_no_stream(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    inside = f"{lake.stream('a').records}/part.parquet"
    other = f"{lake.stream('ab').root}/records"
    of_all = (other, lake.ledger("runs"), lake.root)
    for place, own in ((inside, True), *((item, False) for item in of_all)):
        actual = _stream_error(lake, "a", PermissionError(errno.EACCES, "Permission denied", place))
        assert (actual is not None) is own
    assert (
        _stream_error(lake, "a", OSError(errno.ENOSPC, "No space left on device", inside)) is None
    )
    unforeseen = _stream_error(lake, "a", KeyError("capstan.time"))
    assert unforeseen is not None
    assert (str(unforeseen), unforeseen.fields["stream"]) == (
        "CAP-BROKEN: stream a: KeyError: 'capstan.time'", "a",
    )  # fmt: skip


@pytest.mark.parametrize(("domain", "imported"), [("import", True), ("listen", False)])
def test_imports_are_not_verified_again(domain: str, imported: bool) -> None:
    tape = SimpleNamespace(settings=TapeSettings({"domain": domain}))
    assert _is_import(tape) is imported  # type: ignore[arg-type]


def test_a_worker_with_negative_counts_holds_nothing(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    Recorded("broken", ["a", "b"]).lay(lake)
    tape = open_tape(lake, "broken")
    cut = newest_cut(tape)
    (held, _), *_ = worker_states(tape, cut)[0].holdings
    overdrawn = [WorkerState(number, "", 1, 0, ((held, -1),)) for number in (0, 1)]
    assert settled_batch(tape, cut, overdrawn, 0) == cut.batch


def test_foreign_files_in_a_lake_are_ignored(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    Recorded("mine", ["a"]).lay(lake)
    for folder in ("streams", "state", "aside", "staging"):
        (tmp_path / folder / "lost+found").mkdir(parents=True)
        (tmp_path / folder / ".DS_Store").write_text("what is it", encoding="utf-8")
        (tmp_path / folder / "notes").write_text("to do", encoding="utf-8")
    assert lake.streams() == ["mine"]
    assert (lake.states(), lake.side_output_tables(), aside_tables(lake)) == ([], [], [])
    staged = list_staged(lake, datetime.now(UTC))
    assert {(item.name, item.bytes) for item in staged if item.why is Why.UNKNOWN} == {
        (".DS_Store", 10), ("lost+found", 0), ("notes", 5),
    }  # fmt: skip


def test_maintenance_deletes_what_jobs_left_long_ago(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    no_spark: Any = None
    JobAttempt(lake, "a").prepare({})
    now = datetime.now(UTC) + timedelta(days=20)
    assert maintain(no_spark, lake, [], now=now).jobs == []
    done = maintain(no_spark, lake, [], now=now, keep=timedelta(days=7))
    assert done.jobs == done.to_json()["jobs"] == ["a"]
    assert list((tmp_path / "jobs").iterdir()) == []
