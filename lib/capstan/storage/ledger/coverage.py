"""The coverage ledger: which run wrote which worker and times of a target, by which code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan.core.times import TimeType
from capstan.core.times.region import Region
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import parse_region, region_text, render_bounds
from capstan.storage.ledger.tables import append_rows, as_text, read_rows

if TYPE_CHECKING:
    pass

PUBLISHED, ROLLED_BACK, GONE = "published", "rolled-back", "gone"


@dataclass(frozen=True, slots=True)
class Covered:
    """What a run published, per target.

    Attributes:
        run: The run.
        stream: Whose records.
        scope: The target, workers and times.
        transform: The transform's name, or `<pipeline>.<sink>`; empty for a copy.
        code: The hash of its code, empty for a copy.
        cut: The tape's commit that was played.
        target_version: The version of the target that the publish made.
    """

    run: str
    generation: int
    stream: str
    scope: Scope
    transform: str
    code: str
    cut: int
    target_version: int

    @property
    def output(self) -> tuple[str, str]:
        """Whose rows they are: the stream, and what is made of its records; empty for a copy."""
        return self.stream, self.transform or ""


def write_covered(lake: Lake, covered: Covered, time_type: TimeType, state: str) -> None:
    """Append a row per worker; one with a null worker where the target does not keep it."""
    bounds = render_bounds(time_type, covered.scope.region)
    row = {
        "target": covered.scope.target,
        "stream": covered.stream,
        "since": _shown(bounds["since"]),
        "until": _shown(bounds["until"]),
        "region": region_text(covered.scope.region),
        "run": covered.run,
        "generation": covered.generation,
        "transform": covered.transform,
        "code": covered.code,
        "cut": covered.cut,
        "target_version": covered.target_version,
        "state": state,
    }
    workers: Iterable[int | None] = (
        (None,) if covered.scope.workers is None else covered.scope.workers
    )
    append_rows(lake, "coverage", [{**row, "worker": worker} for worker in workers])


def write_gone(lake: Lake, target: str, runs: Collection[str]) -> None:
    """Write down that what runs had published into a target went with its table."""
    rows = [row for row in read_rows(lake, "coverage", target=target) if row["run"] in runs]
    lost = [
        {**{name: value for name, value in row.items() if name != "at"}, "state": GONE}
        for row in rows
        if row["state"] == PUBLISHED
    ]
    append_rows(lake, "coverage", lost)


def standing(lake: Lake, target: str) -> list[Covered]:
    """What stands in a target, in the order it was published: not what was rolled back.

    Nothing stands in a table that is gone.
    """
    return told(lake, target) if is_table(target) else []


def told(lake: Lake, target: str) -> list[Covered]:
    """What stands in a target by the ledger alone, whether or not its table is there."""
    found = {
        run: (rows[0], [int(str(row["worker"])) for row in rows if row["worker"] is not None])
        for run, rows in standing_rows(read_rows(lake, "coverage", target=target)).items()
    }
    listed = [_covered(row, workers) for row, workers in found.values()]
    return sorted(listed, key=lambda covered: covered.target_version)


def standing_rows(
    rows: Iterable[Mapping[str, object]],
) -> dict[str, list[Mapping[str, object]]]:
    """The rows of the ledger that stand, by run: neither rolled back nor gone with their table.

    Args:
        rows: Rows of the ledger, in the order they were written.
    """
    written = list(rows)
    undone = {row["run"] for row in written if row["state"] == ROLLED_BACK}
    found: dict[str, list[Mapping[str, object]]] = {}
    for row in written:
        if row["state"] == PUBLISHED and row["run"] not in undone:
            found.setdefault(str(row["run"]), []).append(row)
        else:
            # One that was cut off before its certificate may publish again, into a new table.
            found.pop(str(row["run"]), None)
    return found


def later_than(lake: Lake, covered: Covered) -> list[Covered]:
    """What was published over part of `covered` after it, and stands."""
    return [
        other
        for other in standing(lake, covered.scope.target)
        if other.target_version > covered.target_version and other.scope.meets(covered.scope)
    ]


def _covered(row: Mapping[str, object], workers: list[int]) -> Covered:
    region: Region = parse_region(str(row["region"]))
    return Covered(
        str(row["run"]),
        int(str(row["generation"])),
        str(row["stream"]),
        Scope(str(row["target"]), tuple(sorted(set(workers))) or None, region),
        str(row["transform"]),
        str(row["code"]),
        int(str(row["cut"])),
        int(str(row["target_version"])),
    )


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return as_text(value)
