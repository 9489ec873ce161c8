"""Cases of the crash tests: work that a driver is killed in, each in its own lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from tests.support.driver_under_test import Step


# The second micro-batch opens a worker; the third does not move the watermark.
CAPTURE_POINTS = (
    "capture.claim:1",
    "capture.workers:1",
    "capture.records:1",
    "capture.late:1",
    "capture.events:1",
    "capture.claim:2",
    "capture.workers:2",
    "capture.records:3",
    "capture.late:3",
    "capture.events:3",
)
"""Write points of a capture of the small stream."""

REPLAY_POINTS = (
    "verify.ledger",
    "replay.claim",
    "replay.target",
    "replay.intent",
    "replay.files",
    "replay.staging",
    "replay.audit",
    "replay.holds",
    "replay.publish",
    "replay.coverage",
    "replay.certificate",
)
"""Write points of a staged replay of the small stream."""

ROLLBACK_POINTS = (
    "rollback.claim",
    "rollback.holds",
    "rollback.publish",
    "rollback.coverage",
    "rollback.ledger",
)
"""Write points of a rollback."""


class Place(Protocol):
    """Place of work."""

    def step(self, action: str, point: str = "", **more: object) -> Step:
        """An action at this place, for a driver that is killed at `point`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An action that runs to its end.

    Attributes:
        action: Name for `tests.support.driver_actions.act`.
        arguments: Its arguments, without the lake and its source.
    """

    action: str
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """An interrupted action, and the work before it.

    Attributes:
        action: Name for `tests.support.driver_actions.act`.
        point: Point of `capstan.telemetry.instrumentation` at which the driver is killed.
        arguments: Its arguments, without the lake and its source.
        name: Distinguishes it from other cases at the same point.
        world: Fixture that makes its lakes.
        before: Work that the same driver does first.
    """

    action: str
    point: str
    arguments: dict[str, object] = field(default_factory=dict)
    name: str = ""
    world: str = "recorded"
    before: Sequence[Asked | Work] = ()

    @property
    def case(self) -> str:
        """Its name as a test case."""
        return f"{self.name}-{self.point}" if self.name else self.point

    def script(self, place: Place) -> Iterator[Step]:
        """The steps of a driver that is killed at the end."""
        for earlier in self.before:
            if isinstance(earlier, Work):
                yield from earlier.script(place)
            else:
                yield place.step(earlier.action, "", **earlier.arguments)
        yield place.step(self.action, self.point, **self.arguments)

    def after(self, *before: Asked | Work) -> Work:
        """The same work, with more before it."""
        return replace(self, before=(*before, *self.before))


def cases(
    works: Iterable[Work],
    *,
    core: Iterable[str] = (),
    night: Iterable[str] = (),
    stored: Iterable[str] = (),
) -> list[ParameterSet]:
    """Cases of a test with the parameter `work`.

    Args:
        works: Interrupted work of each case.
        core: Cases that run for each change, with a JVM that dies too; all others are marked
            `rest` and use a shared JVM.
        night: Cases left to the nightly tests, since other cases cover the same points.
        stored: Cases that `make test-all` repeats on S3: two of each kind of work.
    """
    selected = []
    for work in works:
        marks = [] if work.case in core else [pytest.mark.rest]
        marks += [pytest.mark.nightly] if work.case in night else []
        marks += [pytest.mark.stored] if work.case in stored else []
        selected.append(pytest.param(work, marks=marks, id=work.case))
    return selected
