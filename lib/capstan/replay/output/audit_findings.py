"""From an audit that found something to rows of the findings ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capstan.audit import Audit, Finding
from capstan.audit.result import CHECK, TAPE, render
from capstan.instrumentation import emit
from capstan.replay.planning.plan import Plan
from capstan.storage.lake import Lake
from capstan.storage.ledger.findings import AuditSubject, write_findings
from capstan.storage.ledger.findings import Finding as Noted
from capstan.storage.ledger.tables import as_text

if TYPE_CHECKING:
    from capstan.core.times import TimeType


def note_findings(
    lake: Lake,
    plan: Plan,
    audit: Audit,
    *,
    run: str = "",
    attempt: int = 0,
    target_version: int | None = None,
) -> None:
    """Write down what an audit found; one that has passed leaves nothing.

    Args:
        lake: The lake.
        plan: What was audited: its stream, cut and target.
        audit: The audit.
        run: The run whose rows they are; empty for a table that stands for itself.
        attempt: Its attempt.
        target_version: The audited version; None for what is staged, or for the newest.
    """
    if audit.passed:
        return
    about = AuditSubject(
        run,
        attempt,
        plan.tape.name,
        plan.cut.commit,
        plan.target,
        target_version,
        audit.kind,
    )
    found = list(noted(audit, plan.tape.time_type))
    write_findings(lake, about, found)
    emit("audit.findings", run=run, findings=len(found))


def noted(audit: Audit, time_type: TimeType) -> Iterator[Noted]:
    """The findings of an audit, each with the total of its kind; none of a kind is passed over."""
    shown: set[tuple[str, str]] = set()
    totals = {(kind, ""): count for kind, count in audit.totals.items()}
    totals |= {(CHECK, check.name): check.failing for check in audit.checks}
    for finding in audit.shown:
        key = _key(finding)
        shown.add(key)
        time = (
            None
            if all(value is None for value in finding.time)
            else render(time_type, finding.time)
        )
        yield Noted(
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
            yield Noted(kind, count, check=check)


def _key(finding: Finding) -> tuple[str, str]:
    return (TAPE if finding.where == TAPE else finding.kind, finding.check)
