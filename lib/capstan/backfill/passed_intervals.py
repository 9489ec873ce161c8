"""Intervals of a stream that its frontier has passed, in batches: the partitions of its asset.

A batch follows from the commits of the tape and from the batch before it. So who keeps the last
batch that was told neither loses an interval nor tells one twice, wherever it is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Self

from capstan.core.config import Partitions, Stream
from capstan.core.times import Antichain
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.bounds import box_of
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape

BATCH = 500
"""The most intervals of a batch: Airflow takes them in one transaction."""

_ALL = -1  # in place of a worker: the whole stream
_LONGEST = 250  # Airflow's bound on keys
# The forms of keys, and lengths that end in the next one of a form; None for the declared length.
_LENGTHS = {
    "%Y-%m-%dT%H:%M:%S": None,
    "%Y-%m-%dT%H": timedelta(hours=1),
    "%Y-%m-%d": timedelta(days=1),
    "%Y-%m": timedelta(days=31),
    "%Y": timedelta(days=366),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ToldIntervals:
    """How far the intervals of a stream are told."""

    tape: str  # its identity: a new tape is told from its start
    before: int | None  # the commit whose intervals were all told before
    cut: int  # the commit whose intervals are being told, by their starts and then by worker
    start: int  # the last one that was told, in microseconds
    worker: int
    left: int  # how many there are after it

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """What `to_json` has made; None if it is anything else."""
        known = isinstance(value, Mapping) and value.keys() == cls.__dataclass_fields__.keys()
        return cls(**value) if known else None  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """It as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PassedIntervals:
    """A batch of intervals to tell, as keys, and how far they are told then."""

    keys: tuple[str, ...]
    told: ToldIntervals


def next_passed(lake: Lake, stream: Stream, told: ToldIntervals | None) -> PassedIntervals | None:
    """The next batch of a stream's passed intervals; None when all are told."""
    assert stream.partitions is not None
    tape = open_tape(lake, stream.name)
    if told is not None and told.tape != tape.identity:
        told = None
    if told is not None and told.left:
        before, cut = told.before, told.cut
    else:
        before, cut = None if told is None else told.cut, newest_cut(tape).commit
    every = stream.partitions.every // _MICROSECOND
    ranges = _ranges(tape, stream.partitions, before, cut)
    if told is not None and told.left:
        ranges = {n: (_after(told, n, low, every), high) for n, (low, high) in ranges.items()}
    found = merge(*(_starts(worker, *bounds, every) for worker, bounds in ranges.items()))
    chosen = list(islice(found, BATCH))
    if not chosen:
        # The declaration may have changed while some were left.
        return next_passed(lake, stream, replace(told, left=0)) if told and told.left else None
    labels = index.worker_labels(tape, Cut(cut, -1))
    count = sum(max(high - low, 0) // every for low, high in ranges.values())
    keys = tuple(interval_key(start, labels.get(worker)) for start, worker in chosen)
    reached = ToldIntervals(tape.identity, before, cut, *chosen[-1], count - len(chosen))
    return PassedIntervals(keys, reached)


def interval_key(start: int, label: str | None = None) -> str:
    """The key of an interval: its start in UTC, after a worker's label if it is of one worker."""
    moment = (_EPOCH + start * _MICROSECOND).replace(tzinfo=None).isoformat(timespec="seconds")
    if label is None:
        return moment
    # Mappers take a key apart at each `|`.
    key = f"{label.replace('%', '%25').replace('|', '%7C')}|{moment}"
    if len(key) > _LONGEST:
        raise InvalidRequestError(
            "CAP-PARTITIONS",
            f"the label of worker {label[:80]!r} is too long for a partition key, which Airflow "
            f"bounds at {_LONGEST} characters",
            "leave `workers` out of the stream's `partitions`",
            worker=label[:80],
        )
    return key


def key_fields(key: str, every: timedelta | None) -> dict[str, str | list[str]]:
    """The bounds that a partition key names, and its worker if it has one, as fields of a request.

    Args:
        key: A key of `interval_key`, or of a mapper: an hour, a day, a month or a year.
        every: The length of the stream's partitions, if it declares any.
    """
    label, joint, text = key.rpartition("|")
    for form, length in _LENGTHS.items():
        with suppress(ValueError, OverflowError):
            since = datetime.strptime(text, form).replace(tzinfo=UTC)
            if length is not None:
                later = (since + length).strftime(form)
                until = datetime.strptime(later, form).replace(tzinfo=UTC)
            elif every is not None:
                until = since + every
            else:
                break
            bounds = {"since": since.isoformat(), "until": until.isoformat()}
            worker = label.replace("%7C", "|").replace("%25", "%")
            return {**bounds, "workers": [worker]} if joint else {**bounds}
    raise InvalidRequestError(
        "CAP-PARTITIONS",
        f"partition key {key[:80]!r} names no interval of this stream",
        "use the start of one of its declared `partitions`, such as 2026-01-05T10:00:00; or an "
        "hour, a day, a month or a year, such as 2026-01-05T10, 2026-01-05, 2026-01 or 2026",
        key=key[:80],
    )


def _starts(worker: int, low: int, high: int, every: int) -> Iterator[tuple[int, int]]:
    return ((start, worker) for start in range(low, high, every))


def _after(told: ToldIntervals, worker: int, low: int, every: int) -> int:
    """The first start of a worker's that comes after the last one told, from `low` on."""
    least = told.start if worker > told.worker else told.start + 1
    return max(low, -(-least // every) * every)


def _ranges(
    tape: Tape, partitions: Partitions, before: int | None, cut: int
) -> dict[int, tuple[int, int]]:
    """The range that the stream, and each worker, has passed from one commit to another.

    A worker that came between them begins where the stream was. One that has ended passes the last
    time of the stream, once.
    """
    every = partitions.every // _MICROSECOND
    first = _first(tape, partitions)
    if first is None:
        return {}
    state = index.tape_state(tape, Cut(cut, -1))
    ends = _frontiers(tape, state, workers=partitions.workers)
    begins: Mapping[int, int | None] = dict.fromkeys(ends, first)
    if before is not None:
        earlier = index.tape_state(tape, Cut(before, -1))
        known = _frontiers(tape, earlier, workers=partitions.workers)
        begins = {worker: known.get(worker, known[_ALL]) for worker in ends}
    last = first if state.greatest is None else state.greatest + every
    ranges = {}
    for worker, end in ends.items():
        begin = begins[worker]
        if begin is not None:
            low, high = max(begin, first), last if end is None else end
            ranges[worker] = (low // every * every, high // every * every)
    return ranges


def _frontiers(tape: Tape, state: index.TapeState, *, workers: bool) -> dict[int, int | None]:
    """The time up to which the stream, and each worker, is complete; None where it has ended."""
    leading = tape.time_type.leading

    def least(frontier: Antichain) -> int | None:
        return min((time[leading] for time in frontier), default=None)

    own = {each.worker: least(each.frontier) for each in state.workers} if workers else {}
    return {_ALL: least(index.frontier_of(tape, state.workers)), **own}


def _first(tape: Tape, partitions: Partitions) -> int | None:
    """The first time to tell of; None while there is no record."""
    if partitions.since is not None:
        return (partitions.since - _EPOCH) // _MICROSECOND
    # By the bounds of files, whatever the length of the tape.
    boxes = (
        box_of(row, tape.time_type)
        for row in delta.open_table(tape.paths.events).files().to_pylist()
    )
    firsts = (box.since[tape.time_type.leading] for box in boxes)
    return min((first for first in firsts if first is not None), default=None)
