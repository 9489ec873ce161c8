"""Work that is done while other work is at a named point."""

from __future__ import annotations

from collections.abc import Callable


class Between:
    """Does some work at a point of other work, once: between its reading and its commit."""

    def __init__(self, point: str, work: Callable[[], object]) -> None:
        self.point, self.work, self.done = point, work, False

    def __call__(self, point: str, _: dict[str, object]) -> None:
        if point == self.point and not self.done:
            self.done = True
            self.work()
