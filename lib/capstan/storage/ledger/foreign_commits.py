"""Commits of other writers to targets, from the Delta log and from the ledger `changes`.

Log entries are deleted after `delta.logRetentionDuration`. Maintenance records them in the ledger
before that. It also saves reading an entry twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import unquote

from capstan.errors import SystemFailureError
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import LedgerRow, append_rows, read_rows
from capstan.storage.tape.bounds import Bounds

_LEDGER = "changes"
_MAX_FILES = 64
"""No bounds are recorded for commits with more files of distinct bounds."""
_MAX_LENGTH = 64
"""Longer texts are not labels, and are not recorded."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A commit by another writer that changed rows of a table."""

    version: int
    operation: str  # Delta's name: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
    at: datetime
    files: tuple[Bounds, ...]  # bounds of those added and removed; empty bounds if unknown


def touched_since(lake: Lake, path: str, since: int) -> Iterator[Touched]:
    """Commits by other writers after version `since` that changed rows, in order of version.

    A commit that only moves rows between files changes none.
    """
    seen, recorded = _read_recorded(lake, path, delta.identity_of(path))
    yield from (commit for commit in recorded if commit.version > since)
    yield from _read_log(path, max(since, seen))


def note_touched(lake: Lake, path: str, since: int) -> int:
    """Record new commits by other writers after version `since`, and count them; idempotent."""
    newest = delta.version_of(path)
    if newest is None:
        return 0
    table = delta.identity_of(path)
    seen, _ = _read_recorded(lake, path, table)
    if newest <= max(seen, since):
        return 0
    commits = [c for c in _read_log(path, max(seen, since)) if c.version <= newest]
    rows = [
        {
            "target": path,
            "table": table,
            "version": commit.version,
            "operation": commit.operation,
            "made": commit.at,
            "files": _files_json(commit.files),
        }
        for commit in commits
    ]
    progress = {"target": path, "table": table, "version": newest, "made": datetime.now(UTC)}
    append_rows(lake, _LEDGER, [*rows, progress])
    return len(commits)


def _read_recorded(lake: Lake, path: str, table: str) -> tuple[int, list[Touched]]:
    """The last version of a table that was examined, and the commits recorded up to it."""
    rows = [row for row in read_rows(lake, _LEDGER, target=path) if row["table"] == table]
    seen = max((row["version"] for row in rows), default=-1)
    # Two concurrent processes may record a commit twice.
    by_version = {row["version"]: row for row in rows if row["operation"] is not None}
    return seen, [_parse_touched(row) for _, row in sorted(by_version.items())]


def _parse_touched(row: LedgerRow) -> Touched:
    files = tuple(
        {name: _decode_value(value) for name, value in bounds.items()}
        for bounds in json.loads(row["files"])
    )
    return Touched(row["version"], row["operation"], row["made"], files)


def _read_log(path: str, since: int) -> Iterator[Touched]:
    for commit in reversed(delta.commits_since(path, since)):
        files = () if commit.note else _file_bounds(path, commit.version)
        if files:
            yield Touched(commit.version, commit.operation or "unknown", commit.at, files)


def _file_bounds(path: str, version: int) -> tuple[Bounds, ...]:
    """The bounds of the files that a commit added and removed."""
    files: dict[str, set[str]] = {"add": set(), "remove": set()}
    for entry in delta.read_commit(path, version):
        for kind, names in files.items():
            action = entry.get(kind)
            if isinstance(action, Mapping) and action.get("dataChange", True):
                names.add(unquote(str(action["path"])))
    added, removed = files["add"], files["remove"]
    bounds = [*_version_bounds(path, version, added), *_version_bounds(path, version - 1, removed)]
    # Files without a log entry have no known bounds.
    return (*bounds, *([{}] if len(bounds) < len(added) + len(removed) else []))


def _version_bounds(path: str, version: int, files: set[str]) -> list[Bounds]:
    """Bounds of files in a version of a table."""
    if not files:
        return []
    try:
        listed = delta.open_table(path, version).files().to_pylist()
    except SystemFailureError:
        return []  # The log no longer goes back to that version.
    return [row for row in listed if unquote(str(row["path"])) in files]


def _files_json(files: Iterable[Bounds]) -> str:
    texts = {json.dumps(_encode_bounds(bounds), sort_keys=True) for bounds in files}
    return f"[{', '.join(sorted(texts))}]" if len(texts) <= _MAX_FILES else "[{}]"


def _encode_bounds(bounds: Bounds) -> dict[str, object]:
    """Bounds as JSON, only those of types that a worker or time can have."""
    encoded: dict[str, object] = {}
    for name, value in bounds.items():
        if not name.startswith(("min.", "max.", "partition.")) or isinstance(value, bool):
            continue
        if isinstance(value, date):
            kind = "moment" if isinstance(value, datetime) else "day"
            encoded[name] = {kind: value.isoformat()}
        elif isinstance(value, int) or (isinstance(value, str) and len(value) <= _MAX_LENGTH):
            encoded[name] = value
    return encoded


def _decode_value(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    [(kind, text)] = value.items()
    return datetime.fromisoformat(text) if kind == "moment" else date.fromisoformat(text)
