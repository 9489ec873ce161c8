"""Plans, certificates and the results of other jobs as markdown, for the pages of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from capstan.core.json_object import Json
from capstan.replay.result import ReplayResult, RollbackResult
from capstan.reporting.formatting import bounds_text, cell_text, pairs_text, workers_text
from capstan.reporting.summaries import audit_text, certificate_facts, difference_facts, plan_facts
from capstan.storage.ledger.certificate import Certificate

_LONGEST = 300
_SHOWN = 100
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
    page = _page("What publishing would change", difference_facts(difference, _cell))
    names = ("kind", "worker", "time", "before", "after")
    sample = [[_row(row.get(name)) for name in names] for row in difference.get("sample") or ()]
    columns = ("change", *names[1:])
    return [page, "", *_table(columns, sample)] if sample else [page]


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
    table = _table(("run", "target", "version", "audit", "result"), rows)
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


def gaps_markdown(entries: Iterable[Json]) -> str:
    """A report of gaps as markdown: interval counts per replay, then the uncovered intervals."""
    rows = []
    uncovered: list[str] = []
    for entry in entries:
        text = entry.get("message", "")
        if "counts" in entry:
            text = ", ".join(f"{n} {state}" for state, n in entry["counts"].items() if n) or "none"
        rows.append((entry["replay"], entry["target"], text))
        uncovered += _uncovered(entry)
    table = _table(("replay", "target", "intervals"), rows)
    return "\n".join(["## Coverage of declared replays", "", *table, *uncovered])


def backfills_markdown(result: Json) -> str:
    """The result of the job `backfill` as markdown."""
    rows = []
    for run in runs_of(result):
        status = "waiting for approval" if run.get("published") is False else "published"
        if run.get("unchanged"):
            status = "already published"
        if "error" in run:
            status = f"{run['error']}: {run.get('message')}"
        elif run.get("run") is None:
            status = "not started"
        workers = workers_text(run.get("workers"))
        shown = ", ".join(map(str, workers)) if isinstance(workers, list) else workers or "all"
        cells = (run.get(key) for key in ("records", "target_version", "run"))
        rows.append((run.get("since"), run.get("until"), shown, *cells, status))
    columns = ("since", "until", "workers", "records", "version", "run", "")
    return "\n".join(["## Backfills", "", *_table(columns, rows)])


def runs_of(result: Json) -> Iterator[Json]:
    """The runs in the result of one backfill, or of several."""
    for backfill in result.get("backfills", [result]):
        yield from backfill.get("runs", ())


def _uncovered(entry: Json) -> list[str]:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches, lines = entry.get("stretches"), []
    if stretches:
        rows = [
            (part["since"], part["until"], part["state"], ", ".join(part["missing"]))
            for part in stretches[:_SHOWN]
        ]
        table = _table(("since", "until", "state", "workers"), rows)
        lines = ["", f"### {entry['replay']}", "", *table]
        if len(stretches) > _SHOWN:
            lines += ["", f"and {len(stretches) - _SHOWN} more"]
    problem = entry.get("not_filled")
    return [*lines, "", f"Not filled: {problem}"] if problem else lines


def maintained_markdown(result: Json) -> str:
    """A maintenance result (`MaintenanceResult.to_json`) as markdown."""
    names = ("stream", "table", "files_before", "files", "bytes", "rewritten", "vacuumed")
    rows = [
        (*map(entry.get, names), ", ".join(f"{a} to {b}" for a, b in entry["damaged"]))
        for entry in result.get("tables", ())
    ]
    columns = (*(name.replace("_", " ") for name in names), "damaged")
    lines = ["## Maintenance", "", *_table(columns, rows)]
    for error in result.get("busy", ()):
        lines += ["", f"skipped: {_cell(error['message'])}"]
    for name in ("failed", "violations"):
        for error in result.get(name, ()):
            lines += ["", f"**{error['error']}**: {_cell(error['message'])}"]
    if "message" in result and not result.get("failed") and result.get("error") != "CAP-VIOLATION":
        lines += ["", f"**{result['error']}**: {_cell(result['message'])}"]
    return "\n".join(lines)


def _page(title: str, rows: Iterable[tuple[str, object]]) -> str:
    shown = [row for row in rows if _cell(row[1])]
    return "\n".join([f"## {title}", "", *_table(("what", "value"), shown)])


def _table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *(map(_cell, row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(value: object) -> str:
    """A value as the text of a table cell: one line, with markup escaped."""
    # Unescaped data could end the cell, or be an image that a browser fetches.
    listed = isinstance(value, list | tuple | Mapping)
    text = cell_text(value) if listed else "" if value is None else str(value)
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return _MARKS.sub(r"\\\g<0>", text)
