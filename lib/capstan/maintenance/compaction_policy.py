"""What of a table is worth writing anew: pure arithmetic over the bounds and sizes of its files.

A *run* is files whose batches (in the index: commits) follow each other without a file of others
among them: what one batch left, or what an earlier compaction has made of many. Runs that have
settled are put together, next neighbours only, so that runs never overlap.

Each row is written anew about once, as

- small runs wait until they are worth a run of `full` bytes, or until there are `many` files;
- a run that was put together from others is taken up again only into one `fan` times its size, and
  never once it has `full` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """When something is worth to be written anew, and how large files become; bytes and counts.

    Attributes:
        file: How large a file may be.
        full: How large a run has to be so that it is left alone for good.
        share: How much each worker should have of a full run.
        least: A worker that has less of a run shares its file with others.
        many: So many files are written anew, however small they are.
        fan: A run is taken up only into one that is so many times its size.
        most: At most so much is written in one commit.
        count: At most so many files are taken out in one commit.
    """

    file: int = 128 * MIB
    full: int = 64 * MIB
    share: int = 4 * MIB
    least: int = MIB
    many: int = 64
    fan: int = 16
    most: int = 8192 * MIB
    count: int = 4096

    def whole(self, workers: int) -> int:
        """How large a run of so many workers has to be to be left alone."""
        return max(self.full, workers * self.share)


INDEX = Sizes(many=32, fan=4)
"""Sizes of tables that have a row per event or step: they are read often, and cost little."""


@dataclass(frozen=True, slots=True)
class File:
    """A data file of a table, as its log tells of it.

    Attributes:
        path: Its path within the table.
        bytes: Its size.
        rows: How many rows it has.
        low: Its least batch, or commit.
        high: Its greatest.
        workers: The least and the greatest worker in it; None where rows have none.
        partition: Which partition of its table it is in, from 0; rows stay in theirs.
    """

    path: str
    bytes: int
    rows: int
    low: int
    high: int
    workers: tuple[int, int] | None = None
    partition: int = 0

    @property
    def mixed(self) -> bool:
        """Whether it has rows of several workers."""
        return self.workers is not None and self.workers[0] < self.workers[1]


@dataclass(frozen=True)
class Run:
    """Files that belong together; `runs_of` makes them."""

    files: tuple[File, ...]

    @cached_property
    def low(self) -> int:
        """Its least batch."""
        return min(file.low for file in self.files)

    @cached_property
    def high(self) -> int:
        """Its greatest batch."""
        return max(file.high for file in self.files)

    @cached_property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)

    @property
    def single(self) -> bool:
        """Whether it is of one batch alone: nothing was put together yet."""
        return self.low == self.high

    def is_sound(self, sizes: Sizes) -> bool:
        """Whether a worker's rows are in files of its own, and there are no more than it takes."""
        if any(file.mixed and file.bytes >= 2 * sizes.least for file in self.files):
            return False
        needed = len({worker for file in self.files for worker in file.workers or ()}) or 1
        return len(self.files) <= needed + 2 * (self.bytes // sizes.file)

    def is_final(self, sizes: Sizes, workers: int) -> bool:
        """Whether it is left alone for good."""
        return self.bytes >= sizes.whole(workers) and self.is_sound(sizes)


def runs_of(files: Iterable[File]) -> list[Run]:
    """The runs of a table, in the order of their batches."""
    found: list[list[File]] = []
    high = -1
    for file in sorted(files, key=lambda file: (file.low, file.high)):
        if found and file.low <= high:
            found[-1].append(file)
            high = max(high, file.high)
        else:
            found.append([file])
            high = file.high
    return [Run(tuple(files)) for files in found]


def worth_writing(
    runs: Sequence[Run], sizes: Sizes, workers: int = 1, *, ended: bool = False
) -> list[tuple[File, ...]]:
    """What of a table should be written anew: groups of files, one commit each.

    Args:
        runs: The settled runs of the table, in their order.
        sizes: When something is worth it.
        workers: How many workers the table's rows are of.
        ended: Whether nothing will come any more, so that nothing is worth waiting for.
    """
    return [
        tuple(file for run in part for file in run.files)
        for stretch in _split(runs, lambda run: run.is_final(sizes, workers))
        for piece in _unblocked(stretch, sizes)
        for part in _parts(piece, sizes)
        if _is_worth(part, sizes, workers, ended=ended)
    ]


def _is_worth(part: Sequence[Run], sizes: Sizes, workers: int, *, ended: bool) -> bool:
    if len(part) == 1 and part[0].is_sound(sizes):
        return False
    files = sum(len(run.files) for run in part)
    return ended or files >= sizes.many or _bytes(part) >= sizes.whole(workers)


def _unblocked(stretch: Sequence[Run], sizes: Sizes) -> Iterator[Sequence[Run]]:
    """The pieces of a stretch in which no run would be taken up before its turn."""
    whole = _bytes(stretch)

    def waits(run: Run) -> bool:
        return not run.single and run.is_sound(sizes) and run.bytes * sizes.fan > whole

    pieces = list(_split(stretch, waits))
    if sum(map(len, pieces)) == len(stretch):
        yield from pieces
        return
    for piece in pieces:
        yield from _unblocked(piece, sizes)


def _split(runs: Sequence[Run], leaves_out: Callable[[Run], bool]) -> Iterator[Sequence[Run]]:
    """Stretches of neighbours, between the runs that are left out."""
    stretch: list[Run] = []
    for run in runs:
        if leaves_out(run):
            if stretch:
                yield stretch
            stretch = []
        else:
            stretch.append(run)
    if stretch:
        yield stretch


def _parts(piece: Sequence[Run], sizes: Sizes) -> Iterator[Sequence[Run]]:
    """A piece in parts that one commit can take."""
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
