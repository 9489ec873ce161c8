"""Plans as people read them: what would be read, what stands there, what would change."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType

from capstan.cli.certificate import row_pair, time_range
from capstan.cli.output import cell, facts, table
from capstan.views.shown import behind_text, pipeline_text, size, standing_text


def plan_tables(plan: Mapping[str, object]) -> list[RenderableType]:
    """A plan, as `Preview.as_json` gives it."""
    complete = "yes" if plan["complete"] else "no: times of the range can still receive records"
    shown: list[RenderableType] = [
        facts(
            f"plan: {plan['stream']} into {plan['target']}",
            [
                ("commit", plan["cut"]),
                ("workers", plan["workers"]),
                ("workers left out", plan["left_out"]),
                ("without a record", plan["silent"]),
                ("never captured", plan["not_on_tape"]),
                ("times", time_range(plan)),
                ("complete", complete),
                ("frontier", plan["frontier"] or "empty: closed"),
                ("held back by", behind_text(plan["behind"], cell)),
                ("records", f"{cell(plan['records'])} at {cell(plan['times'])} times"),
                ("to read", f"{plan['files']} of {plan['files_all']} files, {_size(plan)}"),
                ("late, not played", plan["late"]),
                ("transform", plan["transform"]),
                ("pipeline", pipeline_text(plan["pipeline"])),
                ("mode", plan["mode"]),
                ("target", plan["target_path"]),
                ("stands already", plan["stands"]),
                ("of the records", standing_text(plan["standing"], cell)),
                ("range is held by", plan["held_by"]),
                ("checks", plan["checks"]),
                ("approval", "a person decides before it is published" if plan["approve"] else ""),
                ("", ""),
            ],
        )
    ]
    covered = plan["covered"]
    if isinstance(covered, list) and covered:
        columns = ("run", "workers", "since", "until", "transform", "stale", "records")
        rows = [[each[name] for name in columns] for each in covered]
        shown.append(table("covered already", columns, rows))
    return shown


def difference_tables(difference: Mapping[str, object]) -> list[RenderableType]:
    """What a replay would change, as `Difference.as_json` gives it."""
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


def _size(plan: Mapping[str, object]) -> str:
    return size(int(str(plan["bytes"])))
