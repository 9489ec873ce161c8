"""Tables of certificates, audit findings and plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from capstan.cli.output import facts, table
from capstan.core.json_object import Json
from capstan.reporting.formatting import cell_text
from capstan.reporting.summaries import certificate_facts, difference_facts, plan_facts

if TYPE_CHECKING:
    from capstan.replay.result import ReplayResult

# Longest text of a row in a table, in characters; the JSON has the whole row.
_LONGEST = 100


def certificate_table(result: ReplayResult) -> Table:
    """The certificate of a replay as a table of names and values."""
    certificate = result.certificate
    if certificate is None:
        return facts("no certificate: the replay has nothing to do", [])
    rows = certificate_facts(certificate, cell_text, unchanged=result.unchanged)
    return facts(f"certificate of {certificate.run}", [*rows, ("", "")])


def finding_table(audit: Json) -> Table:
    """A table of an audit's sample: differing rows, and rows that fail a check."""
    return table(
        "",
        ("kind", "worker", "time", "expected", "actual"),
        [
            (
                finding.get("check") or finding["kind"],
                finding["worker"],
                finding["time"],
                *_row_pair(finding["expected"], finding["actual"]),
            )
            for finding in audit.get("findings", ())
        ],
    )


def plan_tables(plan: Json) -> list[RenderableType]:
    """Tables of a plan in the form of `Preview.to_json`."""
    # The covered ranges have a table of their own.
    about = [fact for fact in plan_facts(plan, cell_text) if fact[0] != "covered already by"]
    shown: list[RenderableType] = [
        facts(f"plan: {plan['stream']} into {plan['target']}", [*about, ("", "")])
    ]
    if plan["covered"]:
        columns = ("run", "workers", "since", "until", "transform", "stale", "records")
        rows = [[part[name] for name in columns] for part in plan["covered"]]
        shown.append(table("covered already", columns, rows))
    return shown


def difference_tables(difference: Json) -> list[RenderableType]:
    """Tables of a replay's changes in the form of `Difference.to_json`."""
    about = [*difference_facts(difference, cell_text), ("", "")]
    shown: list[RenderableType] = [facts("what would change", about)]
    if difference["sample"]:
        columns = ("kind", "worker", "time", "before", "after")
        rows = [
            (row["kind"], row["worker"], row["time"], *_row_pair(row["before"], row["after"]))
            for row in difference["sample"]
        ]
        shown.append(table("", columns, rows))
    return shown


def _row_pair(expected: object, actual: object) -> tuple[str, str]:
    """Texts of two rows; when both are present, only the columns that differ."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        differing = [name for name in expected if expected[name] != actual.get(name)]
        return _row(expected, differing), _row(actual, differing)
    return tuple(_row(row, None) for row in (expected, actual))  # type: ignore[return-value]


def _row(row: object, names: list[str] | None) -> str:
    if not isinstance(row, Mapping):
        return ""
    text = ", ".join(f"{n}={row.get(n)}" for n in (row if names is None else names))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
