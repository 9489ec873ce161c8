"""Named points of the work, announced as they are reached.

A point is a place between two writes: `capture.records`, `replay.claim`, `replay.publish`. The
command line listens to show progress; the crash tests listen to kill the process there. Work
itself never depends on who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, dict[str, object]], None]

# A plain list, not a context variable: Structured Streaming calls back on a thread of its own.
_listeners: list[Listener] = []


def emit(point: str, **facts: object) -> None:
    """Tell whoever listens that `point` has been reached, with its facts."""
    for listener in tuple(_listeners):
        listener(point, facts)


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Call `listener` with every point that is reached inside the `with` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
