"""Plans, certificates and audits as markdown, for the pages of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from capstan.reporting.formatting import approval_text, number, pipeline_text, workers_text
from capstan.reporting.summaries import audit_text, bounds_text, checks_text, plan_facts

_LONGEST = 300
_MARKS = re.compile(r"[\\|`<\[\]]")


def plan_markdown(plan: Mapping[str, object]) -> str:
    """A plan, as `Preview.to_json` gives it."""
    page = _page(f"Plan: {plan.get('stream')} into {plan.get('target')}", plan_facts(plan, _value))
    found = plan.get("diff")
    return "\n".join([page, "", *_difference(found)]) if isinstance(found, Mapping) else page


def certificate_markdown(certificate: Mapping[str, object]) -> str:
    """A certificate, as a replay gives it."""
    missing = certificate.get("not_covered")
    left_out = missing if isinstance(missing, Mapping) else {}
    frontier = markdown_cell(certificate.get("frontier") or "empty: closed")
    complete = "yes" if certificate.get("complete") else "only in part"
    stood = "; nothing was changed, it stood already" if certificate.get("stood") else ""
    version = certificate.get("target_version")
    rows = [
        ("stream", f"{certificate.get('stream')}, at commit {certificate.get('cut')}"),
        ("workers", workers_text(certificate.get("workers"))),
        ("workers left out", workers_text(left_out.get("workers"))),
        ("times", bounds_text(certificate.get("since"), certificate.get("until"), _value)),
        (
            "records",
            f"{_value(certificate.get('records'))} at {_value(certificate.get('times'))} times",
        ),
        ("fingerprint", certificate.get("fingerprint")),
        ("complete", f"{complete}, frontier {frontier}"),
        ("late, not played", certificate.get("late")),
        ("transform", certificate.get("transform")),
        ("pipeline", pipeline_text(certificate.get("pipeline"))),
        (
            "target",
            f"{certificate.get('target')}{'' if version is None else f', version {version}'}",
        ),
        ("audit", audit_text(certificate.get("audit"), _value)),
        ("checks", checks_text(certificate.get("audit"), _value)),
        ("approved", approval_text(certificate.get("approval"))),
        ("published", f"{'yes' if certificate.get('published') else 'no'}{stood}"),
        ("attempt", certificate.get("attempt")),
    ]
    return _page(f"Certificate of {certificate.get('run')}", rows)


def approval_markdown(result: Mapping[str, object]) -> str:
    """What a person decides on: the certificate of a run that waits, and what it would change."""
    found = result.get("diff")
    difference = found if isinstance(found, Mapping) else {}
    rest = "Rejected, it stays there, and the table as it is."
    staged = f"It is staged at `{result.get('staging')}`. {rest}"
    return "\n".join([certificate_markdown(result), "", *_difference(difference), "", staged])


def _difference(difference: Mapping[str, object]) -> list[str]:
    """What would change in a target, with a sample of its rows: lines of markdown."""
    names = ("added", "removed", "changed")
    cells = f"{difference.get('differing')} of {difference.get('cells')} change"
    rows = [(f"rows {name}", difference.get(name)) for name in names]
    rows += [
        ("cells", cells),
        ("new columns", difference.get("new_columns")),
        ("foreign rows", difference.get("foreign")),
    ]
    parts = [_page("What publishing would change", rows)]
    sample = difference.get("sample")
    if isinstance(sample, list) and sample:
        parts += [
            "",
            "| change | worker | time | before | after |",
            "| --- | --- | --- | --- | --- |",
        ]
        for each in sample:
            shown = [each.get(key) for key in ("kind", "worker", "time", "before", "after")]
            parts.append("| " + " | ".join(map(_row, shown)) + " |")
    return parts


def audits_markdown(result: Mapping[str, object]) -> str:
    """The audits of several runs, or of one table, as the app `audit` gives them."""
    found = result.get("audits", [result] if "kind" in result else [])
    audits = found if isinstance(found, list) else []
    lines = [
        "## Audits of what was published",
        "",
        "| run | target | version | audit | what was found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in audits:
        version = "newest" if each.get("version") is None else each["version"]
        said = audit_text(each, _value) if "kind" in each else f"not audited: {each.get('message')}"
        cells = (each.get("run"), each.get("target"), version, each.get("kind"), said)
        lines.append("| " + " | ".join(map(markdown_cell, cells)) + " |")
    return "\n".join(lines)


def rollback_markdown(result: Mapping[str, object]) -> str:
    """What was taken back, as the app `rollback` gives it."""
    version = f"version {result.get('target_version')} has the rows of before"
    rows = [
        ("stream", result.get("stream")),
        ("workers", result.get("workers")),
        ("times", bounds_text(result.get("since"), result.get("until"), _value)),
        ("target", f"{result.get('target')}: {version}"),
        ("taken back", "before; nothing was changed" if result.get("stood") else "now"),
    ]
    return _page(f"Rolled back: {result.get('run')}", rows)


def _row(value: object) -> str:
    """A row of a table as text, with the names of its columns."""
    if isinstance(value, Mapping):
        return markdown_cell(", ".join(f"{name}={part}" for name, part in value.items()))
    return markdown_cell(value)


def _page(title: str, rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"## {title}", "", "| what | found |", "| --- | --- |"]
    shown = [(name, markdown_cell(value)) for name, value in rows]
    return "\n".join(lines + [f"| {name} | {text} |" for name, text in shown if text])


def _value(value: object) -> str:
    """A value inside of a text: numbers with their thousands apart."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{number(count)} {name}" for name, count in value.items())
    return number(value)


def markdown_cell(value: object) -> str:
    """A value in a cell of a table: one line, with nothing in it that is more than text.

    What comes out of data could else end the cell, or be an image that a browser fetches.
    """
    listed = isinstance(value, list | tuple | Mapping)
    text = _value(value) if listed else "" if value is None else str(value)
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return _MARKS.sub(r"\\\g<0>", text)
