"""Plans, certificates and audits as markdown, for the pages of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
        ("records", f"{plan.get('records')} at {plan.get('times')} times"),
        ("to read", f"{plan.get('files')} of {plan.get('files_all')} files, {plan.get('bytes')} B"),
        ("late, not played", plan.get("late")),
        ("transform", plan.get("transform")),
        ("mode", plan.get("mode")),
        ("target", plan.get("target_path")),
        ("stands already", plan.get("stands")),
    ]
    covered = plan.get("covered")
    if isinstance(covered, list) and covered:
        rows.append(("covered already by", [each.get("run") for each in covered]))
    return _page(f"Plan: {plan.get('stream')} into {plan.get('target')}", rows)


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
        ("target", f"{certificate.get('target')}, version {version}"),
        ("audit", _audit(certificate)),
        ("published", f"{'yes' if certificate.get('published') else 'no'}{stood}"),
        ("attempt", certificate.get("attempt")),
    ]
    return _page(f"Certificate of {certificate.get('run')}", rows)


def audits_markdown(result: Mapping[str, object]) -> str:
    """The audits of several runs, as the app `audit` gives them."""
    found = result.get("audits")
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


def _audit(certificate: Mapping[str, object]) -> str:
    audit = certificate.get("audit")
    if not isinstance(audit, Mapping):
        return ""
    if audit.get("passed"):
        return f"passed ({audit.get('kind')}, {audit.get('cells')} cells)"
    differing, cells = audit.get("differing"), audit.get("cells")
    return f"failed ({audit.get('kind')}): {differing} of {cells} cells differ"


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
