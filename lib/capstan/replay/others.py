"""What others than runs have done to a target since: from its log, without reading a row.

An entry of the log tells who has made it, and which files it has put there and taken away. The
bounds that Delta keeps of those files tell which workers and times it has touched, and maybe more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import unquote

import pyarrow as pa

from capstan.errors import Broken
from capstan.ledger.claims import Scope
from capstan.ledger.coverage import Covered
from capstan.replay.plan import Plan
from capstan.tape import delta
from capstan.tape.files import bound_integer
from capstan.times import Box, Kind
from capstan.times.region import Region

_DAY = 86_400_000_000
_MILLISECOND = 1_000

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """A commit of somebody else to a target, as far as it has touched its rows.

    Attributes:
        version: The version of the target that it made.
        operation: What it was, as Delta calls it: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
        at: When it was made.
        workers: Whose rows it may have touched; None for those of anybody.
        region: At which times.
    """

    version: int
    operation: str
    at: datetime
    workers: frozenset[int] | None
    region: Region

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.at:%Y-%m-%d %H:%M:%S})"


def changes_of_others(plan: Plan, since: int) -> Iterator[Change]:
    """What others have done to the rows of a plan's target, in the order of its versions.

    Of entries that the log does not have any more nothing is told. What only moves rows from file
    to file, or changes no file, has touched none.

    Args:
        plan: Whose target it is, and how that keeps worker and time.
        since: The version after which it is told.
    """
    for commit in reversed(delta.commits_since(plan.target, since)):
        if not delta.note_of(commit):
            yield from _changes(plan, commit)


def changes_since(plan: Plan, covered: Sequence[Covered]) -> tuple[Change, ...]:
    """What others have done since to rows that runs have covered, and no run has put right since.

    Args:
        plan: Whose target it is.
        covered: What stands there.
    """
    if not covered:
        return ()
    found = changes_of_others(plan, min(each.target_version for each in covered))
    return tuple(each for each in found if _last_of(each, plan, covered))


def _last_of(change: Change, plan: Plan, covered: Sequence[Covered]) -> bool:
    """Whether a change is the last word on some of what was covered, as far as bounds tell."""
    touched = Scope(
        plan.target, None if change.workers is None else tuple(change.workers), change.region
    )
    met = [each.target_version for each in covered if each.scope.meets(touched)]
    return bool(met) and max(met) < change.version


def _changes(plan: Plan, commit: Row) -> Iterator[Change]:
    version = int(str(commit["version"]))
    added, removed = _changed_files(plan.target, version)
    if not added and not removed:
        return
    at = datetime.fromtimestamp(int(str(commit.get("timestamp") or 0)) / 1000, UTC)
    told = version, str(commit.get("operation") or "unknown"), at
    rows = [*_rows_of(plan.target, version, added), *_rows_of(plan.target, version - 1, removed)]
    if len(rows) < len(added) + len(removed):
        # Of a file whose entry is gone nothing is known.
        rows.append({})
    for workers, region in dict.fromkeys((_workers(plan, row), _region(plan, row)) for row in rows):
        yield Change(*told, workers, region)


def _changed_files(path: str, version: int) -> tuple[set[str], set[str]]:
    """The files that a commit has put into a table and taken away, as far as rows have changed."""
    found: dict[str, set[str]] = {"add": set(), "remove": set()}
    for entry in delta.entry_of(path, version):
        for what, files in found.items():
            action = entry.get(what)
            if isinstance(action, Mapping) and action.get("dataChange", True):
                files.add(unquote(str(action["path"])))
    return found["add"], found["remove"]


def _rows_of(path: str, version: int, files: set[str]) -> list[Row]:
    """What the log knows of files of a version of a table, as `get_add_actions` flattens it."""
    if not files:
        return []
    try:
        actions = delta.open_table(path, version).get_add_actions(flatten=True)
    except Broken:
        return []  # The log does not go back to that version any more.
    return [row for row in pa.table(actions).to_pylist() if unquote(str(row["path"])) in files]


def _workers(plan: Plan, row: Row) -> frozenset[int] | None:
    """The worker that all rows of a file are of; None where that is not known."""
    name = plan.layout.worker
    value = row.get(f"partition.{name}")
    if value is None and row.get(f"min.{name}") == row.get(f"max.{name}"):
        value = row.get(f"min.{name}")
    if isinstance(value, str):
        return frozenset(n for n, label in plan.layout.labels.items() if label == value) or None
    return frozenset({value}) if isinstance(value, int) else None


def _region(plan: Plan, row: Row) -> Region:
    """The times that the rows of a file lie in."""
    bounds = [_bounds(plan, row, axis) for axis in range(len(plan.time_type.coordinates))]
    since, until = zip(*bounds, strict=True)
    return Region(Box(tuple(since), tuple(until)))


def _bounds(plan: Plan, row: Row, axis: int) -> tuple[int | None, int | None]:
    """The first value of a coordinate in a file, and the first one after its last."""
    coordinate, name = plan.time_type.coordinates[axis], plan.layout.time
    own = f"{name}.{coordinate.name}"
    place = own if f"min.{own}" in row else name
    low, high = row.get(f"min.{place}"), row.get(f"max.{place}")
    first, last = _integer(low, coordinate.kind), _integer(high, coordinate.kind)
    if isinstance(high, datetime) and last is not None:
        last += _MILLISECOND  # The bounds of timestamps are cut to milliseconds.
    elif isinstance(high, date) and last is not None and coordinate.kind is Kind.TIMESTAMP:
        last += _DAY - 1
    every = plan.layout.every
    return first if first is None else first - first % every, None if last is None else last + 1


def _integer(bound: object, kind: Kind) -> int | None:
    days = isinstance(bound, date) and not isinstance(bound, datetime)
    found = bound_integer(bound)
    return found * _DAY if days and found is not None and kind is Kind.TIMESTAMP else found
