"""Plans, certificates and audits as markdown, for the pages of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capstan.views.shown import (
    approval_text,
    behind_text,
    covered_text,
    pipeline_text,
    size,
    standing_text,
)

_LONGEST = 300


def plan_markdown(plan: Mapping[str, object]) -> str:
    """A plan, as `Preview.as_json` gives it."""
    complete = "yes" if plan.get("complete") else "no: times can still receive records"
    rows = [
        ("commit", plan.get("cut")),
        ("workers", plan.get("workers")),
        ("workers left out", plan.get("left_out")),
        ("times", _times(plan)),
        ("complete", complete),
        ("frontier", plan.get("frontier") or "empty: closed"),
        ("held back by", behind_text(plan.get("behind"), _text)),
        ("without a record", plan.get("silent")),
        ("never captured", plan.get("not_on_tape")),
        ("records", f"{plan.get('records')} at {plan.get('times')} times"),
        (
            "to read",
            f"{plan.get('files')} of {plan.get('files_all')} files, "
            + size(int(str(plan.get("bytes") or 0))),
        ),
        ("late, not played", plan.get("late")),
        ("transform", plan.get("transform")),
        ("pipeline", pipeline_text(plan.get("pipeline"))),
        ("mode", plan.get("mode")),
        ("target", plan.get("target_path")),
        ("stands already", plan.get("stands")),
        ("of the records", standing_text(plan.get("standing"), str)),
        ("range is held by", plan.get("held_by")),
        ("checks", plan.get("checks")),
        ("approval", "a person decides before it is published" if plan.get("approve") else None),
    ]
    covered = plan.get("covered")
    if isinstance(covered, list) and covered:
        rows.append(("covered already by", covered_text(covered)))
    page = _page(f"Plan: {plan.get('stream')} into {plan.get('target')}", rows)
    found = plan.get("diff")
    return "\n".join([page, "", *_difference(found)]) if isinstance(found, Mapping) else page


def certificate_markdown(certificate: Mapping[str, object]) -> str:
    """A certificate, as a replay gives it."""
    missing = certificate.get("not_covered")
    left_out = missing if isinstance(missing, Mapping) else {}
    frontier = _text(certificate.get("frontier") or "empty: closed")
    complete = "yes" if certificate.get("complete") else "only in part"
    stood = "; nothing was changed, it stood already" if certificate.get("stood") else ""
    version = certificate.get("target_version")
    rows = [
        ("stream", f"{certificate.get('stream')}, at commit {certificate.get('cut')}"),
        ("workers", certificate.get("workers")),
        ("workers left out", left_out.get("workers")),
        ("times", _times(certificate)),
        ("records", f"{certificate.get('records')} at {certificate.get('times')} times"),
        ("fingerprint", certificate.get("fingerprint")),
        ("complete", f"{complete}, frontier {frontier}"),
        ("late, not played", certificate.get("late")),
        ("transform", certificate.get("transform")),
        ("pipeline", pipeline_text(certificate.get("pipeline"))),
        (
            "target",
            f"{certificate.get('target')}{'' if version is None else f', version {version}'}",
        ),
        ("audit", _audit(certificate)),
        ("checks", _checks(certificate)),
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
    columns = difference.get("new_columns")
    parts = [
        _page("What publishing would change", [*rows, ("cells", cells), ("new columns", columns)])
    ]
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
        said = _audit({"audit": each}) if "kind" in each else f"not audited: {each.get('message')}"
        cells = (each.get("run"), each.get("target"), version, each.get("kind"), said)
        lines.append("| " + " | ".join(map(_text, cells)) + " |")
    return "\n".join(lines)


def rollback_markdown(result: Mapping[str, object]) -> str:
    """What was taken back, as the app `rollback` gives it."""
    version = f"version {result.get('target_version')} has the rows of before"
    rows = [
        ("stream", result.get("stream")),
        ("workers", result.get("workers")),
        ("times", _times(result)),
        ("target", f"{result.get('target')}: {version}"),
        ("taken back", "before; nothing was changed" if result.get("stood") else "now"),
    ]
    return _page(f"Rolled back: {result.get('run')}", rows)


def _audit(certificate: Mapping[str, object]) -> str:
    audit = certificate.get("audit")
    if not isinstance(audit, Mapping):
        return ""
    if audit.get("passed"):
        return f"passed ({audit.get('kind')}, {audit.get('cells')} cells)"
    if not audit.get("differing"):
        return f"failed ({audit.get('kind')}): {_checks(certificate)}"
    differing, cells = audit.get("differing"), audit.get("cells")
    return f"failed ({audit.get('kind')}): {differing} of {cells} cells differ"


def _checks(certificate: Mapping[str, object]) -> str:
    audit = certificate.get("audit")
    checks = audit.get("checks") if isinstance(audit, Mapping) else None
    return ", ".join(
        f"{each['name']} ({each['rule']}): "
        + (f"not met by {each['failing']} rows" if each["failing"] else "met by all rows")
        for each in (checks if isinstance(checks, list) else [])
    )


def _row(value: object) -> str:
    """A row of a table as text, with the names of its columns."""
    if isinstance(value, Mapping):
        return _text(", ".join(f"{name}={part}" for name, part in value.items()))
    return _text(value)


def _times(value: Mapping[str, object]) -> str:
    since, until = value.get("since"), value.get("until")
    start = "from the start" if since is None else f"from {since}"
    return start + ("" if until is None else f" to before {until}")


def _page(title: str, rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"## {title}", "", "| what | found |", "| --- | --- |"]
    shown = [(name, _text(value)) for name, value in rows]
    return "\n".join(lines + [f"| {name} | {text} |" for name, text in shown if text])


def _text(value: object) -> str:
    """A value in a cell of a table: one line, with nothing in it that ends the cell."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        text = ", ".join(map(str, value))
    elif isinstance(value, Mapping):
        text = ", ".join(f"{count} {name}" for name, count in value.items())
    else:
        text = str(value)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
