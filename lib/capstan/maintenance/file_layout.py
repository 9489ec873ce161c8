"""Assignment of rows to files: one worker per file if volume allows, ordered by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from capstan.maintenance.compaction_policy import Sizes, TapeFile

Cells = Sequence[tuple[tuple[int, ...], int]]
"""The times of one worker in ascending order, each with its number of records."""


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """Files of a run, numbered from 0."""

    first: Mapping[int, int]  # the file of each worker's first records
    starts: Mapping[int, tuple[tuple[int, ...], ...]]  # first times of the later files of a worker
    count: int


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
