"""Backfills: runs the replays of a request in order, in one Spark session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capstan.backfill.hold import wait_until, why_held
from capstan.backfill.planner import BackfillRequest, plan_replays, survey_range
from capstan.backfill.survey import Survey
from capstan.core.config import ProjectConfig, Replay
from capstan.core.config.durations import Rate
from capstan.errors import CapstanError, translation
from capstan.replay.adjoining import replay_together
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.storage.delta.delta import read_commit
from capstan.storage.lake import Lake
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.spark.session import Later

_AGAIN = "run the same command again"
_RESULT_KEYS = ("run", "records", "target_version", "published", "unchanged")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one replay of a backfill; None if it failed or was not run."""

    request: Request
    outcome: ReplayResult | None = None
    error: CapstanError | None = None

    def done(self, rate: Rate) -> int:
        """The rows that it has read, or the bytes that it has written, whichever a rate is of."""
        outcome = self.outcome
        if outcome is None or outcome.unchanged or outcome.certificate is None:
            return 0
        certificate = outcome.certificate
        if not rate.in_bytes:
            return certificate.records
        version = certificate.target_version
        actions = [] if version is None else read_commit(certificate.target_path, version)
        return sum(action["add"]["size"] for action in actions if "add" in action)

    def to_json(self) -> dict[str, object]:
        """The replay as a JSON object, with its certificate once it has run."""
        workers = self.request.workers
        chosen = {key: list(names) for key, names in self.request.workers_of.items()}
        value: dict[str, object] = {
            "since": self.request.since,
            "until": self.request.until,
            "workers": None if workers is None else list(workers),
            **({"workers_of": chosen} if chosen else {}),
            **dict.fromkeys(_RESULT_KEYS),
            **({} if self.outcome is None else self.outcome.to_json()),
        }
        return value if self.error is None else {**value, **self.error.summary()}


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The result of a backfill, or its plan before it has run.

    If a replay has failed, or the others may not begin, `results` is shorter than `replays`.
    """

    request: BackfillRequest
    survey: Survey
    replays: tuple[Request, ...]
    results: tuple[RunResult, ...] = ()
    held: CapstanError | None = None  # why the replays that are left may not begin

    @property
    def error(self) -> CapstanError | None:
        """Why the others may not begin, else the error of the first failed replay; None if done."""
        failed = next((run.error for run in self.results if run.error is not None), None)
        return failed if self.held is None or self.request.dry_run else self.held

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """All replays, with the results of those that were run."""
        return (*self.results, *map(RunResult, self.replays[len(self.results) :]))

    def to_json(self) -> dict[str, object]:
        """The backfill as a JSON object; `counts` are those of the intervals before it."""
        outcomes = [run.outcome for run in self.results if run.outcome is not None]
        head = {key: value for key, value in self.survey.to_json().items() if key != "intervals"}
        return {
            **head,
            "what": str(self.request.what),
            "order": str(self.request.order),
            "chunk": self.request.chunk,
            **self.survey.declared.backfill.to_json(),
            "dry_run": self.request.dry_run,
            "held": None if self.held is None else self.held.message,
            "runs": [run.to_json() for run in self.runs],
            "done": sum(not outcome.unchanged for outcome in outcomes),
            "unchanged": sum(outcome.unchanged for outcome in outcomes),
            "failed": sum(run.error is not None for run in self.results),
            "left": len(self.replays) - len(self.results),
        }

    def raise_for_errors(self) -> BackfillResult:
        """Return this backfill if no replay has failed or was held."""
        if self.error is not None:
            raise self.error
        return self


def prepare(
    lake: Lake, config: ProjectConfig, request: BackfillRequest, session: Later | None = None
) -> BackfillResult:
    """Plan a backfill, without changing a target; see `survey`.

    Raises:
        IncompleteError: Its runs may not begin now, and it is no dry run.
    """
    declared = config.replay(request.replay)
    request = request.under(declared.backfill)
    held = why_held(lake, declared)
    if held is not None and not request.dry_run:
        raise held
    survey = survey_range(lake, config, request, session)
    return BackfillResult(request, survey, tuple(plan_replays(survey, request)), held=held)


def run_prepared(
    spark: SparkSession, lake: Lake, config: ProjectConfig, prepared: BackfillResult
) -> BackfillResult:
    """Run the replays planned by `prepare`; a dry run does nothing.

    Each replay is a run of its own, so a killed backfill resumes with the missing run; copies of
    adjoining ranges share their Spark jobs. Published replays are not repeated. A failed replay
    ends the backfill unless it is to keep going; the result has its error and the runs before it.
    So does a pause: runs at work are ended, and no other begins.
    """
    request, results = prepared.request, list[RunResult]()
    replays = () if request.dry_run else prepared.replays
    held = prepared.held
    for result in _results(spark, lake, config, replays, prepared.survey.declared):
        if isinstance(result, CapstanError):
            held = result
            break
        results.append(result)
        emit(
            "backfill.run",
            replay=request.replay,
            number=len(results),
            of=len(prepared.replays),
            failed=results[-1].error is not None,
        )
        if results[-1].error is not None and not request.keep_going:
            break
    return replace(prepared, results=tuple(results), held=held)


def _results(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    replays: Sequence[Request],
    declared: Replay,
) -> Iterator[RunResult | CapstanError]:
    """Run replays in order: as many at once as are alike, else one; or why the next must wait."""
    policy, results = declared.backfill, list[RunResult]()
    begun = time.monotonic()
    while replays:
        held: CapstanError | None
        try:
            rate = policy.rate
            lasts = 0.0 if rate is None else rate.seconds(sum(each.done(rate) for each in results))
            held = wait_until(begun + lasts, lake, declared)
        except Exception as error:
            held = translation.to_capstan_error(error, _AGAIN)
        if held is not None:
            yield held
            return
        begun = time.monotonic()
        outcomes = replay_together(spark, lake, config, replays[: policy.at_most])
        results = [
            RunResult(request, error=outcome)
            if isinstance(outcome, CapstanError)
            else RunResult(request, outcome)
            for request, outcome in zip(replays, outcomes, strict=False)
        ] or [_run(spark, lake, config, replays[0])]
        yield from results
        replays = replays[len(results) :]


def _run(spark: SparkSession, lake: Lake, config: ProjectConfig, request: Request) -> RunResult:
    try:
        return RunResult(request, replay(spark, lake, config, request))
    except Exception as error:
        # Completed runs must be reported even if Spark itself fails.
        return RunResult(request, error=translation.to_capstan_error(error, _AGAIN))
