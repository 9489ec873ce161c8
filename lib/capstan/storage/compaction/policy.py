"""Compaction policy: selects files worth rewriting from their bounds and sizes alone.

A *run* is a set of files that cover adjacent batches (in the index: commits) without other files
between them: the output of one batch, or of an earlier compaction. Settled runs are merged with
their direct neighbours only, so runs never overlap.

Each row is rewritten about once, because

- small runs wait until together they make `full` bytes or `many` files;
- a merged run is merged again only into one `fan` times its size, and never once it has `full`
  bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Thresholds for rewriting files, and target sizes, in bytes and counts."""

    file: int = 128 * MIB
    full: int = 64 * MIB
    share: int = 4 * MIB  # that each worker should have in a full run
    least: int = MIB  # a worker with less than this in a run shares its file with others
    many: int = 64  # this many files are rewritten, however small they are
    fan: int = 16  # a run is merged only into one at least this many times its size
    most: int = 8192 * MIB  # bytes written in one commit
    count: int = 4096  # files removed in one commit

    def whole(self, workers: int) -> int:
        """The size from which on a run with this number of workers is never rewritten."""
        return max(self.full, workers * self.share)


INDEX = Sizes(many=32, fan=4)
"""Sizes for tables with a row per event or step: read often, and cheap to rewrite."""

SMALL = 16 * MIB
"""Up to this size, files are rewritten in the memory of one process."""

OF_CAPTURES = replace(INDEX, full=SMALL // 2, most=SMALL, count=512)
"""Sizes for what a capture rewrites, in its own memory."""


@dataclass(frozen=True, slots=True)
class TapeFile:
    """A data file of a table, as described by its log."""

    path: str
    bytes: int
    rows: int
    low: int
    high: int
    workers: tuple[int, int] | None = None  # its least and greatest; None if rows have no worker
    partition: int = 0  # from 0; rows stay in theirs

    @property
    def mixed(self) -> bool:
        """Whether the file has rows of several workers."""
        return self.workers is not None and self.workers[0] < self.workers[1]


@dataclass(frozen=True)
class Run:
    """Files that cover adjacent batches; see `runs_of`."""

    files: tuple[TapeFile, ...]

    @cached_property
    def low(self) -> int:
        """The least batch."""
        return min(file.low for file in self.files)

    @cached_property
    def high(self) -> int:
        """The greatest batch."""
        return max(file.high for file in self.files)

    @cached_property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def single(self) -> bool:
        """Whether the run has a single batch, so nothing was merged yet."""
        return self.low == self.high

    def is_sound(self, sizes: Sizes) -> bool:
        """Whether workers have separate files, and there are no more files than needed."""
        if any(file.mixed and file.bytes >= 2 * sizes.least for file in self.files):
            return False
        needed = len({worker for file in self.files for worker in file.workers or ()}) or 1
        return len(self.files) <= needed + 2 * (self.bytes // sizes.file)

    def is_final(self, sizes: Sizes, workers: int) -> bool:
        """Whether the run is never rewritten again."""
        return self.bytes >= sizes.whole(workers) and self.is_sound(sizes)


def runs_of(files: Iterable[TapeFile]) -> list[Run]:
    """The runs of a table, in the order of their batches."""
    runs: list[list[TapeFile]] = []
    high = -1
    for file in sorted(files, key=lambda file: (file.low, file.high)):
        if runs and file.low <= high:
            runs[-1].append(file)
            high = max(high, file.high)
        else:
            runs.append([file])
            high = file.high
    return [Run(tuple(run)) for run in runs]


def worth_writing(
    runs: Sequence[Run], sizes: Sizes, workers: int = 1, *, ended: bool = False
) -> list[tuple[TapeFile, ...]]:
    """The groups of files to rewrite, one a commit; when `ended`, files wait for no more rows."""
    return [
        tuple(file for run in part for file in run.files)
        for stretch in stretches(runs, lambda run: run.is_final(sizes, workers))
        for piece in _unblocked(stretch, sizes)
        for part in _parts(piece, sizes)
        if _is_worth(part, sizes, workers, ended=ended)
    ]


def worth_writing_apart(
    files: Sequence[TapeFile], sizes: Sizes, *, ended: bool = False
) -> list[tuple[TapeFile, ...]]:
    """The groups of files to rewrite of a table without workers; rows stay in their partition."""
    return [
        group
        for partition in sorted({file.partition for file in files})
        for group in worth_writing(
            runs_of(file for file in files if file.partition == partition), sizes, ended=ended
        )
    ]


def _is_worth(part: Sequence[Run], sizes: Sizes, workers: int, *, ended: bool) -> bool:
    if len(part) == 1 and part[0].is_sound(sizes):
        return False
    files = sum(len(run.files) for run in part)
    return ended or files >= sizes.many or _bytes(part) >= sizes.whole(workers)


def _unblocked(stretch: Sequence[Run], sizes: Sizes) -> Iterator[Sequence[Run]]:
    """The pieces of a stretch in which no run would be merged too early."""
    total = _bytes(stretch)

    def waits(run: Run) -> bool:
        return not run.single and run.is_sound(sizes) and run.bytes * sizes.fan > total

    pieces = stretches(stretch, waits)
    if sum(map(len, pieces)) == len(stretch):
        yield from pieces
        return
    for piece in pieces:
        yield from _unblocked(piece, sizes)


def stretches(runs: Sequence[Run], is_excluded: Callable[[Run], bool]) -> list[Sequence[Run]]:
    """Stretches of neighbouring runs between the excluded ones."""
    return [list(stretch) for excluded, stretch in groupby(runs, is_excluded) if not excluded]


def _parts(piece: Sequence[Run], sizes: Sizes) -> Iterator[Sequence[Run]]:
    """Split a piece into parts that fit into one commit."""
    part: list[Run] = []
    size = files = 0
    for run in piece:
        size, files = size + run.bytes, files + len(run.files)
        if part and (size > sizes.most or files > sizes.count):
            yield part
            part, size, files = [], run.bytes, len(run.files)
        part.append(run)
    if part:
        yield part


def _bytes(runs: Iterable[Run]) -> int:
    return sum(run.bytes for run in runs)
