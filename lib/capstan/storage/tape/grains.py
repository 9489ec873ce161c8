"""Ranges of whole grains: of the steps of a stream's times, and of what a transform needs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from capstan.core.config import format_duration
from capstan.core.times import Bound, Coordinate, Kind
from capstan.errors import InvalidRequestError
from capstan.storage.tape.tape import Tape


def require_whole_steps(tape: Tape, *bounds: Bound) -> None:
    """Check that bounds of a range are times that a record of the stream can have.

    A record's time is the step that it falls into: within a step, records cannot be told apart.

    Raises:
        InvalidRequestError: `CAP-GRAIN`, with the nearest times that are.
    """
    last = tape.time_type.coordinates[-1]
    require_multiples(f"stream {tape.name} has times", last, (b[-1] for b in bounds), tape.step)


def require_multiples(
    what: str, coordinate: Coordinate, bounds: Iterable[int | None], grain: int
) -> None:
    """Check that bounds in one coordinate are whole multiples of a grain.

    Args:
        what: What has the grain, as the beginning of a sentence.
        coordinate: The coordinate.
        bounds: The bounds; None is unbounded.
        grain: The grain, in the coordinate's own integers.

    Raises:
        InvalidRequestError: `CAP-GRAIN`, with the nearest bounds that are.
    """
    for bound in bounds:
        if bound is not None and bound % grain:
            below = bound - bound % grain
            near = [coordinate.render(value) for value in (below, below + grain)]
            raise InvalidRequestError(
                "CAP-GRAIN",
                f"{what} on whole multiples of {grain_text(coordinate.kind, grain)}, and "
                f"{coordinate.render(bound)} is none",
                f"the nearest are {near[0]} and {near[1]}",
            )


def grain_text(kind: Kind, grain: int) -> str:
    """A grain as a person writes it: a length where times are moments, else a number."""
    if kind is not Kind.TIMESTAMP:
        return str(grain)
    return format_duration(timedelta(microseconds=grain))
