"""Which rows go into which file: a worker's own where it has enough of them, in order of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from capstan.maintenance.compaction_policy import File, Sizes

Cells = Sequence[tuple[tuple[int, ...], int]]
"""Times of one worker in ascending order, each with its number of records."""


@dataclass(frozen=True, slots=True)
class FileAssignment:
    """Files of a run, numbered from 0.

    Attributes:
        first: By worker, the file that its first records go into.
        steps: By worker that has several files, the first time of each file after its first.
        count: How many files there are.
    """

    first: Mapping[int, int]
    steps: Mapping[int, tuple[tuple[int, ...], ...]]
    count: int


def row_bytes(files: Sequence[File], workers: Iterable[int]) -> dict[int, float]:
    """How large a record of each worker is: of the files that may have some of it.

    Where a worker's records are larger than its neighbours', the file that it shares with them is
    larger than it was meant to be, and tells so of those in it the next time.
    """
    order = sorted(workers)
    # What is added at a worker counts from it on.
    size, rows = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for file in files:
        low, high = file.workers or (order[0], order[-1])
        first, after = bisect_left(order, low), bisect_right(order, high)
        for place, sign in ((first, 1), (after, -1)):
            size[place] += sign * file.bytes
            rows[place] += sign * file.rows
    pairs = zip(order, accumulate(size), accumulate(rows), strict=False)
    return {worker: of / max(1, count) for worker, of, count in pairs}


def assign(
    cells: Mapping[int, Cells], row_bytes: Mapping[int, float], sizes: Sizes
) -> FileAssignment:
    """Deal the records of a run to files.

    Args:
        cells: By worker, its times and how many records each has.
        row_bytes: By worker, how large a record is.
        sizes: How large files are.
    """
    first: dict[int, int] = {}
    steps: dict[int, tuple[tuple[int, ...], ...]] = {}
    seat, shared = 0, 0.0
    for worker in sorted(cells):
        size = sum(records for _, records in cells[worker]) * row_bytes[worker]
        if shared and shared + size >= 2 * sizes.least:
            seat, shared = seat + 1, 0.0
        first[worker] = seat
        if size < sizes.least:
            shared += size
            continue
        cuts = _cuts(cells[worker], row_bytes[worker], sizes.file)
        if cuts:
            steps[worker] = cuts
        seat, shared = seat + 1 + len(cuts), 0.0
    return FileAssignment(first, steps, seat + 1 if shared else max(seat, 1))


def _cuts(cells: Cells, row_bytes: float, most: int) -> tuple[tuple[int, ...], ...]:
    """The times at which a new file begins, so that all files are about as large."""
    rows = sum(records for _, records in cells)
    wanted = max(1, -(-int(rows * row_bytes) // most))
    found: list[tuple[int, ...]] = []
    seen = 0
    for (_, records), (time, _) in pairwise(cells):
        seen += records
        if seen * wanted >= rows * (len(found) + 1) and len(found) + 1 < wanted:
            found.append(time)
    return tuple(found)
