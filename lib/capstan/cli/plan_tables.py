"""Tables of a plan: input, overlap with published data, changes to the target."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType

from capstan.cli.output import cell, facts, table
from capstan.cli.tables import row_pair
from capstan.reporting.summaries import plan_facts


def plan_tables(plan: Mapping[str, object]) -> list[RenderableType]:
    """Tables of a plan in the form of `Preview.to_json`."""
    # The covered ranges have a table of their own.
    about = [fact for fact in plan_facts(plan, cell) if fact[0] != "covered already by"]
    shown: list[RenderableType] = [
        facts(f"plan: {plan['stream']} into {plan['target']}", [*about, ("", "")])
    ]
    covered = plan["covered"]
    if isinstance(covered, list) and covered:
        columns = ("run", "workers", "since", "until", "transform", "stale", "records")
        rows = [[part[name] for name in columns] for part in covered]
        shown.append(table("covered already", columns, rows))
    return shown


def difference_tables(difference: Mapping[str, object]) -> list[RenderableType]:
    """Tables of a replay's changes in the form of `Difference.to_json`."""
    sample = difference["sample"]
    listed = sample if isinstance(sample, list) else []
    shown: list[RenderableType] = [
        facts(
            "what would change",
            [
                ("rows added", difference["added"]),
                ("rows removed", difference["removed"]),
                ("rows changed", difference["changed"]),
                ("cells", f"{cell(difference['differing'])} of {cell(difference['cells'])} change"),
                ("new columns", difference["new_columns"]),
                ("foreign rows", difference["foreign"]),
                ("", ""),
            ],
        )
    ]
    if listed:
        columns = ("kind", "worker", "time", "before", "after")
        rows = [
            (row["kind"], row["worker"], row["time"], *row_pair(row["before"], row["after"]))
            for row in listed
        ]
        shown.append(table("", columns, rows))
    return shown
