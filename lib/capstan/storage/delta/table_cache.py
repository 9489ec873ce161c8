"""Cache of opened tables, for a process that serves pages and for tables in an object store.

Opening a table means reading its log, and one page or run needs the same few tables many times. A
cached value is valid as long as the newest log entry is the same. In a folder, other processes do
not cache: they read each table as it is. In an object store a look at the newest entry is two
requests, and opening a table one for each commit since the last checkpoint.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from capstan.storage.lake import is_stored, newest_entry

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
# One run uses some twenty tables; the least recently used of a longer process are opened again.
_stored: VersionedCache[object] = VersionedCache(64)


def enable() -> None:
    """Enable the cache of this process, for the 1,024 most recently used values."""
    global _cache  # noqa: PLW0603  (per process, like the tables)
    _cache = _cache or VersionedCache(_CAPACITY)


def disable() -> None:
    """Disable the cache and drop its values."""
    global _cache  # noqa: PLW0603
    _cache = None


def is_enabled() -> bool:
    """Whether the cache of this process is enabled; tables in an object store are always cached."""
    return _cache is not None


def cached(kind: str, table: str, read: Callable[[], Value]) -> Value:
    """A value of some kind (a distinct word for each reader), cached until the log has a new entry.

    Exceptions of `read` are not cached.
    """
    cache = _cache_of(table)
    # The log may grow before it is read. Then the value is newer than its state, and read again.
    newest = newest_entry(table) if cache is not None else ""
    if cache is None or not newest:
        return read()
    value: Value = cache.get((kind, table), newest, read)  # type: ignore[assignment]
    return value


def keep(kind: str, table: str, version: int, value: Value) -> None:
    """Keep a value, never changed again, for `cached`, if the table still has this version."""
    cache = _cache_of(table)
    if cache is None:
        return
    newest = newest_entry(table, version)
    if newest.startswith(f"{version:020}."):
        cache.put((kind, table), newest, value)


def _cache_of(table: str) -> VersionedCache[object] | None:
    return _cache or (_stored if is_stored(table) else None)
