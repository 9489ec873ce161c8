"""Values computed from all files of a table, which are computed again from the new files alone.

A process that serves pages keeps them, also on disk for the next process: after a commit it reads
what that commit added. The value must not depend on the order of the files, nor on how they are
split into portions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from capstan.storage.delta import delta
from capstan.storage.delta.kept_on_disk import KeptValue
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache, is_enabled, kept_values
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
_FILES = "files"
# A value with more bytes is kept on disk again only when this share of its files is new.
_SMALL = 1 << 20
_SHARE = 16
_values: VersionedCache[PartialRead] = VersionedCache(1024)


def read_incrementally(kind: str, path: str, add: AddFiles) -> Parts:
    """The value of some kind (a distinct word for each `add`) for the newest version of a table."""
    if not is_enabled():
        return _read(path, _NOTHING, add).parts
    key, newest = (kind, path), newest_entry(path)

    def read() -> PartialRead:
        earlier, kept = _values.last(key), kept_values()
        if kept is None:
            return _read(path, earlier or _NOTHING, add)
        if earlier is None and (found := kept.load(kind, path)) is not None:
            state, earlier = found[0], _parse(found[1])
            if state == newest:
                return earlier
        value = _read(path, earlier or _NOTHING, add)
        fresh = len(value.files) - len(earlier.files if earlier else ())
        size = sum(part.nbytes for part in value.parts.values())
        # What was written before it was read is of another state.
        if newest_entry(path) == newest and (size <= _SMALL or fresh * _SHARE >= len(value.files)):
            kept.save(kind, path, newest, _kept(value))
        return value

    # The log may grow before it is read. Then the value is newer than its state, and read again.
    return _values.get(key, newest, read).parts


def _kept(value: PartialRead) -> KeptValue:
    files = pa.table({_FILES: pa.array(sorted(value.files), pa.string())})
    return KeptValue({"table": value.table}, {**value.parts, _FILES: files})


def _parse(kept: KeptValue) -> PartialRead:
    files = frozenset(kept.parts[_FILES][_FILES].to_pylist())
    parts = {name: part for name, part in kept.parts.items() if name != _FILES}
    return PartialRead(kept.facts["table"], files, parts)


def _read(path: str, earlier: PartialRead, add: AddFiles) -> PartialRead:
    opened = delta.open_table(path)
    table, files = str(opened.metadata().id), frozenset(map(unquote, opened.file_uris()))
    if earlier.table != table or not earlier.files <= files:
        # Compacted; or a table made anew.
        earlier = _NOTHING
    return PartialRead(table, files, add(earlier.parts, opened, sorted(files - earlier.files)))
