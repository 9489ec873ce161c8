"""Compaction of settled records: groups them by worker, ordered by time.

Records are compared with the index while they are written. Damaged batches are reported and left
unchanged for inspection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.errors.shell_command import command
from capstan.maintenance.compaction import TableResult, repeat_until_done, replace_files
from capstan.maintenance.compaction_policy import (
    Run,
    Sizes,
    TapeFile,
    runs_of,
    stretches,
    worth_writing,
)
from capstan.maintenance.expected_content import (
    ExpectedContent,
    expected_by_batch,
    expected_content,
    settled_batch,
)
from capstan.maintenance.file_layout import Cells, FileAssignment, assign, row_bytes
from capstan.maintenance.table_catalog import files_of
from capstan.storage.delta.file_rewrite import rows_of_files
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.tape.fingerprint import record_hashes, sum_mod64
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.region_sql import integer_ranges, literal, region_sql
from capstan.storage.tape.tape import Tape, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ALL = 2**64


def compact_records(spark: SparkSession, lake: Lake, tape: Tape, sizes: Sizes) -> TableResult:
    """Compact the settled records of a tape, by worker and time."""
    result, damaged = TableResult("records"), set[int]()

    def step() -> bool | None:
        files = files_of(tape.paths.records, "batch", by_worker=True)
        if files is None:
            return None
        result.observe(files)
        groups = _groups(tape, files, sizes, damaged)
        retired = retired_boxes(lake, tape)
        for group in groups:
            try:
                if not _cluster(spark, tape, group, retired, sizes, result):
                    return False
            except CheckFailedError:
                damaged.update(_damaged(spark, tape, group, retired))
        return True if groups else None

    repeat_until_done(tape.paths.records, step)
    result.damaged = integer_ranges(sorted(damaged))
    return result


def _groups(
    tape: Tape, files: Sequence[TapeFile], sizes: Sizes, damaged: Collection[int]
) -> list[tuple[TapeFile, ...]]:
    """The settled files worth rewriting, without damaged batches."""
    cut = newest_cut(tape)
    states = worker_states(tape, cut)
    runs = runs_of(files)
    pending = min((run.low for run in runs if not run.is_final(sizes, len(states))), default=None)
    if pending is None:
        return []
    last = settled_batch(tape, cut, states, pending)
    ended = all(state.closed for state in states)
    settled = [run for run in runs if run.high <= last]

    def is_damaged(run: Run) -> bool:
        return any(run.low <= batch <= run.high for batch in damaged)

    return [
        group
        for stretch in stretches(settled, is_damaged)
        for group in worth_writing(stretch, sizes, len(states), ended=ended)
    ]


def _cluster(
    spark: SparkSession,
    tape: Tape,
    group: Sequence[TapeFile],
    retired: Sequence[Box],
    sizes: Sizes,
    result: TableResult,
) -> bool:
    """Rewrite records by worker and time; False if others have replaced some of the files."""
    path, low, high = tape.paths.records, *_bounds(group)
    expected = expected_content(tape, low, high, retired)
    rows = rows_of_files(spark, path, [file.path for file in group])
    size = row_bytes(group, expected.records)
    assignment = assign(_cells(expected, size, sizes), size, sizes)
    observed, measures = Observation(), _measures(rows, tape, retired)
    sorted_rows = (
        rows.observe(observed, *measures)
        .withColumn("_file", _file_number(assignment, tape))
        .repartitionById(assignment.count, F.col("_file"))
        .sortWithinPartitions("worker", "time", "batch", "pos")
        .drop("_file")
    )

    def check() -> None:
        totals = observed.get
        if _content(totals["records"], totals["h1"], totals["h2"]) != expected.content:
            raise CheckFailedError(
                "CAP-TAPE",
                f"stream {tape.name}: records of batches {low} to {high} differ from its index",
                f"see {command('verify', tape.name, '--deep')}",
                stream=tape.name,
            )

    return replace_files(spark, path, group, sorted_rows, result, check)


def _damaged(
    spark: SparkSession, tape: Tape, group: Sequence[TapeFile], retired: Sequence[Box]
) -> set[int]:
    """The batches of a group whose records differ from the index."""
    low, high = _bounds(group)
    rows = rows_of_files(spark, tape.paths.records, [file.path for file in group])
    totals = rows.groupBy("batch").agg(*_measures(rows, tape, retired)).collect()
    stored = {row["batch"]: _content(row["records"], row["h1"], row["h2"]) for row in totals}
    expected, nothing = expected_by_batch(tape, low, high, retired), _content(0, 0, 0)
    damaged = {
        batch
        for batch in stored.keys() | expected.keys()
        if stored.get(batch, nothing) != expected.get(batch, nothing)
    }
    # If no single batch differs, the whole group is left alone.
    return damaged or set(range(low, high + 1))


def _content(records: int, h1: int | None, h2: int | None) -> tuple[int, int, int]:
    return records, (h1 or 0) % _ALL, (h2 or 0) % _ALL


def _bounds(group: Sequence[TapeFile]) -> tuple[int, int]:
    return min(file.low for file in group), max(file.high for file in group)


def _cells(expected: ExpectedContent, size: Mapping[int, float], sizes: Sizes) -> dict[int, Cells]:
    """The cells to assign: one per worker, or one per time for workers that need several files."""
    return {
        worker: expected.times_of(worker) if count * size[worker] > sizes.file else [((), count)]
        for worker, count in expected.records.items()
    }


def _measures(rows: DataFrame, tape: Tape, retired: Sequence[Box]) -> list[Column]:
    """Count and content hashes of records, without those about to be deleted."""
    h1, h2 = record_hashes(rows)
    regions = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    kept = F.expr(" AND ".join(f"NOT ({region})" for region in regions) or "true")
    return [
        F.count(F.when(kept, 1)).alias("records"),
        sum_mod64(F.when(kept, h1)).alias("h1"),
        sum_mod64(F.when(kept, h2)).alias("h2"),
    ]


def _file_number(assignment: FileAssignment, tape: Tape) -> Column:
    """The file of each record; records of unknown workers go into the first."""
    pairs = [F.lit(part) for pair in assignment.first.items() for part in pair]
    if not pairs:
        return F.lit(0)
    number = F.coalesce(F.try_element_at(F.create_map(*pairs), F.col("worker")), F.lit(0))
    for worker, starts in assignment.starts.items():
        for start in starts:
            fields = ", ".join(
                f"'{c.name}', {literal(c, value)}"
                for c, value in zip(tape.time_type.coordinates, start, strict=True)
            )
            later = F.expr(f"worker = {worker} AND time >= named_struct({fields})")
            number = number + F.when(later, 1).otherwise(0)
    return number
