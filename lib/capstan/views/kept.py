"""What was read stays in memory while the tables it was read from have not changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Found = TypeVar("Found")

_MOST = 256


@dataclass(slots=True)
class Kept(Generic[Found]):
    """The newest value for each key, with the state of what it was read from.

    Threads may use it at once; two that miss both read, and the later one's value stays.
    """

    _values: OrderedDict[Hashable, tuple[object, Found]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, state: object, read: Callable[[], Found]) -> Found:
        """The value of a key, read again where the state is another one.

        Args:
            key: What is asked for.
            state: Compared with the state in which the value was read.
            read: Reads the value; what it raises is not kept.
        """
        with self._lock:
            known = self._values.get(key)
            if known is not None and known[0] == state:
                self._values.move_to_end(key)
                return known[1]
        value = read()
        with self._lock:
            self._values[key] = state, value
            self._values.move_to_end(key)
            while len(self._values) > _MOST:
                self._values.popitem(last=False)
        return value
