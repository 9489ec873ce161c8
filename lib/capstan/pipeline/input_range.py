"""Times that a run of a pipeline reads, and the times of the outputs that it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import END
from capstan.pipeline.operators.time_buffer import units

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Reach:
    """The range of a run. The times of its coordinate are integers.

    Attributes:
        time_type: Coordinates of the stream's time.
        coordinate: Position of the coordinate that the operators use as their time.
        reads: Times of the records to read, if they are complete.
        writes: Times of the outputs to keep: those of the requested range that no later record can
            change. Only the pipeline's coordinate is bounded.
        last: The watermark after the last record: `END` only if the range has no end, and no
            further record can arrive.
        complete: Whether all times to read are complete, so that the whole range is written.
    """

    time_type: TimeType
    coordinate: int
    reads: Box
    writes: Box
    last: int
    complete: bool

    @property
    def since(self) -> int | None:
        """First time of the outputs to keep; None for no bound."""
        return self.writes.since[self.coordinate]

    @property
    def until(self) -> int | None:
        """First time after the outputs to keep; None for no bound."""
        return self.writes.until[self.coordinate]


def coordinate_of(pipeline: Pipeline, time_type: TimeType) -> int:
    """Return the position of the coordinate that a pipeline uses as its time."""
    if pipeline.coordinate is not None:
        return time_type.index(pipeline.coordinate)
    if len(time_type.coordinates) == 1:
        return 0
    if "event" not in time_type.names:
        raise pipeline.refusal(f"must declare which of {', '.join(time_type.names)} is its time")
    return time_type.index("event")


def reach_of(pipeline: Pipeline, time_type: TimeType, box: Box, frontier: Antichain) -> Reach:
    """Return the times that a run over a range reads and writes.

    Args:
        box: The requested range.
        frontier: Common frontier of the chosen workers; empty when all are closed.

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


def resuming(reach: Reach, read: int) -> Reach:
    """Return the range of a run after an earlier one, which has read all times before `read`."""
    since = _at(reach.reads.since, reach.coordinate, read)
    return replace(reach, reads=Box(since, reach.reads.until))


def _last(reads: Box, at: int, frontier: Antichain, *, complete: bool) -> int:
    end = reads.until[at]
    if complete and end is not None:
        return end
    # Elements beyond another bound contribute nothing to the range.
    marks = [element[at] for element in frontier if complete or _is_inside(reads, element, at)]
    return min([*marks, *([] if end is None else [end])], default=END)


def _is_inside(reads: Box, element: tuple[int, ...], at: int) -> bool:
    return all(
        bound is None or value < bound
        for i, (value, bound) in enumerate(zip(element, reads.until, strict=True))
        if i != at
    )


def _bounds(time_type: TimeType, at: int) -> tuple[int, int]:
    declared = time_type.coordinates[at]
    if declared.kind is Kind.BIGINT:
        return _LEAST, _MOST
    # Bounds of dates and timestamps become literals, which end in the year 9999.
    return declared.minimum, declared.parse("9999-12-31")


def _at(bound: tuple[int | None, ...], at: int, value: int | None) -> tuple[int | None, ...]:
    return (*bound[:at], value, *bound[at + 1 :])
