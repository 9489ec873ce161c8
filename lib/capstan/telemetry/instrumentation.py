"""Named points in a run, announced when they are reached.

A point lies between two writes: `capture.records`, `replay.claim`, `replay.publish`. The command
line subscribes to show progress; the crash tests subscribe to kill the process there. The run
itself never depends on its subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Facts = dict[str, Any]
"""The facts of a point by name; each point has its own."""
Listener = Callable[[str, Facts], None]

# A plain list, not a context variable: Structured Streaming calls back on a thread of its own.
_listeners: list[Listener] = []
# Those of one call, which other calls of the process do not reach. What a call has done in another
# thread runs in a copy of its context.
_of_call: ContextVar[tuple[Listener, ...]] = ContextVar("capstan listeners", default=())


def emit(point: str, **facts: object) -> None:
    """Announce to all subscribers that `point` was reached, with its facts."""
    for listener in (*_listeners, *_of_call.get()):
        listener(point, facts)


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Call `listener` for every point that is reached inside the `with` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def subscribe_call(listener: Listener) -> Iterator[None]:
    """Call `listener` for every point that this call reaches inside the `with` block."""
    token = _of_call.set((*_of_call.get(), listener))
    try:
        yield
    finally:
        _of_call.reset(token)
