"""Approval of runs that wait after their audit: publish or reject."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.errors.shell_command import command
from capstan.replay.execution.fencing import runs_published_since
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History, Row, Step
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from capstan.replay.execution.job import Job


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a person: who, when and why.

    Attributes:
        by: The person's user name, in the system in which the decision was made.
        at: The time in UTC, ISO 8601; the present moment when it is empty.
        reason: The reason; may be empty.
    """

    by: str
    at: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.by.strip():
            raise InvalidRequestError(
                "CAP-DECISION", "the decision names no person", "name the person who decided"
            )
        if not self.at:
            object.__setattr__(self, "at", datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, object]:
        """The object that the ledger and the certificate store."""
        return asdict(self)


def waiting(history: History) -> Row | None:
    """The audit row of a run that waits to be published, approved or not; else None."""
    if history.last.step not in (Step.AUDITED, Step.APPROVED):
        return None
    attempt = [row for row in history.rows if row.attempt == history.last.attempt]
    return next((row for row in reversed(attempt) if row.step is Step.AUDITED), None)


def require_waiting(history: History) -> Row:
    """The audit row of a run that waits to be published."""
    row = waiting(history)
    if row is not None:
        return row
    run, last = history.last.run, history.last
    if last.step is Step.REJECTED:
        raise rejected(last)
    raise InvalidRequestError(
        "CAP-NOT-AUDITED",
        f"run {run} does not wait to be published: its last step was {last.step}",
        "replay again with --hold, which stops after the audit",
        run=run,
    )


def rejected(row: Row) -> CheckFailedError:
    """The error of a rejected run."""
    reason = row.detail.get("reason")
    suffix = f": {reason}" if reason else ""
    return CheckFailedError(
        "CAP-REJECTED",
        f"run {row.run} was rejected by {row.detail.get('by')} at {row.detail.get('at')}{suffix}",
        f"the target is unchanged; the staged output is at {row.detail.get('staging')}",
        run=row.run,
        by=row.detail.get("by"),
        reason=reason,
        staging=row.detail.get("staging"),
    )


def reject(lake: Lake, run: str, decision: Decision) -> Row:
    """Reject a run that waits: its lock is released, its staged output stays; the row of it.

    Rejecting a run again changes nothing; the first decision counts.
    """
    history = runs.read_history(lake, run)
    if history.last.step is Step.REJECTED:
        return history.last
    row = require_waiting(history)
    runs.write_step(
        lake,
        RunId.named(row.run, row.identity, row.generation, row.target),
        row.attempt,
        Step.REJECTED,
        stream=row.stream,
        target=row.target,
        detail={**decision.to_json(), "staging": row.detail["staging"]},
    )
    for claim in claims.active(lake, row.target):
        if claim.run == run:
            # The claim of a publish that was cut off.
            claims.release(lake, run, claim.attempt)
    emit("replay.rejected", run=run)
    return runs.read_history(lake, run).last


def require_unmoved(job: Job, history: History) -> None:
    """Check that no other run has published into the range since the audit, into the same table."""
    # While a run waits, its claim may expire or be unlocked. Then publishing could do something
    # else than the person who approved it was shown.
    intent, path = history.intent(job.source), job.plan.target
    table = None if intent is None else intent.detail.get("table")
    if table and not (is_table(path) and delta.identity_of(path) == table):
        raise InvalidRequestError(
            "CAP-GONE",
            f"the table for which run {job.run.name} was audited is no longer at {path}",
            f"replay again, and end this run: {command('reject', job.run.name)}",
            run=job.run.name,
            target=path,
        )
    before = -1 if intent is None else intent.target_version
    for other in runs_published_since(job.lake, job.plan.locks, before, job.run.name):
        raise InvalidRequestError(
            "CAP-LATER",
            f"run {other} wrote over part of the range of {job.run.name} after its audit",
            "replay again: it would now change other rows than those that were reviewed",
            run=job.run.name,
            later=other,
        )
