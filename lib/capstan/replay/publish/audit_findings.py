"""Findings of a failed audit, as rows of the findings ledger."""

from __future__ import annotations

from collections.abc import Iterator

from capstan.audit import Audit
from capstan.audit.result import CHECK, TAPE, render
from capstan.core.times import TimeType
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger import findings
from capstan.storage.ledger.findings import AuditSubject, write_findings
from capstan.storage.ledger.tables import as_text
from capstan.telemetry.instrumentation import emit


def record_findings(
    plan: Plan, audit: Audit, run: str = "", attempt: int = 0, target_version: int | None = None
) -> None:
    """Record the findings of an audit of a run, or of none; a passed audit leaves no rows."""
    if audit.passed:
        return
    subject = AuditSubject(
        run,
        attempt,
        plan.request.stream,
        plan.inputs.cut.commit,
        plan.target,
        target_version,
        audit.kind,
    )
    rows = list(finding_rows(audit, plan.inputs.tape.time_type))
    write_findings(plan.lake, subject, rows)
    emit("audit.findings", run=run, findings=len(rows))


def finding_rows(audit: Audit, time_type: TimeType) -> Iterator[findings.StoredFinding]:
    """The findings of an audit with the total of their kind; every kind has at least one row."""
    shown: set[tuple[str, str]] = set()
    totals = {(kind, ""): count for kind, count in audit.totals.items()}
    totals |= {(CHECK, check.name): check.failing for check in audit.checks}
    for finding in audit.shown:
        key = (TAPE if finding.where == TAPE else finding.kind, finding.check)
        shown.add(key)
        time = (
            None
            if all(value is None for value in finding.time)
            else render(time_type, finding.time)
        )
        yield findings.StoredFinding(
            key[0],
            totals.get(key, 0),
            finding.worker,
            time if time is None or isinstance(time, str) else as_text(time),
            finding.expected,
            finding.actual,
            finding.check,
        )
    for (kind, check), count in totals.items():
        if count and (kind, check) not in shown:
            yield findings.StoredFinding(kind, count, check=check)
