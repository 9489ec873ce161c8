"""Values computed from all files of a table, which are computed again from the new files alone.

A process that serves pages keeps them: after a commit it reads what that commit added. The value
must not depend on the order of the files, nor on how they are split into portions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache, is_enabled
from capstan.storage.lake import newest_entry

Parts = Mapping[str, pa.Table]
"""A value as Arrow tables by name."""

AddFiles = Callable[[Parts, OpenedTable, Sequence[str]], Parts]
"""Makes a value of an earlier one, without parts at first, and of some files of a table."""


@dataclass(frozen=True, slots=True)
class PartialRead:
    """A value computed from some files of a table."""

    table: str  # its Delta id; empty for none
    files: frozenset[str]
    parts: Parts


_NOTHING = PartialRead("", frozenset(), {})
_values: VersionedCache[PartialRead] = VersionedCache(1024)


def read_incrementally(kind: str, path: str, add: AddFiles) -> Parts:
    """The value of some kind (a distinct word for each `add`) for the newest version of a table."""
    if not is_enabled():
        return _read(path, _NOTHING, add).parts
    key = kind, path

    def read() -> PartialRead:
        return _read(path, _values.last(key) or _NOTHING, add)

    # The log may grow before it is read. Then the value is newer than its state, and read again.
    return _values.get(key, newest_entry(path), read).parts


def _read(path: str, earlier: PartialRead, add: AddFiles) -> PartialRead:
    opened = delta.open_table(path)
    table, files = str(opened.metadata().id), frozenset(map(unquote, opened.file_uris()))
    if earlier.table != table or not earlier.files <= files:
        # Compacted; or a table made anew.
        earlier = _NOTHING
    return PartialRead(table, files, add(earlier.parts, opened, sorted(files - earlier.files)))
