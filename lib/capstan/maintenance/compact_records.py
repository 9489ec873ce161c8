"""Compaction of records: each worker's own together and in order of time, once they have settled.

They are held against the index while they are written. Batches whose records are not those that
were captured are named, and stay as they are: they can still be looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.maintenance.compaction import Compacted, put, until_settled
from capstan.maintenance.compaction_policy import File, Run, Sizes, runs_of, worth_writing
from capstan.maintenance.expected_content import (
    ExpectedContent,
    promised,
    promised_by_batch,
    settled_batch,
)
from capstan.maintenance.file_layout import Cells, FileAssignment, assign, row_bytes
from capstan.maintenance.table_catalog import files_of
from capstan.storage.file_rewrite import rows_of_files
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.tape.fingerprint import record_hashes, sum_mod64
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.region_sql import literal, region_sql
from capstan.storage.tape.tape import Tape, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ALL = 2**64


def compact_records(spark: SparkSession, lake: Lake, tape: Tape, sizes: Sizes) -> Compacted:
    """Compact the records of a tape, as far as they have settled, by worker and time.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when other writers took its files again and again.
    """
    done, bad = Compacted("records"), set[int]()

    def turn() -> bool | None:
        files = files_of(tape.paths.records, "batch", by_worker=True)
        if files is None:
            return None
        done.see(files)
        groups = _groups(tape, files, sizes, bad)
        retired = retired_boxes(lake, tape)
        for group in groups:
            try:
                if not _cluster(spark, tape, group, retired, sizes, done):
                    return False
            except CheckFailedError:
                bad.update(_damaged(spark, tape, group, retired))
        return True if groups else None

    until_settled(tape.paths.records, turn)
    done.damaged = _ranges(bad)
    return done


def _groups(
    tape: Tape, files: Sequence[File], sizes: Sizes, bad: Collection[int]
) -> list[tuple[File, ...]]:
    """What is worth to be written anew of what has settled, without damaged batches."""
    cut = newest_cut(tape)
    states = worker_states(tape, cut)
    runs = runs_of(files)
    pending = min((run.low for run in runs if not run.is_final(sizes, len(states))), default=None)
    if pending is None:
        return []
    last = settled_batch(tape, cut, states, pending)
    ended = all(state.closed for state in states)
    settled = [run for run in runs if run.high <= last]

    def is_bad(run: Run) -> bool:
        return any(run.low <= batch <= run.high for batch in bad)

    return [
        group
        for damaged, stretch in groupby(settled, is_bad)
        if not damaged
        for group in worth_writing(list(stretch), sizes, len(states), ended=ended)
    ]


def _cluster(
    spark: SparkSession,
    tape: Tape,
    group: Sequence[File],
    retired: Sequence[Box],
    sizes: Sizes,
    done: Compacted,
) -> bool:
    """Write records anew, by worker and time; False where others have taken some of the files.

    Raises:
        CheckFailedError: `CAP-TAPE` when they are not those that the index promises.
    """
    path, low, high = tape.paths.records, *_bounds(group)
    expected = promised(tape, low, high, retired)
    rows = rows_of_files(spark, path, [file.path for file in group])
    size = row_bytes(group, expected.records)
    seats = assign(_cells(expected, size, sizes), size, sizes)
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
        if _content(found["records"], found["h1"], found["h2"]) != expected.content:
            raise CheckFailedError(
                "CAP-TAPE",
                f"stream {tape.name}: records of batches {low} to {high} are not those captured",
                f"see `capstan verify {tape.name} --deep`",
                stream=tape.name,
            )

    return put(spark, path, group, laid, done, check)


def _damaged(
    spark: SparkSession, tape: Tape, group: Sequence[File], retired: Sequence[Box]
) -> set[int]:
    """The batches of a group whose records are not those that the index promises."""
    low, high = _bounds(group)
    rows = rows_of_files(spark, tape.paths.records, [file.path for file in group])
    found = rows.groupBy("batch").agg(*_figures(rows, tape, retired)).collect()
    stored = {row["batch"]: _content(row["records"], row["h1"], row["h2"]) for row in found}
    expected, nothing = promised_by_batch(tape, low, high, retired), _content(0, 0, 0)
    wrong = {
        batch
        for batch in stored.keys() | expected.keys()
        if stored.get(batch, nothing) != expected.get(batch, nothing)
    }
    # What could not be told apart is left alone as a whole.
    return wrong or set(range(low, high + 1))


def _content(records: int, h1: int | None, h2: int | None) -> tuple[int, int, int]:
    return records, (h1 or 0) % _ALL, (h2 or 0) % _ALL


def _bounds(group: Sequence[File]) -> tuple[int, int]:
    return min(file.low for file in group), max(file.high for file in group)


def _ranges(batches: Collection[int]) -> list[tuple[int, int]]:
    """Batches as ranges, the first and the last of each."""
    found: list[tuple[int, int]] = []
    for batch in sorted(batches):
        if found and found[-1][1] == batch - 1:
            found[-1] = (found[-1][0], batch)
        else:
            found.append((batch, batch))
    return found


def _cells(expected: ExpectedContent, size: Mapping[int, float], sizes: Sizes) -> dict[int, Cells]:
    """The cells that are to be dealt: one a worker, but of those who need several files."""
    return {
        worker: expected.times_of(worker) if count * size[worker] > sizes.file else [((), count)]
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


def _seat(seats: FileAssignment, tape: Tape) -> Column:
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
