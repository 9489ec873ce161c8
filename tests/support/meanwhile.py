"""Something that is done at a named point, while the one who has reached it waits there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from capstan.telemetry.instrumentation import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def meanwhile(point: str, do: Callable[[], object]) -> Iterator[None]:
    """Do something when a point is reached for the first time, which it has to be."""
    done: list[str] = []

    def listen(reached: str, _facts: dict[str, object]) -> None:
        if reached == point and not done:
            done.append(reached)
            do()

    with subscribe(listen):
        yield
    assert done == [point]
