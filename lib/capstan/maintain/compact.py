"""Compaction: many small files become few, each worker's rows together and in order of time.

No row changes, and whoever follows a table sees nothing new: Delta is told so (`dataChange` is
false). An append at the same time is in nobody's way. Records are held against the index while they
are written; a range whose records are not those that were captured is named, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F

from capstan.errors import AnswerIsNo, Held
from capstan.ledger.retired import boxes_of
from capstan.maintain.promises import Promised, promised, settled_batch
from capstan.maintain.runs import File, Sizes, runs_of, worth_writing
from capstan.maintain.seats import Cells, Seats, deal
from capstan.maintain.tables import Kept, files_of
from capstan.steps import reached
from capstan.tape.fingerprint import record_hashes, sum_mod64
from capstan.tape.lake import Lake
from capstan.tape.predicates import literal, region_sql
from capstan.tape.rewriting import exchange, rows_of_files
from capstan.tape.summary import worker_states
from capstan.tape.tape import Tape, newest_cut
from capstan.times import Box
from capstan.times.region import Region

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 12
"""How often a table is looked at again when another writer has taken files of it."""

_ALL = 2**64


@dataclass(slots=True)
class Compacted:
    """What compaction did to a table.

    Attributes:
        table: What it is called.
        files_before: Files that it had.
        files: Files that it has.
        bytes: Their size.
        rewritten: Bytes that were written anew.
        commits: How many commits that took.
        damaged: Batches, first and last, whose records are not those that were captured.
    """

    table: str
    files_before: int = 0
    files: int = 0
    bytes: int = 0
    rewritten: int = 0
    commits: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)


def compact_index(spark: SparkSession, table: Kept, *, ended: bool = False) -> Compacted:
    """Compact a table whose rows need no other order than that in which they came.

    Raises:
        Held: `CAP-CONFLICT` when other writers took its files again and again.
    """
    done = Compacted(table.name)
    for turn in range(_TRIES):
        files = files_of(table.path, table.key)
        if files is None:
            return done
        _count(done, files, first=not turn)
        groups = worth_writing(runs_of(files), table.sizes, ended=ended)
        if not groups:
            return done
        for group in groups:
            rows = rows_of_files(spark, table.path, [file.path for file in group])
            parts = max(1, -(-sum(file.bytes for file in group) // table.sizes.file))
            ordered = rows.repartitionByRange(parts, *table.order).sortWithinPartitions(
                *table.order
            )
            _put(spark, table.path, group, ordered, done)
    raise _lost(table.path)


def compact_records(spark: SparkSession, lake: Lake, tape: Tape, sizes: Sizes) -> Compacted:
    """Compact the records of a tape, as far as they have settled, by worker and time.

    Raises:
        Held: `CAP-CONFLICT` when other writers took its files again and again.
        AnswerIsNo: Never; damaged ranges are in what it returns.
    """
    done = Compacted("records")
    for turn in range(_TRIES):
        files = files_of(tape.paths.records, "batch", by_worker=True)
        if files is None:
            return done
        _count(done, files, first=not turn)
        cut = newest_cut(tape)
        states = worker_states(tape, cut)
        runs = runs_of(files)
        pending = min((r.low for r in runs if not r.is_final(sizes, len(states))), default=None)
        if pending is None:
            return done
        last = settled_batch(tape, cut, states, pending)
        settled = [run for run in runs if run.high <= last]
        ended = all(state.closed for state in states)
        groups = worth_writing(settled, sizes, len(states), ended=ended)
        groups = [group for group in groups if _bounds(group) not in done.damaged]
        if not groups:
            return done
        retired = boxes_of(lake, tape)
        for group in groups:
            bounds = _bounds(group)
            try:
                _cluster(spark, tape, group, retired, sizes, done)
            except AnswerIsNo:
                done.damaged.append(bounds)
    raise _lost(tape.paths.records)


def _cluster(
    spark: SparkSession,
    tape: Tape,
    group: Sequence[File],
    retired: Sequence[Box],
    sizes: Sizes,
    done: Compacted,
) -> None:
    """Write records anew, by worker and time.

    Raises:
        AnswerIsNo: `CAP-TAPE` when they are not those that the index promises.
    """
    path, expected = tape.paths.records, promised(tape, *_bounds(group), retired)
    rows = rows_of_files(spark, path, [file.path for file in group])
    size = sum(file.bytes for file in group) / max(1, sum(file.rows for file in group))
    seats = deal(_cells(expected, size, sizes), size, sizes)
    seen, figures = Observation(), _figures(rows, tape, retired)
    laid = (
        rows.observe(seen, *figures)
        .withColumn("_seat", _seat(seats, tape))
        .repartitionById(seats.count, F.col("_seat"))
        .sortWithinPartitions("worker", "time", "batch", "pos")
        .drop("_seat")
    )

    def check() -> None:
        found = seen.get
        stored = found["records"], (found["h1"] or 0) % _ALL, (found["h2"] or 0) % _ALL
        if stored != (sum(expected.records.values()), *expected.hashes):
            raise AnswerIsNo(
                "CAP-TAPE",
                f"stream {tape.name}: records of batches {_bounds(group)} are not those captured",
                f"see `capstan verify {tape.name} --deep`",
                stream=tape.name,
            )

    _put(spark, path, group, laid, done, check)


def _cells(expected: Promised, size: float, sizes: Sizes) -> dict[int, Cells]:
    """The cells that are to be dealt: one a worker, but of those who need several files."""
    return {
        worker: expected.times_of(worker) if count * size > sizes.file else [((), count)]
        for worker, count in expected.records.items()
    }


def _figures(rows: DataFrame, tape: Tape, retired: Sequence[Box]) -> list[Column]:
    """Count and content hashes of records, but for those that are about to be deleted."""
    h1, h2 = record_hashes(rows)
    inside = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    kept = F.expr(" AND ".join(f"NOT ({each})" for each in inside) or "true")
    return [
        F.count(F.when(kept, 1)).alias("records"),
        sum_mod64(F.when(kept, h1)).alias("h1"),
        sum_mod64(F.when(kept, h2)).alias("h2"),
    ]


def _seat(seats: Seats, tape: Tape) -> Column:
    """The file that a record goes into; one of a worker that is not known goes into the first."""
    pairs = [F.lit(part) for pair in seats.first.items() for part in pair]
    if not pairs:
        return F.lit(0)
    seat = F.coalesce(F.try_element_at(F.create_map(*pairs), F.col("worker")), F.lit(0))
    for worker, steps in seats.steps.items():
        for step in steps:
            fields = ", ".join(
                f"'{c.name}', {literal(c, value)}"
                for c, value in zip(tape.time_type.coordinates, step, strict=True)
            )
            later = F.expr(f"worker = {worker} AND time >= named_struct({fields})")
            seat = seat + F.when(later, 1).otherwise(0)
    return seat


def _put(
    spark: SparkSession,
    path: str,
    group: Sequence[File],
    rows: DataFrame,
    done: Compacted,
    check: Callable[[], None] | None = None,
) -> None:
    """Put rows in the place of the files of a group; where others took some, nothing happens."""

    def written() -> None:
        if check is not None:
            check()
        reached("maintain.written", table=done.table)

    gone = {file.path: file.rows for file in group}
    note = {"maintain": "compact"}
    found = exchange(spark, path, gone, rows, note=note, before_commit=written)
    if found is None:
        return
    done.commits += 1
    done.rewritten += sum(file.bytes for file in group)
    reached("maintain.compacted", table=done.table, files=found.files, of=len(group))


def _bounds(group: Sequence[File]) -> tuple[int, int]:
    return min(file.low for file in group), max(file.high for file in group)


def _count(done: Compacted, files: Sequence[File], *, first: bool) -> None:
    done.files, done.bytes = len(files), sum(file.bytes for file in files)
    if first:
        done.files_before = done.files


def _lost(path: str) -> Held:
    return Held(
        "CAP-CONFLICT",
        f"other writers took files of {path} {_TRIES} times in a row",
        "run the same command again",
        path=path,
    )
