"""Plans, certificates and audits as markdown, for the pages of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from capstan.core.json_object import Json
from capstan.replay.result import ReplayResult, RollbackResult
from capstan.reporting.formatting import bounds_text, cell_text, pairs_text
from capstan.reporting.summaries import audit_text, certificate_facts, difference_facts, plan_facts
from capstan.storage.ledger.certificate import Certificate

_LONGEST = 300
_MARKS = re.compile(r"[\\|`<\[\]]")


def plan_markdown(plan: Json) -> str:
    """A plan (`Preview.to_json`) as markdown."""
    page = _page(
        f"Plan: {plan.get('stream')} into {plan.get('target')}", plan_facts(plan, cell_text)
    )
    diff = plan.get("diff")
    return "\n".join([page, "", *_difference(diff)]) if isinstance(diff, Mapping) else page


def certificate_markdown(result: Json) -> str:
    """The certificate of a replay as markdown, from its XCom."""
    replayed = ReplayResult.from_json(result)
    if replayed.certificate is None:
        return "## Nothing to replay\n\nThere is nothing new, and nothing was published before."
    return _certificate(replayed.certificate, unchanged=replayed.unchanged)


def _certificate(certificate: Certificate, *, unchanged: bool = False) -> str:
    facts = certificate_facts(certificate, cell_text, unchanged=unchanged)
    return _page(f"Certificate of {certificate.run}", facts)


def approval_markdown(certificate: Certificate) -> str:
    """The text that a person decides on: certificate of a waiting run, and its changes."""
    rest = "If you reject it, it stays there, and the table does not change."
    staged = f"The output is staged at `{certificate.staging}`. {rest}"
    changes = _difference(certificate.diff or {})
    return "\n".join([_certificate(certificate), "", *changes, "", staged])


def _difference(difference: Json) -> list[str]:
    """Changes to a target, with a sample of rows, as lines of markdown."""
    page = _page("What publishing would change", difference_facts(difference, markdown_cell))
    names = ("kind", "worker", "time", "before", "after")
    sample = [[_row(row.get(name)) for name in names] for row in difference.get("sample") or ()]
    columns = ("change", *names[1:])
    return [page, "", *markdown_table(columns, sample)] if sample else [page]


def _row(value: object) -> object:
    """A row as text, with column names."""
    return pairs_text(value) if isinstance(value, Mapping) else value


def audits_markdown(result: Json) -> str:
    """The result of the job `audit` as markdown: several runs, or one table."""
    rows = []
    for audit in result.get("audits", [result] if "kind" in result else []):
        version = "newest" if audit.get("version") is None else audit["version"]
        error = f"not audited: {audit.get('message')}"
        text = audit_text(audit, cell_text) if "kind" in audit else error
        rows.append((audit.get("run"), audit.get("target"), version, audit.get("kind"), text))
    table = markdown_table(("run", "target", "version", "audit", "result"), rows)
    return "\n".join(["## Audits of published tables", "", *table])


def rollback_markdown(result: Json) -> str:
    """The result of the job `rollback` as markdown."""
    r = RollbackResult.from_json(result)
    rows = [
        ("stream", r.stream),
        ("workers", r.workers),
        ("times", bounds_text(r.since, r.until, cell_text)),
        ("target", f"{r.target}: version {r.target_version} has the previous rows"),
        ("rolled back", "already before, nothing changed" if r.unchanged else "now"),
    ]
    return _page(f"Rolled back: {r.run}", rows)


def _page(title: str, rows: Iterable[tuple[str, object]]) -> str:
    shown = [row for row in rows if markdown_cell(row[1])]
    return "\n".join([f"## {title}", "", *markdown_table(("what", "value"), shown)])


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    lines = [columns, ["---"] * len(columns), *(map(markdown_cell, row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def markdown_cell(value: object) -> str:
    """A value as the text of a table cell: one line, with markup escaped."""
    # Unescaped data could end the cell, or be an image that a browser fetches.
    listed = isinstance(value, list | tuple | Mapping)
    text = cell_text(value) if listed else "" if value is None else str(value)
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return _MARKS.sub(r"\\\g<0>", text)
