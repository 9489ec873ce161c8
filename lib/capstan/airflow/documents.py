"""Plans, certificates and the results of other jobs as documents, for the pages of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from capstan.airflow.document import DocumentTable, Heading, TextDocument
from capstan.core.json_object import Json
from capstan.replay.result import ReplayResult, RollbackResult
from capstan.reporting.formatting import bounds_text, cell_text, pairs_text, workers_text
from capstan.reporting.summaries import audit_text, certificate_facts, difference_facts, plan_facts
from capstan.storage.ledger.certificate import Certificate

_SHOWN = 100
_SAMPLE = 5
Parts = list[Heading | DocumentTable | str]


def plan_document(plan: Json) -> TextDocument:
    """A plan (`Preview.to_json`)."""
    title = Heading(f"Plan: {plan.get('stream')} into {plan.get('target')}")
    parts: Parts = [title, DocumentTable.facts(plan_facts(plan, cell_text))]
    diff = plan.get("diff")
    return TextDocument([*parts, *_difference(diff)] if isinstance(diff, Mapping) else parts)


def certificate_document(result: Json) -> TextDocument:
    """The certificate of a replay, from its XCom."""
    replayed = ReplayResult.from_json(result)
    if replayed.certificate is None:
        nothing = "There is nothing new, and nothing was published before."
        return TextDocument([Heading("Nothing to replay"), nothing])
    return TextDocument(_certificate(replayed.certificate, unchanged=replayed.unchanged))


def _certificate(certificate: Certificate, *, unchanged: bool = False) -> Parts:
    facts = certificate_facts(certificate, cell_text, unchanged=unchanged)
    return [Heading(f"Certificate of {certificate.run}"), DocumentTable.facts(facts)]


def approval_document(certificate: Certificate, other_than: str | None = None) -> TextDocument:
    """What a person decides on: the certificate of a waiting run, and its changes.

    If it is given, the person `other_than` may not approve.
    """
    rest = "If you reject it, it stays there, and the table does not change."
    staged = f"The output is staged at {certificate.staging}. {rest}"
    parts = [*_certificate(certificate), *_difference(certificate.diff or {}, _SAMPLE), staged]
    if other_than:
        parts.append(f"Somebody other than {other_than} has to approve.")
    return TextDocument(parts)


def _difference(difference: Json, shown: int | None = None) -> Parts:
    """Changes to a target, with a sample of rows, of which `shown` are shown."""
    facts = DocumentTable.facts(difference_facts(difference, cell_text))
    parts: Parts = [Heading("What publishing would change"), facts]
    names = ("kind", "worker", "time", "before", "after")
    sample = [[_row(row.get(name)) for name in names] for row in difference.get("sample") or ()]
    if sample:
        parts.append(DocumentTable(("change", *names[1:]), sample[:shown]))
    if shown is not None and len(sample) > shown:
        parts.append(f"The page of the run shows {len(sample) - shown} more of these rows.")
    return parts


def _row(value: object) -> object:
    """A row as text, with column names."""
    return pairs_text(value) if isinstance(value, Mapping) else value


def audits_document(result: Json) -> TextDocument:
    """The result of the job `audit`: several runs, or one table."""
    rows = []
    for audit in result.get("audits", [result] if "kind" in result else []):
        version = "newest" if audit.get("version") is None else audit["version"]
        error = f"not audited: {audit.get('message')}"
        text = audit_text(audit, cell_text) if "kind" in audit else error
        rows.append((audit.get("run"), audit.get("target"), version, audit.get("kind"), text))
    table = DocumentTable(("run", "target", "version", "audit", "result"), rows)
    return TextDocument([Heading("Audits of published tables"), table])


def rollback_document(result: Json) -> TextDocument:
    """The result of the job `rollback`."""
    r = RollbackResult.from_json(result)
    facts = [
        ("stream", r.stream),
        ("workers", r.workers),
        ("times", bounds_text(r.since, r.until, cell_text)),
        ("target", f"{r.target}: version {r.target_version} has the previous rows"),
        ("rolled back", "already before, nothing changed" if r.unchanged else "now"),
    ]
    return TextDocument([Heading(f"Rolled back: {r.run}"), DocumentTable.facts(facts)])


def gaps_document(entries: Iterable[Json]) -> TextDocument:
    """A report of gaps: interval counts per replay, then the uncovered intervals."""
    rows = []
    uncovered: Parts = []
    for entry in entries:
        text = entry.get("message", "")
        if "counts" in entry:
            text = ", ".join(f"{n} {state}" for state, n in entry["counts"].items() if n) or "none"
        rows.append((entry["replay"], entry["target"], text))
        uncovered += _uncovered(entry)
    table = DocumentTable(("replay", "target", "intervals"), rows)
    return TextDocument([Heading("Coverage of declared replays"), table, *uncovered])


def backfills_document(result: Json) -> TextDocument:
    """The result of the job `backfill`."""
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
    return TextDocument([Heading("Backfills"), DocumentTable(columns, rows)])


def runs_of(result: Json) -> Iterator[Json]:
    """The runs in the result of one backfill, or of several."""
    for backfill in result.get("backfills", [result]):
        yield from backfill.get("runs", ())


def _uncovered(entry: Json) -> Parts:
    """A table of a replay's uncovered stretches, and the reason when it is not filled."""
    stretches = entry.get("stretches")
    parts: Parts = []
    if stretches:
        rows = [
            (part["since"], part["until"], part["state"], ", ".join(part["missing"]))
            for part in stretches[:_SHOWN]
        ]
        table = DocumentTable(("since", "until", "state", "workers"), rows)
        parts = [Heading(entry["replay"], 3), table]
        if len(stretches) > _SHOWN:
            parts.append(f"and {len(stretches) - _SHOWN} more")
    problem = entry.get("not_filled")
    return [*parts, f"Not filled: {problem}"] if problem else parts


def maintained_document(result: Json) -> TextDocument:
    """A maintenance result (`MaintenanceResult.to_json`)."""
    names = ("stream", "table", "files_before", "files", "bytes", "rewritten", "vacuumed")
    rows = [
        (*map(entry.get, names), ", ".join(f"{a} to {b}" for a, b in entry["damaged"]))
        for entry in result.get("tables", ())
    ]
    columns = (*(name.replace("_", " ") for name in names), "damaged")
    parts: Parts = [Heading("Maintenance"), DocumentTable(columns, rows)]
    parts += [f"skipped: {error['message']}" for error in result.get("busy", ())]
    for name in ("failed", "violations"):
        parts += [f"{error['error']}: {error['message']}" for error in result.get(name, ())]
    if "message" in result and not result.get("failed") and result.get("error") != "CAP-VIOLATION":
        parts.append(f"{result['error']}: {result['message']}")
    return TextDocument(parts)
