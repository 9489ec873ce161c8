"""Compaction of settled records: groups them by worker, ordered by time.

Records are compared with the index while they are written. Damaged batches are reported and left
unchanged for inspection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.errors.shell_command import command
from capstan.maintenance.compaction import replace_files
from capstan.maintenance.expected_content import Cells, content, expected_content, settled_batch
from capstan.spark.versions_api import repartition_by_number
from capstan.storage.compaction.growing_tables import files_of
from capstan.storage.compaction.outcome import TableResult, repeat_until_done
from capstan.storage.compaction.policy import (
    Run,
    Sizes,
    TapeFile,
    runs_of,
    stretches,
    worth_writing,
)
from capstan.storage.delta.data_files import read_files
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.tape.fingerprint import record_hashes, sum_mod64
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.region_sql import integer_ranges, literal, region_sql
from capstan.storage.tape.tape import Tape, newest_cut


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """Files of a run, numbered from 0."""

    first: Mapping[int, int]  # the file of each worker's first records
    starts: Mapping[int, tuple[tuple[int, ...], ...]]  # first times of the later files of a worker
    count: int


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
    records = {worker: count for worker, (count, _, _) in expected.by("worker").items()}
    rows = read_files(spark, path, [file.path for file in group])
    size = row_bytes(group, records)
    # One cell per worker, or one per time for workers that need several files.
    cells = {
        worker: expected.times_of(worker) if count * size[worker] > sizes.file else [((), count)]
        for worker, count in records.items()
    }
    assignment = assign(cells, size, sizes)
    observed, measures = Observation(), _measures(rows, tape, retired)
    numbered = rows.observe(observed, *measures).withColumn("_file", _file_number(assignment, tape))
    sorted_rows = (
        repartition_by_number(numbered, assignment.count, "_file")
        .sortWithinPartitions("worker", "time", "batch", "pos")
        .drop("_file")
    )

    def check() -> None:
        totals = observed.get
        if content(totals["records"], totals["h1"], totals["h2"]) != expected.total:
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
    rows = read_files(spark, tape.paths.records, [file.path for file in group])
    totals = rows.groupBy("batch").agg(*_measures(rows, tape, retired)).collect()
    stored = {row["batch"]: content(row["records"], row["h1"], row["h2"]) for row in totals}
    expected, nothing = expected_content(tape, low, high, retired).by("batch"), content(0, 0, 0)
    damaged = {
        batch
        for batch in stored.keys() | expected.keys()
        if stored.get(batch, nothing) != expected.get(batch, nothing)
    }
    # If no single batch differs, the whole group is left alone.
    return damaged or set(range(low, high + 1))


def _bounds(group: Sequence[TapeFile]) -> tuple[int, int]:
    return min(file.low for file in group), max(file.high for file in group)


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


def row_bytes(files: Sequence[TapeFile], workers: Iterable[int]) -> dict[int, float]:
    """The estimated size of a record of each worker, from the files that may hold its records."""
    # If a worker's records are larger than its neighbours', their shared file exceeds its intended
    # size, and the next estimate for its workers is larger.
    order = sorted(workers)
    # Prefix sums: an entry at a worker counts from that worker on.
    size, rows = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for file in files:
        low, high = file.workers or (order[0], order[-1])
        first, after = bisect_left(order, low), bisect_right(order, high)
        for position, sign in ((first, 1), (after, -1)):
            size[position] += sign * file.bytes
            rows[position] += sign * file.rows
    totals = zip(order, accumulate(size), accumulate(rows), strict=False)
    return {worker: total / max(1, count) for worker, total, count in totals}


def assign(
    cells: Mapping[int, Cells], row_bytes: Mapping[int, float], sizes: Sizes
) -> FileAssignment:
    """Assign the records of a run to files."""
    first: dict[int, int] = {}
    starts: dict[int, tuple[tuple[int, ...], ...]] = {}
    number, shared = 0, 0.0
    for worker in sorted(cells):
        size = sum(records for _, records in cells[worker]) * row_bytes[worker]
        if shared and shared + size >= 2 * sizes.least:
            number, shared = number + 1, 0.0
        first[worker] = number
        if size < sizes.least:
            shared += size
            continue
        cuts = _cuts(cells[worker], row_bytes[worker], sizes.file)
        if cuts:
            starts[worker] = cuts
        number, shared = number + 1 + len(cuts), 0.0
    return FileAssignment(first, starts, number + 1 if shared else max(number, 1))


def _cuts(cells: Cells, row_bytes: float, most: int) -> tuple[tuple[int, ...], ...]:
    """The times at which to start a new file, so that all files have about the same size."""
    rows = sum(records for _, records in cells)
    files = max(1, -(-int(rows * row_bytes) // most))
    cuts: list[tuple[int, ...]] = []
    assigned = 0
    for (_, records), (time, _) in pairwise(cells):
        assigned += records
        if assigned * files >= rows * (len(cuts) + 1) and len(cuts) + 1 < files:
            cuts.append(time)
    return tuple(cuts)
