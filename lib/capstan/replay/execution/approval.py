"""What a person decides of a run that waits after its audit: published, or rejected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.replay.execution.fencing import runs_published_since
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History, Row, Step

if TYPE_CHECKING:
    from capstan.replay.execution.job import Job


@dataclass(frozen=True, slots=True)
class Decision:
    """Who has decided, when and why.

    Attributes:
        by: The person, as the place knows them where it was decided.
        at: When, in UTC, ISO 8601; the present moment where it is empty.
        reason: What they said; may be empty.
    """

    by: str
    at: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.by.strip():
            raise InvalidRequestError(
                "CAP-DECISION", "nobody is named who has decided", "say who it was"
            )
        if not self.at:
            object.__setattr__(self, "at", datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, object]:
        """The decision as the ledger and the certificate have it."""
        return asdict(self)


def waiting(history: History) -> Row | None:
    """The row by which a run waits to be published, if it does; approved or not."""
    if history.last.step not in (Step.AUDITED, Step.APPROVED):
        return None
    found = [r for r in history.rows if r.attempt == history.last.attempt]
    return next((row for row in reversed(found) if row.step is Step.AUDITED), None)


def require_waiting(history: History) -> Row:
    """The row by which a run waits to be published.

    Raises:
        CheckFailedError: `CAP-REJECTED` for one that was rejected, with who did and why.
        InvalidRequestError: `CAP-NOT-AUDITED` for one that does not wait.
    """
    found = waiting(history)
    if found is not None:
        return found
    run, last = history.last.run, history.last
    if last.step is Step.REJECTED:
        raise rejected(last)
    raise InvalidRequestError(
        "CAP-NOT-AUDITED",
        f"run {run} does not wait to be published: its last step was {last.step}",
        "replay again; with --hold it stops after the audit",
        run=run,
    )


def rejected(row: Row) -> CheckFailedError:
    """The error of a run that a person has rejected."""
    reason = row.detail.get("reason")
    said = f": {reason}" if reason else ""
    return CheckFailedError(
        "CAP-REJECTED",
        f"run {row.run} was rejected by {row.detail.get('by')} at {row.detail.get('at')}{said}",
        f"the target is as it was; what it staged is at {row.detail.get('staging')}",
        run=row.run,
        by=row.detail.get("by"),
        reason=reason,
        staging=row.detail.get("staging"),
    )


def reject(lake: Lake, run: str, decision: Decision) -> Row:
    """Mark a run that waits as rejected: it holds its range no more, and what it staged stays.

    A run that was rejected already stays so, by whom it was.

    Returns:
        The row that says so.

    Raises:
        InvalidRequestError: `CAP-RUN` for an unknown run, `CAP-NOT-AUDITED` for one that does not
            wait.
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
            # Of somebody who was about to publish it, and was cut off.
            claims.release(lake, run, claim.attempt)
    emit("replay.rejected", run=run)
    return runs.read_history(lake, run).last


def require_unmoved(job: Job, history: History) -> None:
    """Check that nobody has published into the range since the run was audited.

    While a run waits its claim may have run out, or been unlocked; then what was shown to who has
    approved it is no longer what publishing would do.

    Args:
        job: The run, at an attempt that publishes what was audited.
        history: What it has done.

    Raises:
        InvalidRequestError: `CAP-LATER`, naming the run that was published.
    """
    intent = history.intent(job.source)
    before = -1 if intent is None else int(str(intent.detail["target_version"]))
    for other in runs_published_since(job.lake, job.plan.scope, before, job.run.name):
        raise InvalidRequestError(
            "CAP-LATER",
            f"run {other} wrote over part of the range of {job.run.name}, after that was audited",
            "replay again: what it would change is another matter now",
            run=job.run.name,
            later=other,
        )
