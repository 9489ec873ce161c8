"""Cache of opened tables.

Opening a table means reading its log, and one page or run needs the same few tables many times. A
cached value is valid as long as the newest log entry is the same. In a folder a look at it takes a
tenth of a millisecond, and opening a table six; in an object store it is two requests, and opening
a table two for each commit since the last checkpoint. A process that serves pages caches more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from capstan.core.json_object import Json
from capstan.storage.delta.kept_on_disk import KeptValues
from capstan.storage.lake import newest_entry

Value = TypeVar("Value")


@dataclass(slots=True)
class VersionedCache(Generic[Value]):
    """The newest value for each key with the state it was read in; thread-safe.

    If several threads miss the same key, one reads and the others wait. The least recently used are
    evicted.
    """

    capacity: int = 256
    _values: OrderedDict[Hashable, tuple[object, Value]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # One lock per key, which lives as long as a thread waits for it.
    _key_locks: WeakValueDictionary[Hashable, threading.Lock] = field(
        default_factory=WeakValueDictionary
    )

    def get(self, key: Hashable, state: object, read: Callable[[], Value]) -> Value:
        """The value of a key, read again if the state has changed.

        Exceptions of `read` are not cached. It must not get the same key.
        """
        with self._lock:
            entry = self._entry(key, state)
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        if entry is not None:
            return entry[1]
        with key_lock:
            with self._lock:
                entry = self._entry(key, state)
            if entry is not None:
                return entry[1]
            value = read()
            self.put(key, state, value)
        return value

    def last(self, key: Hashable) -> Value | None:
        """The value of a key, whatever its state; None without one."""
        entry = self.entry(key)
        return None if entry is None else entry[1]

    def entry(self, key: Hashable) -> tuple[object, Value] | None:
        """The state and the value of a key; None without them."""
        with self._lock:
            return self._values.get(key)

    def drop(self, key: Hashable, value: Value) -> None:
        """Forget a value, unless the key has another one."""
        with self._lock:
            entry = self._values.get(key)
            if entry is not None and entry[1] is value:
                del self._values[key]

    def put(self, key: Hashable, state: object, value: Value) -> None:
        """Keep the value of a key in a state."""
        with self._lock:
            self._values[key] = state, value
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def _entry(self, key: Hashable, state: object) -> tuple[object, Value] | None:
        entry = self._values.get(key)
        if entry is None or entry[0] != state:
            return None
        self._values.move_to_end(key)
        return entry


_CAPACITY = 1024
_cache: VersionedCache[object] | None = None
_kept: KeptValues | None = None
# One run uses some twenty tables; the least recently used of a longer process are opened again.
_few: VersionedCache[object] = VersionedCache(64)


def enable(folder: Path | None = None) -> None:
    """Let this process cache the 1,024 most recently used values, and rows too.

    What it reads of tables is kept in a folder of the user for the next process, if one is given.
    """
    global _cache, _kept  # noqa: PLW0603  (per process, like the tables)
    _cache = _cache or VersionedCache(_CAPACITY)
    _kept = None if folder is None else KeptValues(folder)


def disable() -> None:
    """Cache few values again, and drop the others."""
    global _cache, _kept  # noqa: PLW0603
    _cache = _kept = None


def kept_values() -> KeptValues | None:
    """What earlier processes have kept on disk; None if this one uses none of it."""
    return _kept


def kept_facts(kind: str, table: str, state: Sequence[str], read: Callable[[], Json]) -> Json:
    """Facts about a table that were read when some logs had these newest entries, or later.

    They are kept on disk until one has another entry, if this process keeps anything there.
    """
    return read() if _kept is None else _kept.of_state(kind, table, "\n".join(state), read)


def is_enabled() -> bool:
    """Whether this process caches many values, and rows too."""
    return _cache is not None


def cached(kind: str, table: str, read: Callable[[], Value]) -> Value:
    """A value of some kind (a distinct word for each reader), cached until the log has a new entry.

    Exceptions of `read` are not cached.
    """
    # The log may grow before it is read. Then the value is newer than its state, and read again.
    newest = newest_entry(table)
    if not newest:
        return read()
    value: Value = (_cache or _few).get((kind, table), newest, read)  # type: ignore[assignment]
    return value


def last(kind: str, table: str) -> tuple[str, Any] | None:
    """The value of some kind that was cached last, after the log entry that it was read at."""
    entry = (_cache or _few).entry((kind, table))
    return None if entry is None else (str(entry[0]), entry[1])


def drop(kind: str, table: str, value: object) -> None:
    """Forget a value, unless another one has been cached."""
    (_cache or _few).drop((kind, table), value)


def keep(kind: str, table: str, version: int, value: Value, *, own: bool = True) -> None:
    """Keep a value for `cached` that its maker no more changes, if the table has this version."""
    newest = newest_entry(table, version if own else None)
    if newest.startswith(f"{version:020}."):
        (_cache or _few).put((kind, table), newest, value)
