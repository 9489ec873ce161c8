"""A backfill from request to result: its replays one after the other, in one Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan import error_translation
from capstan.backfill.planner import Backfill, propose, surveyed
from capstan.backfill.survey import Survey
from capstan.core.config import ProjectConfig
from capstan.errors import CapstanError
from capstan.instrumentation import emit
from capstan.replay.planning.request import Request
from capstan.replay.run import ReplayResult, replay
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_OUTCOME = ("run", "records", "target_version", "published", "stood")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of one replay of a backfill.

    Attributes:
        request: The replay.
        outcome: What it came to; None where it failed, or was not run.
        error: Why it failed.
    """

    request: Request
    outcome: ReplayResult | None = None
    error: CapstanError | None = None

    def to_json(self) -> dict[str, object]:
        """The replay as `--json` prints it: with its certificate, once it has run."""
        value: dict[str, object] = {
            "since": self.request.since,
            "until": self.request.until,
            "workers": None if self.request.workers is None else list(self.request.workers),
            **dict.fromkeys(_OF_OUTCOME),
            **({} if self.outcome is None else self.outcome.to_json()),
        }
        return value if self.error is None else {**value, **self.error.summary()}


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill came to, or before it has run, what it would do.

    Attributes:
        asked: What was asked.
        survey: The intervals as they were before.
        proposed: The replays that it takes, in their order.
        ran: Those that were run; fewer when one has failed.
    """

    asked: Backfill
    survey: Survey
    proposed: tuple[Request, ...]
    ran: tuple[RunResult, ...] = ()

    @property
    def error(self) -> CapstanError | None:
        """Why the first of those that failed has failed; None when none did."""
        return next((each.error for each in self.ran if each.error is not None), None)

    def to_json(self) -> dict[str, object]:
        """The backfill as `--json` prints it; `counts` are of the intervals as they were before."""
        told = [*self.ran, *map(RunResult, self.proposed[len(self.ran) :])]
        outcomes = [each.outcome for each in self.ran if each.outcome is not None]
        about = {key: value for key, value in self.survey.to_json().items() if key != "intervals"}
        return {
            **about,
            "what": str(self.asked.what),
            "order": str(self.asked.order),
            "chunk": self.asked.chunk,
            "dry_run": self.asked.dry_run,
            "runs": [each.to_json() for each in told],
            "done": sum(not outcome.unchanged for outcome in outcomes),
            "stood": sum(outcome.unchanged for outcome in outcomes),
            "failed": sum(each.error is not None for each in self.ran),
            "left": len(self.proposed) - len(self.ran),
        }


def prepare(lake: Lake, declarations: ProjectConfig, asked: Backfill) -> Backfilled:
    """What a backfill would do, without a JVM and without changing anything.

    Raises:
        InvalidRequestError: As `survey` and `propose`.
    """
    found = surveyed(lake, declarations, asked)
    return Backfilled(asked, found, tuple(propose(found, asked)))


def backfill(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, asked: Backfill
) -> Backfilled:
    """Carry out a backfill; what stands already is not done again.

    Each replay is a run of its own, so that what was killed goes on with the run that is missing.
    One that fails ends the backfill, unless it is asked to keep going; its error is told, with the
    runs that were done before.

    Raises:
        InvalidRequestError: As `survey` and `propose`, before anything is changed.
    """
    return carry_out(spark, lake, declarations, prepare(lake, declarations, asked))


def carry_out(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, prepared: Backfilled
) -> Backfilled:
    """Run what `prepare` has proposed; nothing of a dry run."""
    asked, ran = prepared.asked, list[RunResult]()
    for request in () if asked.dry_run else prepared.proposed:
        ran.append(_run(spark, lake, declarations, request))
        emit(
            "backfill.run",
            replay=asked.replay,
            number=len(ran),
            of=len(prepared.proposed),
            failed=ran[-1].error is not None,
        )
        if ran[-1].error is not None and not asked.keep_going:
            break
    return Backfilled(asked, prepared.survey, prepared.proposed, tuple(ran))


def _run(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, request: Request
) -> RunResult:
    try:
        return RunResult(request, replay(spark, lake, declarations, request))
    except Exception as error:
        # What is already done has to be told also when Spark itself gives up.
        return RunResult(
            request, error=error_translation.to_capstan_error(error, "give the same command again")
        )
