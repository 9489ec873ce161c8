"""The app `publish`: carries out a person's decision, by publishing or rejecting a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan.jobs.job_types import JobResult, Place
from capstan.replay.execution.approval import Decision, reject, rejected, require_waiting
from capstan.replay.run import publish
from capstan.storage.ledger.runs import Step, read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The request of `capstan.jobs.publish`: a waiting run, and the decision on it.

    Attributes:
        run: The run.
        approved: Whether to publish it; otherwise it is rejected.
        by: The person who decided; None publishes a run that needs no approval.
        at: The time of the decision, ISO 8601; now if empty.
        reason: The reason given.
    """

    run: str
    approved: bool = True
    by: str | None = None
    at: str = ""
    reason: str = ""

    @property
    def decision(self) -> Decision | None:
        """The decision; None if nobody is named.

        Raises:
            InvalidRequestError: `CAP-DECISION` when a rejection names nobody.
        """
        if self.by is None and self.approved:
            return None
        return Decision(self.by or "", self.at, self.reason)


def require_decidable(place: Place, request: PublishRequest) -> None:
    """Check without a JVM that the run can be published or rejected.

    Raises:
        InvalidRequestError: `CAP-LAKE`, `CAP-RUN`, `CAP-NOT-AUDITED`, `CAP-DECISION`.
        CheckFailedError: `CAP-REJECTED` when a rejected run is to be published.
    """
    place.lake.require()
    history = read_history(place.lake, request.run)
    rejected_before = history.last.step is Step.REJECTED
    # After an interrupted publish, only the target shows how far it got.
    begun = history.effective_intent is not None and not rejected_before
    if not (begun if request.approved else rejected_before):
        require_waiting(history)
    if request.by is not None or not request.approved:
        Decision(request.by or "")


def decide(spark: SparkSession, place: Place, request: PublishRequest) -> JobResult:
    """Publish a run, or mark it as rejected.

    Returns:
        The certificate; for a rejected run, the decision with the refusal `CAP-REJECTED`.
    """
    if request.approved:
        declarations = place.declarations()
        outcome = publish(spark, place.lake, declarations, request.run, request.decision)
        return JobResult(outcome.to_json())
    decision = request.decision
    assert decision is not None
    row = reject(place.lake, request.run, decision)
    value = {"run": row.run, "stream": row.stream, "target_path": row.target, "published": False}
    return JobResult({**value, "rejected": dict(row.detail)}, rejected(row))
