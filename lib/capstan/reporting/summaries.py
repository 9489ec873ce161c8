"""Plans and audits in words: the same names and texts for command line, Airflow and pages.

What a single value looks like is left to who shows them: a terminal, markdown, or a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from capstan.reporting.formatting import (
    behind_text,
    covered_text,
    pipeline_text,
    size,
    standing_text,
)

Show = Callable[[object], str]
"""How a number, a time, a list or counts by name are written."""

Fact = tuple[str, object]
"""A name, and what is to be said; `None`, and empty text, lists and mappings for nothing."""


def plan_facts(plan: Mapping[str, object], show: Show) -> list[Fact]:
    """What a plan says, in the order in which it is read.

    Args:
        plan: As `Preview.to_json` gives it; parts may be missing.
        show: How values inside of texts are written.
    """
    records, times = show(plan.get("records")), show(plan.get("times"))
    files, of = show(plan.get("files")), show(plan.get("files_all"))
    stored = plan.get("bytes")
    read = "" if stored is None else f"{files} of {of} files, {size(int(str(stored)))}"
    covered = plan.get("covered")
    complete = "yes" if plan.get("complete") else "no: times of it can still receive records"
    return [
        ("stream", f"{plan.get('stream')}, at commit {show(plan.get('cut'))}"),
        ("workers", plan.get("workers")),
        ("workers left out", plan.get("left_out")),
        ("times", bounds_text(plan.get("since"), plan.get("until"), show)),
        ("complete", complete),
        ("frontier", plan.get("frontier") or "empty: closed"),
        ("held back by", behind_text(plan.get("behind"), show)),
        ("without a record", plan.get("silent")),
        ("never captured", plan.get("not_on_tape")),
        ("records", f"{records} at {times} times" if records else ""),
        ("to read", read),
        ("late, not replayed", plan.get("late")),
        ("transform", plan.get("transform")),
        ("pipeline", pipeline_text(plan.get("pipeline"))),
        ("mode", plan.get("mode")),
        ("target", plan.get("target_path")),
        ("covered already by", covered_text(covered if isinstance(covered, list) else [])),
        ("changed by others since", plan.get("changed")),
        ("of the records", standing_text(plan.get("standing"), show)),
        ("stands already", plan.get("stands")),
        ("range is held by", plan.get("held_by")),
        ("checks", plan.get("checks")),
        ("approval", "a person decides before it is published" if plan.get("approve") else ""),
    ]


def bounds_text(since: object, until: object, show: Show) -> str:
    """Bounds of a range in words, each as `show` writes it."""
    start = "from the start" if since is None else f"from {show(since)}"
    return start + ("" if until is None else f" to before {show(until)}")


def audit_text(audit: object, show: Show) -> str:
    """What came of an audit, in one line; empty where there was none."""
    if not isinstance(audit, Mapping) or not audit:
        return ""
    kind = f" ({audit['kind']})" if audit.get("kind") else ""
    cells, differing = audit.get("cells"), audit.get("differing")
    if audit.get("passed"):
        counted = "" if cells is None else f", {show(cells)} cells"
        return f"passed ({audit['kind']}{counted}{_near_text(audit)})" if kind else "passed"
    if differing:
        return f"failed{kind}: {show(differing)} of {show(cells)} cells differ"
    broken = [f"{c.name} {c.text}" for c in check_facts(audit, show) if not c.met]
    return f"failed{kind}: check {', '.join(broken)}" if broken else f"failed{kind}"


def _near_text(audit: Mapping[str, object]) -> str:
    """Which columns were compared within a tolerance."""
    near = audit.get("near")
    if not isinstance(near, Mapping) or not near["columns"]:
        return ""
    return f"; {', '.join(map(str, near['columns']))} within {near['tolerance']}"


@dataclass(frozen=True, slots=True)
class CheckFact:
    """What came of one declared check.

    Attributes:
        name: Its name.
        rule: What every row must meet.
        met: Whether every row does.
        text: The same in words, or how many rows do not.
    """

    name: str
    rule: str
    met: bool
    text: str


def check_facts(audit: object, show: Show) -> list[CheckFact]:
    """What came of the declared checks of an audit; nothing where none is, or none was made."""
    return [
        CheckFact(
            str(each["name"]),
            str(each["rule"]),
            not each["failing"],
            f"not met by {show(each['failing'])} rows" if each["failing"] else "met by all rows",
        )
        for each in _checks(audit)
    ]


def checks_text(audit: object, show: Show) -> str:
    """The same in one line."""
    return ", ".join(f"{c.name} ({c.rule}): {c.text}" for c in check_facts(audit, show))


def _checks(audit: object) -> list[Mapping[str, object]]:
    checks = audit.get("checks") if isinstance(audit, Mapping) else None
    found = checks if isinstance(checks, list) else []
    return [each for each in found if isinstance(each, Mapping)]
