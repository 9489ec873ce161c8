"""Tables that stay open between two looks at them, in a process that shows pages.

To open a table is to read its log, and one page asks the same few tables many times. What was read
is of use as long as the newest entry of the log is the same; where it is not, all is read again.
Other processes keep nothing: what they read lies there as they read it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from capstan.storage.lake import newest_entry

Found = TypeVar("Found")


@dataclass(slots=True)
class VersionedCache(Generic[Found]):
    """The newest value for each key, with the state of what it was read from.

    Threads may use it at once: of several that miss the same one reads, and the others wait for it.

    Attributes:
        most: How many values are kept; of more, those that were asked for last.
    """

    most: int = 256
    _values: OrderedDict[Hashable, tuple[object, Found]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # A gate is there as long as somebody stands before it.
    _gates: WeakValueDictionary[Hashable, threading.Lock] = field(
        default_factory=WeakValueDictionary
    )

    def get(self, key: Hashable, state: object, read: Callable[[], Found]) -> Found:
        """The value of a key, read again where the state is another one.

        Args:
            key: What is asked for.
            state: Compared with the state in which the value was read.
            read: Reads the value; what it raises is not kept. It must not ask for its own key.
        """
        with self._lock:
            known = self._known(key, state)
            gate = self._gates.setdefault(key, threading.Lock())
        if known is not None:
            return known[1]
        with gate:
            with self._lock:
                known = self._known(key, state)
            if known is not None:
                return known[1]
            value = read()
            with self._lock:
                self._values[key] = state, value
                self._values.move_to_end(key)
                while len(self._values) > self.most:
                    self._values.popitem(last=False)
        return value

    def _known(self, key: Hashable, state: object) -> tuple[object, Found] | None:
        known = self._values.get(key)
        if known is None or known[0] != state:
            return None
        self._values.move_to_end(key)
        return known


_MOST = 1024
_kept: VersionedCache[object] | None = None


def enable() -> None:
    """From now on keep what is read of tables: the last 1,024."""
    global _kept  # noqa: PLW0603  (of the process, as the tables are)
    _kept = _kept or VersionedCache(_MOST)


def disable() -> None:
    """Keep nothing any more."""
    global _kept  # noqa: PLW0603
    _kept = None


def keeping() -> bool:
    """Whether what is read is kept."""
    return _kept is not None


def cached(what: str, table: str, read: Callable[[], Found]) -> Found:
    """What is read of a table, or was, while its log has had no other newest entry.

    Args:
        what: What is read of it: another word for each reader.
        table: Its path.
        read: Reads it; what it raises is not kept.
    """
    store = _kept
    # The log may grow before it is read: then this is newer than it says, and read once more.
    newest = newest_entry(table) if store is not None else ""
    if store is None or not newest:
        return read()
    found: Found = store.get((what, table), newest, read)  # type: ignore[assignment]
    return found
