"""A run in progress: its plan, its identity, its attempt, and the ledger rows that it writes."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from capstan.core.config import ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.replay.planning.intent import Intent, Placement
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan, with_region
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_places import find_lookups, locate, lookup_names
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History, Row, Step
from capstan.storage.ledger.tables import read_places


@dataclass(frozen=True, slots=True)
class Job:
    """The state that every step of a run needs."""

    spark: SparkSession
    lake: Lake
    plan: Plan
    run: RunId
    started: float  # Its start on the monotonic clock, in seconds.
    attempt: int = 0  # The attempt's number; 0 before it has claimed anything.
    # The attempt whose output is published, when another one claims for it.
    played: int | None = None

    @property
    def name(self) -> str:
        """The name of the run's attempt, for its staged output and its state."""
        return f"{self.run.name}-{self.source}"

    @property
    def source(self) -> int:
        """The attempt whose output is published."""
        return self.attempt if self.played is None else self.played

    def at(self, attempt: int, played: int | None = None) -> Job:
        """The same run at an attempt, which may publish the output of another one."""
        return replace(self, attempt=attempt, played=played)

    def claimed(self, scope: Scope | None = None) -> Job:
        """The same run at its next attempt, which locks a scope: by default that of its plan."""
        wanted, stream = scope or self.plan.locks, self.plan.request.stream
        attempt = claims.claim(self.lake, self.run, stream, wanted)
        return self.at(attempt, self.played)

    def ensure_lock(self) -> None:
        """Check that the attempt still holds its lock, right before changing the target."""
        claims.ensure_held(self.lake, self.run.name, self.attempt)

    def write(self, step: Step, detail: Mapping[str, object]) -> None:
        """Append a row to the runs ledger."""
        write_all(step, [(self, detail)])

    def finish(self, step: Step, detail: Mapping[str, object]) -> None:
        """Append the row that ends the run, and with it the newest claim of any attempt."""
        finish_all(step, [(self, detail)])

    def intent(self, draft: Certificate, columns: Sequence[str]) -> Intent:
        """The intent of the attempt."""
        plan, version = self.plan, delta.version_of(self.plan.target)
        return Intent(
            request=plan.request,
            cut=plan.inputs.cut.commit,
            region=plan.region,
            reached=plan.reached,
            code=plan.computation.code,
            placed=Placement(plan.layout.worker, plan.layout.time, plan.computation.worker_source),
            keys=plan.keys,
            columns=tuple(columns),
            target_version=-1 if version is None else version,
            certificate=draft,
            cuts=plan.inputs.cuts if plan.inputs.several else {},
            lookups=plan.computation.lookup_pins,
            table="" if version is None else delta.identity_of(plan.target),
            tapes=tuple(stream.tape.identity for stream in plan.inputs),
        )

    def covered(self, version: int) -> Covered:
        """The run's entry in the coverage ledger."""
        plan = self.plan
        return Covered(
            self.run.name,
            self.run.generation,
            plan.request.stream,
            plan.scope,
            plan.computation.name,
            plan.computation.code,
            plan.inputs.cut.commit,
            version,
        )


def write_all(step: Step, details: Sequence[tuple[Job, Mapping[str, object]]]) -> None:
    """Append a row for each of some runs in a lake to its runs ledger, in one commit."""
    rows = [
        runs.step_row(
            job.run,
            job.attempt,
            step,
            stream=job.plan.request.stream,
            target=job.plan.target,
            detail=detail,
        )
        for job, detail in details
    ]
    runs.write_steps(details[0][0].lake, rows)


def finish_all(step: Step, details: Sequence[tuple[Job, Mapping[str, object]]]) -> None:
    """Append the rows that end some runs, and with them the newest claims of any attempt."""
    lake = details[0][0].lake
    newest = claims.last_attempts(lake, [job.run.name for job, _ in details])
    ended = [
        (replace(job, attempt=max(job.attempt, newest[job.run.name])), detail)
        for job, detail in details
    ]
    write_all(step, ended)


def located(spark: SparkSession, lake: Lake, config: ProjectConfig, run: str) -> History:
    """The history of a run, once its target was found where it is now."""
    intent = runs.read_history(lake, run).effective_intent
    if intent is not None:
        request = Intent.from_json(intent.detail).request
        locate(spark, lake, config, request.into)
        with suppress(InvalidRequestError):  # They may be gone, and the run be rolled back.
            lookups = lookup_names(config, request.pipeline)
            find_lookups(spark, lake, lookups, request.pipeline)
    return runs.read_history(lake, run)


def restore(
    spark: SparkSession, lake: Lake, config: ProjectConfig, history: History, *, undo: bool = False
) -> Job:
    """The job of a run, as its last intent pinned it.

    A run that is only to be rolled back (`undo`) needs no code, only the columns that it recorded
    for its rows.
    """
    row = require_intent(history)
    intent = Intent.from_json(row.detail)
    request = intent.request
    if request.replay not in config.replays:
        # The published rows outlive the declaration.
        request = replace(request, replay=None)
    undo = undo and intent.placed is not None
    # The transform may have changed since, or be gone. A pipeline stays: it determines which of
    # the stream's times its rows have.
    resolved = replace(request, transform=None, keys=intent.keys) if undo else request
    plan = make_plan(lake, config, resolved, cuts=intent.pinned, pins=intent.lookups)
    plan = with_region(plan, intent.region)
    if read_places(lake).at(row.target) is not None:
        # The declaration may have another table now.
        plan = replace(plan, target=row.target)
    if undo:
        _require_same_source(plan, intent, row.run)
        plan = _as_recorded(plan, request, intent)
    elif plan.computation.code != intent.code:
        raise InvalidRequestError(
            "CAP-CODE",
            f"{plan.computation.title} is not what it was when run {row.run} used it",
            "replay again with the present code, or put the old code back",
            run=row.run,
        )
    run = RunId.named(row.run, row.identity, row.generation, plan.target)
    return Job(spark, lake, plan, run, clock.monotonic(), row.attempt)


def _require_same_source(plan: Plan, intent: Intent, run: str) -> None:
    """Check that the rows still keep the workers of the source that a run has recorded."""
    # Others would have the run's rows looked for among other workers.
    recorded = None if intent.placed is None else intent.placed.source
    if plan.computation.worker_source != recorded:
        raise InvalidRequestError(
            "CAP-CODE",
            f"{plan.computation.title} does not keep the workers of source {recorded or 'all'} any "
            f"more, as it did when run {run} used it",
            "put the old worker_source back to roll the run back",
            run=run,
        )


def _as_recorded(plan: Plan, request: Request, intent: Intent) -> Plan:
    """The plan with the columns, the keys and the code that a run recorded."""
    assert intent.placed is not None
    name = request.transform or plan.computation.name
    return replace(
        plan,
        request=replace(request, keys=intent.keys),
        layout=replace(plan.layout, worker=intent.placed.worker, time=intent.placed.time),
        computation=replace(plan.computation, name=name, code=intent.code),
    )


def require_intent(history: History) -> Row:
    """The intent of a run: of the attempt that has published, else the newest one."""
    intent = history.effective_intent
    if intent is None:
        raise InvalidRequestError(
            "CAP-NO-INTENT",
            f"run {history.last.run} ended before it would have written anything",
            "replay again",
            run=history.last.run,
        )
    return intent
