"""The requested range of a replay, in the times of its streams' tapes."""

from __future__ import annotations

from collections.abc import Sequence

from capstan.core.times import Box, TimeType
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.tape.grains import require_whole_steps
from capstan.storage.tape.tape import Tape

_INTERVAL = (
    "; if an Airflow template gave both, the run has no data interval: schedule its DAG with a "
    "CronDataIntervalTimetable (a cron text has none in Airflow 3), or replay by hand with params"
)


def requested_box(tapes: Sequence[Tape], time_type: TimeType, request: Request) -> Box:
    """The times of a request: its bounds, restricted to those known at an epoch.

    Args:
        time_type: The coordinates of their times.
    """
    bounds = [Box.bound_of_text(time_type, text) for text in (request.since, request.until)]
    for tape in tapes:
        require_whole_steps(tape, *bounds)
    box = Box(*bounds)
    if request.known_at is not None:
        box = box.intersect(_known(tapes[0].name, time_type, request.known_at))
    if box.intersect(Box(time_type.minimum, box.until)).is_empty:
        raise InvalidRequestError(
            "CAP-RANGE",
            f"the range from {request.since} to {request.until} is empty or reversed",
            "give its first time, and the first time after it"
            + _INTERVAL * (box.since == box.until),
        )
    return box


def _known(stream: str, time_type: TimeType, epoch: int) -> Box:
    """The times up to an epoch."""
    names = time_type.names
    if "epoch" not in names:
        raise InvalidRequestError(
            "CAP-KNOWN-AT",
            f"times of stream {stream} have no epoch: {', '.join(names)}",
            "leave out --known-at, or name a commit of the tape with --as-of",
            stream=stream,
        )
    past = time_type.coordinates[names.index("epoch")].parse(epoch) + 1
    until = tuple(past if name == "epoch" else None for name in names)
    return Box((None,) * len(names), until)
