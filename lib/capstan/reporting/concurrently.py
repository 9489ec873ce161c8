"""Reading of several things at once, such as tapes, of which each waits for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Read = TypeVar("Read")
_AT_ONCE = 8


def read_each(names: Iterable[str], read: Callable[[str], Read]) -> list[Read]:
    """What `read` gives for each name, in their order; what is known here is known to all."""
    listed = list(names)
    # A context is that of one thread at a time.
    contexts = [copy_context() for _ in listed]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name, own: own.run(read, name), listed, contexts))
