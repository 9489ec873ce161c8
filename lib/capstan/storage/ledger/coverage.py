"""The coverage ledger: the run and code that wrote each worker and time range of a target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from capstan.core.times import TimeType
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import parse_region, region_text, render_bounds
from capstan.storage.ledger.tables import LedgerRow, append_rows, as_text, read_rows, stored_target

PUBLISHED, COMPARED, ROLLED_BACK, GONE = "published", "compared", "rolled-back", "gone"
_ALIKE = ("run", "generation", "stream", "transform", "code", "cut", "target_version")
"""What the ledger has as `Covered` has it."""


@dataclass(frozen=True, slots=True)
class Covered:
    """One run's publish in a target.

    `compared` has what audits found whole of it after others had changed the target: the part, and
    the version of the target.
    """

    run: str
    generation: int
    stream: str
    scope: Scope
    transform: str  # or `<pipeline>.<sink>`; empty for a copy
    code: str  # the hash; empty for a copy
    cut: int  # the commit of the tape that was replayed
    target_version: int
    compared: tuple[tuple[Scope, int], ...] = ()
    table: str = ""  # the target's Delta id then; empty when not known

    @property
    def output(self) -> tuple[str, str]:
        """The owner of the rows: stream and transform, which is empty for a copy."""
        return self.stream, self.transform or ""

    def is_overlaid_by(self, other: Covered) -> bool:
        """Whether another publish came later, and can have changed its rows."""
        return other.target_version > self.target_version and other.scope.overlaps(self.scope)


def write_covered(
    lake: Lake, publishes: Iterable[Covered], time_type: TimeType, state: str
) -> None:
    """Append rows of some publishes, in one commit.

    Each has one per worker, or one with a null worker if the target has no worker column.
    """
    rows = [row for covered in publishes for row in _rows(covered, time_type, state)]
    append_rows(lake, "coverage", rows)


def _rows(covered: Covered, time_type: TimeType, state: str) -> list[LedgerRow]:
    bounds = render_bounds(time_type, covered.scope.region)
    row = {name: getattr(covered, name) for name in _ALIKE} | {
        "target": covered.scope.target,
        "since": _shown(bounds["since"]),
        "until": _shown(bounds["until"]),
        "region": region_text(covered.scope.region),
        "table": covered.table or None,
        "state": state,
    }
    workers = (None,) if covered.scope.workers is None else covered.scope.workers
    return [{**row, "worker": worker} for worker in workers]


def write_gone(lake: Lake, target: str, runs: Collection[str]) -> None:
    """Record that the publishes of these runs were lost with the target's table."""
    rows = read_rows(lake, "coverage", target=target)
    lost = [row for row in rows if row["run"] in runs and row["state"] == PUBLISHED]
    for row in lost:
        del row["at"]
    append_rows(lake, "coverage", [{**row, "state": GONE} for row in lost])


def current(lake: Lake, target: str) -> list[Covered]:
    """Publishes in effect in a target, in order of publication; none if the table is gone.

    Publishes that were rolled back are not in effect, nor those into another table that was here.
    """
    recorded = recorded_at(lake, target)
    return of_present_table(recorded, delta.open_if_table(target) if recorded else None)


def of_present_table(recorded: Sequence[Covered], table: OpenedTable | None) -> list[Covered]:
    """Those of some publishes at a path that went into the table that is there now."""
    present = "" if table is None else str(table.metadata().id)
    return [entry for entry in recorded if entry.table in ("", present)]


def recorded_at(lake: Lake, target: str) -> list[Covered]:
    """Publishes into the table at a path, and into others that were here before it."""
    return current_by_ledger(lake, target) if is_table(target) else []


def current_by_ledger(lake: Lake, target: str) -> list[Covered]:
    """Publishes in effect according to the ledger alone, whether or not the table exists."""
    # A run asks several times, and there is an object for each publish that was ever made.
    kind = f"publishes in {stored_target(lake, target)}, now at {target}"
    return list(cached(kind, lake.ledger("coverage"), lambda: _current(lake, target)))


def _current(lake: Lake, target: str) -> tuple[Covered, ...]:
    rows = read_rows(lake, "coverage", target=target)
    publishes = [parse_covered(written) for written in current_rows(rows).values()]
    compared = _comparisons(rows)
    publishes = [replace(each, compared=tuple(compared.get(each.run, ()))) for each in publishes]
    return tuple(sorted(publishes, key=lambda covered: covered.target_version))


def current_rows(rows: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Ledger rows in effect by run: neither rolled back nor lost with their table.

    The given rows are in the order they were written.
    """
    rows = [row for row in rows if row["state"] != COMPARED]
    rolled_back = {row["run"] for row in rows if row["state"] == ROLLED_BACK}
    by_run: dict[str, list[LedgerRow]] = {}
    for row in rows:
        if row["state"] == PUBLISHED and row["run"] not in rolled_back:
            by_run.setdefault(row["run"], []).append(row)
        else:
            # A run that was killed before its certificate may publish again, into a new table.
            by_run.pop(row["run"], None)
    return by_run


def _comparisons(rows: Iterable[LedgerRow]) -> dict[str, list[tuple[Scope, int]]]:
    """What audits of the present table have found whole, by run: the parts, and their versions."""
    by_audit: dict[str, dict[tuple[int, str], list[LedgerRow]]] = {}
    for row in rows:
        if row["state"] == COMPARED:
            audit = (row["target_version"], row["region"])
            by_audit.setdefault(row["run"], {}).setdefault(audit, []).append(row)
        elif row["state"] == GONE:
            by_audit.pop(row["run"], None)
    return {
        run: [(covered.scope, covered.target_version) for covered in map(parse_covered, audits)]
        for run, parts in by_audit.items()
        for audits in [list(parts.values())]
    }


def parse_covered(rows: list[LedgerRow]) -> Covered:
    """One publish, or what one audit compared, from its rows: one per worker."""
    row = rows[0]
    workers = {row["worker"] for row in rows} - {None}
    scope = Scope(row["target"], tuple(sorted(workers)) or None, parse_region(row["region"]))
    alike = {name: row[name] for name in _ALIKE}
    return Covered(**alike, scope=scope, table=row.get("table") or "")


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return as_text(value)
