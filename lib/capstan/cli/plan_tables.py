"""Plans as people read them: what would be read, what stands there, what would change."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType

from capstan.cli.output import cell, facts, table
from capstan.cli.tables import row_pair
from capstan.reporting.summaries import plan_facts


def plan_tables(plan: Mapping[str, object]) -> list[RenderableType]:
    """A plan, as `Preview.to_json` gives it."""
    # What is covered has a table of its own.
    told = [fact for fact in plan_facts(plan, cell) if fact[0] != "covered already by"]
    shown: list[RenderableType] = [
        facts(f"plan: {plan['stream']} into {plan['target']}", [*told, ("", "")])
    ]
    covered = plan["covered"]
    if isinstance(covered, list) and covered:
        columns = ("run", "workers", "since", "until", "transform", "stale", "records")
        rows = [[each[name] for name in columns] for each in covered]
        shown.append(table("covered already", columns, rows))
    return shown


def difference_tables(difference: Mapping[str, object]) -> list[RenderableType]:
    """What a replay would change, as `Difference.to_json` gives it."""
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
            (each["kind"], each["worker"], each["time"], *row_pair(each["before"], each["after"]))
            for each in listed
        ]
        shown.append(table("", columns, rows))
    return shown
