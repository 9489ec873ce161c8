"""What a person's decision comes to: the run is published, or marked as rejected."""

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
    """What `spark_apps/publish.py` is asked: a run that waits, and what was decided of it.

    Attributes:
        run: The run.
        approved: Whether it is to be published; else it is rejected.
        by: Who has decided; None publishes a run that nobody's approval was asked for.
        at: When, ISO 8601; the present moment where it is empty.
        reason: What they said.
    """

    run: str
    approved: bool = True
    by: str | None = None
    at: str = ""
    reason: str = ""

    @property
    def decision(self) -> Decision | None:
        """Who has decided; None where nobody is named.

        Raises:
            InvalidRequestError: `CAP-DECISION` where it is rejected by nobody.
        """
        if self.by is None and self.approved:
            return None
        return Decision(self.by or "", self.at, self.reason)


def require_decidable(place: Place, asked: PublishRequest) -> None:
    """Check without a JVM that there is something to decide.

    Raises:
        InvalidRequestError: `CAP-LAKE`, `CAP-RUN`, `CAP-NOT-AUDITED`, `CAP-DECISION`.
        CheckFailedError: `CAP-REJECTED` for a run that was rejected before, and is to be published.
    """
    place.lake.require()
    history = read_history(place.lake, asked.run)
    rejected_before = history.last.step is Step.REJECTED
    # Of one that was cut off in the midst of its publish, its target alone knows how far it got.
    begun = history.intended is not None and not rejected_before
    if not (begun if asked.approved else rejected_before):
        require_waiting(history)
    if asked.by is not None or not asked.approved:
        Decision(asked.by or "")


def decide(spark: SparkSession, place: Place, asked: PublishRequest) -> JobResult:
    """Publish a run, or mark it as rejected.

    Returns:
        The certificate; of a rejected run who has rejected it, with the refusal `CAP-REJECTED`.
    """
    if asked.approved:
        declarations = place.declarations()
        outcome = publish(spark, place.lake, declarations, asked.run, asked.decision)
        return JobResult(outcome.to_json())
    decision = asked.decision
    assert decision is not None
    row = reject(place.lake, asked.run, decision)
    value = {"run": row.run, "stream": row.stream, "target_path": row.target, "published": False}
    return JobResult({**value, "rejected": dict(row.detail)}, rejected(row))
