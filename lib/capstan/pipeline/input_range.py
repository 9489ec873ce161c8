"""Which times a run of a pipeline reads, and the times of which outputs it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import END
from capstan.pipeline.operators.time_buffer import units

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Reach:
    """A range as a pipeline plays it. Times of one coordinate are integers, as everywhere.

    Attributes:
        time_type: The coordinates of the stream's time.
        coordinate: The position of the one that the operators take as their time.
        reads: The times whose records are read, if they are complete.
        writes: The times whose outputs are kept: of the range that was asked for those that
            nothing still to come can change. Only the pipeline's coordinate is bounded.
        last: The watermark after the last record: `END` only where nothing can ever come any
            more, and the range has no end.
        complete: Whether all that is read is complete, and so the whole range is written.
    """

    time_type: TimeType
    coordinate: int
    reads: Box
    writes: Box
    last: int
    complete: bool

    @property
    def since(self) -> int | None:
        """The first time of outputs that are kept; None where there is no bound."""
        return self.writes.since[self.coordinate]

    @property
    def until(self) -> int | None:
        """The first time of outputs that are no longer kept; None where there is no bound."""
        return self.writes.until[self.coordinate]


def coordinate_of(pipeline: Pipeline, time_type: TimeType) -> int:
    """The position of the coordinate that a pipeline takes as its time.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when it names none and there are several, `CAP-TIME`
            when there is none of that name.
    """
    if pipeline.coordinate is not None:
        return time_type.index(pipeline.coordinate)
    if len(time_type.coordinates) == 1:
        return 0
    if "event" not in time_type.names:
        raise pipeline.refusal(f"has to say which of {', '.join(time_type.names)} is its time")
    return time_type.index("event")


def reach_of(pipeline: Pipeline, time_type: TimeType, box: Box, frontier: Antichain) -> Reach:
    """What a run over a range reads and writes.

    Args:
        pipeline: What runs.
        time_type: The coordinates of the stream's time.
        box: The range that is asked for.
        frontier: Of the chosen workers together; empty where they are all closed.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` or `CAP-TIME`, as `coordinate_of`.
    """
    at = coordinate_of(pipeline, time_type)
    since, until = box.since[at], box.until[at]
    back, ahead = units(pipeline.lookback), units(pipeline.lookahead)
    low, high = _bounds(time_type, at)
    first = None if since is None or pipeline.unbounded else max(low, since - back)
    end = None if until is None else min(high, until + ahead)
    reads = Box(_at(box.since, at, first), _at(box.until, at, end))
    complete = reads.is_complete(frontier)
    last = _last(reads, at, frontier, complete=complete)
    if last < END and not (complete and until is not None):
        settled = max(_LEAST, last - ahead)
        until = settled if until is None else min(until, settled)
    unbounded = (None,) * len(box.since)
    writes = Box(_at(unbounded, at, since), _at(unbounded, at, until))
    return Reach(time_type, at, reads, writes, last, complete)


def everything(time_type: TimeType, coordinate: int = 0) -> Reach:
    """All times of workers that are all closed."""
    box = Box.everything(time_type)
    return Reach(time_type, coordinate, box, box, END, complete=True)


def resuming(reach: Reach, read: int) -> Reach:
    """The same reach after an earlier run, which has read all before `read`."""
    since = _at(reach.reads.since, reach.coordinate, read)
    return replace(reach, reads=Box(since, reach.reads.until))


def within(reach: Reach, since: int | None, until: int | None) -> Reach:
    """The same reading, of which only outputs at these times are kept."""
    unbounded = (None,) * len(reach.writes.since)
    at = reach.coordinate
    return replace(reach, writes=Box(_at(unbounded, at, since), _at(unbounded, at, until)))


def _last(reads: Box, at: int, frontier: Antichain, *, complete: bool) -> int:
    end = reads.until[at]
    if complete and end is not None:
        return end
    # Elements beyond another bound bring nothing more into the range.
    marks = [element[at] for element in frontier if complete or _within(reads, element, at)]
    return min([*marks, *([] if end is None else [end])], default=END)


def _within(reads: Box, element: tuple[int, ...], at: int) -> bool:
    return all(
        bound is None or value < bound
        for i, (value, bound) in enumerate(zip(element, reads.until, strict=True))
        if i != at
    )


def _bounds(time_type: TimeType, at: int) -> tuple[int, int]:
    declared = time_type.coordinates[at]
    if declared.kind is Kind.BIGINT:
        return _LEAST, _MOST
    # Bounds of dates and timestamps become literals, which end with the year 9999.
    return declared.minimum, declared.parse("9999-12-31")


def _at(bound: tuple[int | None, ...], at: int, value: int | None) -> tuple[int | None, ...]:
    return (*bound[:at], value, *bound[at + 1 :])
