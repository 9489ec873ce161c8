"""Values computed from all files of a table, which are computed again from the new files alone.

A process that serves pages keeps them, also on disk for the next process: after a commit it reads
what that commit added. The value must not depend on the order of the files, nor on how they are
split into portions. When files were merged meanwhile, the log tells which, so that their rows are
not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from capstan.storage.delta import delta
from capstan.storage.delta.kept_on_disk import KeptValue
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache, is_enabled, kept_values
from capstan.storage.lake import exists, newest_entry

Parts = Mapping[str, pa.Table]
"""A value as Arrow tables by name."""

AddFiles = Callable[[Parts, OpenedTable, Sequence[str]], Parts]
"""Makes a value of an earlier one, without parts at first, and of some files of a table."""


@dataclass(frozen=True, slots=True)
class PartialRead:
    """A value computed from some files of a table."""

    table: str  # its Delta id; empty for none
    version: int
    files: frozenset[str]  # as its log names them
    rows: int
    parts: Parts


_NOTHING = PartialRead("", -1, frozenset(), 0, {})
# After more commits than these, reading all files costs no more than their log entries.
_MOST_COMMITS = 256
_FILES = "files"
# A value with more bytes is kept on disk again only when this share of its rows is new.
_SMALL = 1 << 20
_SHARE = 16
_values: VersionedCache[PartialRead] = VersionedCache(1024)
# The rows of the tables whose values are kept on disk.
_saved: dict[tuple[str, str], int] = {}


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
            _saved[key] = earlier.rows
            if state == newest:
                return earlier
        value = _read(path, earlier or _NOTHING, add)
        fresh = abs(value.rows - _saved.get(key, 0))
        size = sum(part.nbytes for part in value.parts.values())
        # What was written before it was read is of another state.
        if newest_entry(path) == newest and (size <= _SMALL or fresh * _SHARE >= value.rows):
            kept.save(kind, path, newest, _kept(value))
            _saved[key] = value.rows
        return value

    # The log may grow before it is read. Then the value is newer than its state, and read again.
    return _values.get(key, newest, read).parts


def _kept(value: PartialRead) -> KeptValue:
    files = pa.table({_FILES: pa.array(sorted(value.files), pa.string())})
    facts = {"table": value.table, "version": value.version, "rows": value.rows}
    return KeptValue(facts, {**value.parts, _FILES: files})


def _parse(kept: KeptValue) -> PartialRead:
    files = frozenset(kept.parts[_FILES][_FILES].to_pylist())
    parts = {name: part for name, part in kept.parts.items() if name != _FILES}
    table, version, rows = (kept.facts.get(name, 0) for name in ("table", "version", "rows"))
    return PartialRead(table, version, files, rows, parts)


def _read(path: str, earlier: PartialRead, add: AddFiles) -> PartialRead:
    opened = delta.open_table(path)
    actions = pa.table(opened.get_add_actions())
    table, files = str(opened.metadata().id), frozenset[str](actions["path"].to_pylist())
    if earlier.table != table:
        # A table made anew.
        earlier = _NOTHING
    fresh: frozenset[str] | None = files - earlier.files
    if not earlier.files <= files:
        fresh = _fresh_files(path, earlier, opened, files)
    if fresh is None:
        earlier, fresh = _NOTHING, files
    parts = add(earlier.parts, opened, [delta.resolve_path(path, file) for file in sorted(fresh)])
    return PartialRead(
        table, opened.version(), files, sum(delta.stat(actions, "num_records")), parts
    )


def _fresh_files(
    path: str, earlier: PartialRead, opened: OpenedTable, files: frozenset[str]
) -> frozenset[str] | None:
    """The files with rows that are new since an earlier read; some may be merged by now.

    None if that cannot be told: rows were deleted, or the log or a merged file is gone.
    """
    newest = opened.version()
    if not 0 <= earlier.version <= newest <= earlier.version + _MOST_COMMITS:
        return None
    present, unread = set(earlier.files), set[str]()
    for version in range(earlier.version + 1, newest + 1):
        try:
            actions = list(delta.read_commit(path, version))
        except FileNotFoundError:
            return None
        for action in actions:
            for kind in {"add", "remove"} & action.keys():
                name = action[kind]["path"]
                if kind == "add":
                    present.add(name)
                    unread |= {name} if action[kind]["dataChange"] else set()
                elif action[kind]["dataChange"]:
                    return None
                else:
                    present.discard(name)
    merged = [delta.resolve_path(path, file) for file in unread - files]
    return frozenset(unread) if present == files and all(map(exists, merged)) else None
