"""Checks that range bounds are multiples of a grain: of a stream's times, or of a transform's."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from capstan.core.config import format_duration
from capstan.core.times import Bound, Coordinate, Kind
from capstan.errors import InvalidRequestError
from capstan.storage.tape.tape import Tape


def require_whole_steps(tape: Tape, *bounds: Bound) -> None:
    """Check that bounds of a range are possible times of the stream's records."""
    # A record's time is truncated to a step, so records within a step cannot be separated.
    last = tape.time_type.coordinates[-1]
    require_multiples(f"stream {tape.name} has times", last, (b[-1] for b in bounds), tape.step)


def require_multiples(
    subject: str, coordinate: Coordinate, bounds: Iterable[int | None], grain: int
) -> None:
    """Check that bounds in one coordinate are multiples of a grain; None is unbounded.

    `subject`, the owner of the grain with a verb, begins the error message.
    """
    for bound in bounds:
        if bound is not None and bound % grain:
            below = bound - bound % grain
            near = [coordinate.render(value) for value in (below, below + grain)]
            raise InvalidRequestError(
                "CAP-GRAIN",
                f"{subject} on whole multiples of {grain_text(coordinate.kind, grain)}, and "
                f"{coordinate.render(bound)} is not one",
                f"the nearest are {near[0]} and {near[1]}",
            )


def grain_text(kind: Kind, grain: int) -> str:
    """A grain as text: a duration for timestamps, else a number."""
    if kind is not Kind.TIMESTAMP:
        return str(grain)
    return format_duration(timedelta(microseconds=grain))
