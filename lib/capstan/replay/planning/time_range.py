"""The requested range of a replay, in the times of its stream's tape."""

from __future__ import annotations

from capstan.core.times import Box
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.tape.grains import require_whole_steps
from capstan.storage.tape.tape import Tape


def requested_box(tape: Tape, request: Request) -> Box:
    """The times of a request: its bounds, restricted to those known at an epoch.

    Raises:
        InvalidRequestError: `CAP-TIME`; `CAP-GRAIN` for a bound within a step of the stream's
            times; `CAP-RANGE` for an empty range; `CAP-KNOWN-AT` when times have no epoch.
    """
    bounds = [Box.bound_of_text(tape.time_type, text) for text in (request.since, request.until)]
    require_whole_steps(tape, *bounds)
    box = Box(*bounds)
    if request.known_at is not None:
        box = box.intersect(_known(tape, request.known_at))
    if box.intersect(Box(tape.time_type.minimum, box.until)).is_empty:
        raise InvalidRequestError(
            "CAP-RANGE",
            f"the range from {request.since} to {request.until} is empty or reversed",
            "give its first time, and the first time after it",
        )
    return box


def _known(tape: Tape, epoch: int) -> Box:
    """The times up to an epoch."""
    names = tape.time_type.names
    if "epoch" not in names:
        raise InvalidRequestError(
            "CAP-KNOWN-AT",
            f"times of stream {tape.name} have no epoch: {', '.join(names)}",
            "leave out --known-at, or name a commit of the tape with --as-of",
            stream=tape.name,
        )
    past = tape.time_type.coordinates[names.index("epoch")].parse(epoch) + 1
    until = tuple(past if name == "epoch" else None for name in names)
    return Box((None,) * len(names), until)
