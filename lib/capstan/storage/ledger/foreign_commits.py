"""Commits of other writers to targets: from the log, and as maintenance has noted them.

A log loses its entries in time (`delta.logRetentionDuration`). Maintenance notes what it has seen
before, so that it stays known, and so that each entry is read once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import unquote

import pyarrow as pa

from capstan.errors import SystemFailureError
from capstan.storage import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import append_rows, read_rows

Bounds = Mapping[str, object]
"""What the log knows of a file's rows: `min.<column>`, `max.<column>`, `partition.<column>`."""

_LEDGER = "changes"
_MOST_FILES = 64
"""Of commits that have touched more kinds of files no bounds are noted."""
_LONGEST = 64
"""Longer texts are no labels, and are not noted."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A commit of somebody else that has changed rows of a table.

    Attributes:
        version: The version that it made.
        operation: What it was, as Delta calls it: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
        at: When it was made.
        files: The bounds of the files that it has put there and taken away; empty bounds stand
            for a file of which nothing is known.
    """

    version: int
    operation: str
    at: datetime
    files: tuple[Bounds, ...]


def touched_since(lake: Lake, path: str, since: int) -> Iterator[Touched]:
    """The commits of others that have changed rows of a table, in the order of its versions.

    What only moves rows from file to file has changed none.

    Args:
        lake: Whose ledger is read.
        path: The table.
        since: The version after which they are told.
    """
    seen, noted = _noted(lake, path)
    yield from (each for each in noted if each.version > since)
    yield from _in_log(path, max(since, seen))


def note_touched(lake: Lake, path: str, since: int) -> int:
    """Note what others have done to a table since the last time; the same again notes nothing.

    Args:
        lake: Whose ledger is written.
        path: The table.
        since: The version after which it is noted: the first one that a run has published.

    Returns:
        How many commits of others were noted.
    """
    seen, _ = _noted(lake, path)
    newest = delta.version_of(path)
    if newest is None or newest <= max(seen, since):
        return 0
    found = [each for each in _in_log(path, max(seen, since)) if each.version <= newest]
    table = str(delta.open_table(path).metadata().id)
    rows = [
        {
            "target": path,
            "table": table,
            "version": each.version,
            "operation": each.operation,
            "made": each.at,
            "files": _files_json(each.files),
        }
        for each in found
    ]
    looked = {"target": path, "table": table, "version": newest, "made": datetime.now(UTC)}
    append_rows(lake, _LEDGER, [*rows, looked])
    return len(found)


def _noted(lake: Lake, path: str) -> tuple[int, list[Touched]]:
    """The version up to which a table was looked at, and what was noted of it by then."""
    rows = read_rows(lake, _LEDGER, target=path)
    if not rows or not is_table(path):
        return -1, []
    table = str(delta.open_table(path).metadata().id)
    own = [row for row in rows if row["table"] == table]
    seen = max((int(str(row["version"])) for row in own), default=-1)
    # Two that look at once note the same twice.
    found = {int(str(row["version"])): row for row in own if row["operation"] is not None}
    return seen, [_touched(row) for _, row in sorted(found.items())]


def _touched(row: Mapping[str, object]) -> Touched:
    at = row["made"]
    assert isinstance(at, datetime)
    files = tuple(_decoded(bounds) for bounds in json.loads(str(row["files"])))
    return Touched(int(str(row["version"])), str(row["operation"]), at, files)


def _in_log(path: str, since: int) -> Iterator[Touched]:
    for commit in reversed(delta.commits_since(path, since)):
        version = int(str(commit["version"]))
        files = () if delta.note_of(commit) else _bounds_of(path, version)
        if files:
            at = datetime.fromtimestamp(int(str(commit.get("timestamp") or 0)) / 1000, UTC)
            yield Touched(version, str(commit.get("operation") or "unknown"), at, files)


def _bounds_of(path: str, version: int) -> tuple[Bounds, ...]:
    """The bounds of the files that a commit has put into a table and taken away."""
    files: dict[str, set[str]] = {"add": set(), "remove": set()}
    for entry in delta.entry_of(path, version):
        for what, names in files.items():
            action = entry.get(what)
            if isinstance(action, Mapping) and action.get("dataChange", True):
                names.add(unquote(str(action["path"])))
    added, removed = files["add"], files["remove"]
    found = [*_rows_of(path, version, added), *_rows_of(path, version - 1, removed)]
    # Of a file whose entry is gone nothing is known.
    return (*found, *([{}] if len(found) < len(added) + len(removed) else []))


def _rows_of(path: str, version: int, files: set[str]) -> list[Bounds]:
    """What the log knows of files of a version of a table, as `get_add_actions` flattens it."""
    if not files:
        return []
    try:
        actions = delta.open_table(path, version).get_add_actions(flatten=True)
    except SystemFailureError:
        return []  # The log does not go back to that version any more.
    return [row for row in pa.table(actions).to_pylist() if unquote(str(row["path"])) in files]


def _files_json(files: Iterable[Bounds]) -> str:
    kinds = {json.dumps(_encoded(bounds), sort_keys=True) for bounds in files}
    return f"[{', '.join(sorted(kinds))}]" if len(kinds) <= _MOST_FILES else "[{}]"


def _encoded(bounds: Bounds) -> dict[str, object]:
    """Bounds as JSON, without those that tell neither a worker nor a time."""
    found: dict[str, object] = {}
    for name, value in bounds.items():
        if not name.startswith(("min.", "max.", "partition.")) or isinstance(value, bool):
            continue
        if isinstance(value, date):
            kind = "moment" if isinstance(value, datetime) else "day"
            found[name] = {kind: value.isoformat()}
        elif isinstance(value, int) or (isinstance(value, str) and len(value) <= _LONGEST):
            found[name] = value
    return found


def _decoded(bounds: Mapping[str, object]) -> Bounds:
    return {name: _value(value) for name, value in bounds.items()}


def _value(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    [(kind, text)] = value.items()
    return datetime.fromisoformat(text) if kind == "moment" else date.fromisoformat(text)
