"""Work that a driver is killed in, each in a lake of its own: cases of the crash tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from tests.support.driver_under_test import Step


class Place(Protocol):
    """Where work is done."""

    def step(self, action: str, point: str = "", **more: object) -> Step:
        """An action there, for a driver that is killed at `point`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An action that is carried out to its end.

    Attributes:
        action: As `tests.support.driver_actions.act` takes it.
        arguments: The same, but for the lake and its source.
    """

    action: str
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """An action that is cut off, and what comes before it.

    Attributes:
        action: As `tests.support.driver_actions.act` takes it.
        point: The point of `capstan.instrumentation` at which its driver is killed.
        arguments: Of the action, but for the lake and its source.
        name: Tells it from others that are cut off at the same point.
        world: The fixture that makes lakes such as it is done in.
        before: What the same driver does first.
    """

    action: str
    point: str
    arguments: dict[str, object] = field(default_factory=dict)
    name: str = ""
    world: str = "recorded"
    before: Sequence[Asked | Work] = ()

    @property
    def case(self) -> str:
        """Its name as the case of a test."""
        return f"{self.name}-{self.point}" if self.name else self.point

    def script(self, place: Place) -> Iterator[Step]:
        """What a driver does there that is killed in the end."""
        for each in self.before:
            if isinstance(each, Work):
                yield from each.script(place)
            else:
                yield place.step(each.action, "", **each.arguments)
        yield place.step(self.action, self.point, **self.arguments)

    def after(self, *before: Asked | Work) -> Work:
        """The same, with more before it."""
        return replace(self, before=(*before, *self.before))


def cases(
    works: Iterable[Work], *, core: Iterable[str] = (), night: Iterable[str] = ()
) -> list[ParameterSet]:
    """Cases of a test that takes `work`.

    Args:
        works: What is cut off in each.
        core: The cases that run at each change, with a JVM that dies as well; all others are of
            the rest, with one that lives on.
        night: Those that are left to the night, since the same points are also cut off elsewhere.
    """
    found = []
    for work in works:
        marks = [] if work.case in core else [pytest.mark.rest]
        marks += [pytest.mark.nightly] if work.case in night else []
        found.append(pytest.param(work, marks=marks, id=work.case))
    return found
