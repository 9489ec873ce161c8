"""Taking a run back: what can be told of it without Spark, and the rollback itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError
from capstan.jobs.job_types import JobResult, Place
from capstan.replay.execution.job import draft_of, require_intent
from capstan.replay.output import target_table
from capstan.replay.run import rollback
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.runs import History, Step, read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """What `spark_apps/rollback.py` is asked: the run that is to be taken back."""

    run: str


def require_reversible(lake: Lake, run: str) -> History:
    """Check without a JVM that a run can be taken back, or was taken back already.

    Of a run that was cut off in the midst of its publish, its target alone knows how far it got;
    the rollback itself writes down what the ledgers lack.

    Returns:
        The run's history.

    Raises:
        InvalidRequestError: `CAP-LAKE`; `CAP-RUN` for an unknown run; `CAP-NOT-PUBLISHED` for one
            that has published nothing; `CAP-LATER` when a later run wrote over part of it.
    """
    lake.require()
    history = read_history(lake, run)
    if history.rolled_back:
        return history
    over = history.last.step in (Step.FAILED, Step.REJECTED, Step.AUDITED, Step.APPROVED)
    over = over and not history.published and not _landed(history)
    if history.intended is None or over:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {run} has published nothing that stands: its last step was {history.last.step}",
            "see `capstan runs`",
            run=run,
        )
    for own in coverage.standing(lake, history.last.target):
        if own.run == run:
            _require_last(lake, own)
    return history


def _landed(history: History) -> bool:
    """Whether the target has a publish of a run that was killed before it could say so."""
    first = history.first_intent
    if first is None:
        return False
    run = history.run_id
    # Mostly enough, and without a look at the target's log.
    if target_table.latest_txn_version(first.target, run) < run.change(first.attempt).version:
        return False
    since = int(str(first.detail["target_version"]))
    return target_table.find_publish(first.target, first.run, since) is not None


def _require_last(lake: Lake, own: coverage.Covered) -> None:
    for later in coverage.later_than(lake, own):
        raise InvalidRequestError(
            "CAP-LATER",
            f"run {later.run} wrote over part of what {own.run} published",
            f"roll back {later.run} first",
            run=own.run,
            later=later.run,
        )


def take_back(spark: SparkSession, place: Place, asked: RollbackRequest) -> JobResult:
    """Take a run back.

    Returns:
        `run`, `stream`, `target` and `target_path`, what it had played (`workers`, `since`,
        `until`), `target_version`, which has the rows of before, `rolled_back` (true), and `stood`,
        whether it was taken back before.
    """
    stood = read_history(place.lake, asked.run).rolled_back
    version = rollback(spark, place.lake, place.declarations(), asked.run)
    history = read_history(place.lake, asked.run)
    draft = draft_of(require_intent(history))
    told = {name: draft.get(name) for name in ("stream", "target", "workers", "since", "until")}
    return JobResult(
        {
            "run": asked.run,
            **told,
            "target_path": history.last.target,
            "target_version": version,
            "rolled_back": True,
            "stood": stood,
        }
    )
