"""A run at work: its plan, its identity, the attempt, and the ledger rows it leaves."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.replay.output import certificate
from capstan.replay.output.snapshot_gc import clear_old
from capstan.replay.planning.plan import Plan, make_plan, with_region
from capstan.replay.planning.request import Request
from capstan.storage import delta
from capstan.storage.lake import Lake, children, delete_folder
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import PUBLISHED, Covered
from capstan.storage.ledger.region_json import parse_region, region_text
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History, Row, Step
from capstan.storage.tape import index
from capstan.storage.tape.tape import open_tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Job:
    """What every step of a run needs.

    Attributes:
        spark: The session.
        lake: The lake.
        plan: What is played into what.
        run: The run's identity and generation.
        started: When it began, on the monotonic clock, in seconds.
        attempt: The attempt's number; 0 before it has claimed anything.
        played: The attempt whose output is published, where another one has claimed for it.
    """

    spark: SparkSession
    lake: Lake
    plan: Plan
    run: RunId
    started: float
    attempt: int = 0
    played: int | None = None

    @property
    def name(self) -> str:
        """Of the run's attempt: what it stages, and the state that it keeps, are known by it."""
        return f"{self.run.name}-{self.source}"

    @property
    def source(self) -> int:
        """The attempt whose output is published."""
        return self.attempt if self.played is None else self.played

    def at(self, attempt: int, played: int | None = None) -> Job:
        """The same run at an attempt, which publishes what another one has played if that is so."""
        return replace(self, attempt=attempt, played=played)

    def claimed(self, scope: Scope | None = None) -> Job:
        """The same run at its next attempt, which holds its workers and times.

        Args:
            scope: What it claims; by default what its plan may change.

        Raises:
            RangeLockedError: `CAP-HELD` when another run holds part of them.
        """
        wanted, stream = scope or self.plan.scope, self.plan.tape.name
        attempt = claims.claim(self.lake, self.run, stream, wanted)
        return self.at(attempt, self.played)

    def hold(self) -> None:
        """Check that the attempt's claim stands; to be asked right before the target is changed.

        Raises:
            FencedError: `CAP-FENCED` when it does not.
        """
        claims.ensure_held(self.lake, self.run.name, self.attempt)

    def write(self, step: Step, detail: Mapping[str, object]) -> None:
        """Append a row to the runs ledger."""
        runs.write_step(
            self.lake,
            self.run,
            self.attempt,
            step,
            stream=self.plan.tape.name,
            target=self.plan.target,
            detail=detail,
        )

    def end(self, step: Step, detail: Mapping[str, object]) -> None:
        """Append the row that ends the run, and with it the newest claim, whoever has made it."""
        newest = claims.last_attempt(self.lake, self.run.name)
        replace(self, attempt=max(self.attempt, newest)).write(step, detail)

    def intent(self, draft: Mapping[str, object], columns: Sequence[str]) -> dict[str, object]:
        """What is written down before the target is touched: enough to finish without this run.

        Args:
            draft: The certificate, as far as it is known.
            columns: Those of the rows that are put out.
        """
        version = delta.version_of(self.plan.target)
        return {
            "request": self.plan.request.to_json(),
            "cut": self.plan.cut.commit,
            "region": region_text(self.plan.region),
            "reached": [list(time) for time in self.plan.reached.elements],
            "code": self.plan.code,
            "placed": {"worker": self.plan.layout.worker, "time": self.plan.layout.time},
            "keys": list(self.plan.keys),
            "columns": list(columns),
            "target_version": -1 if version is None else version,
            "certificate": dict(draft),
        }

    def covered(self, version: int) -> Covered:
        """The run's entry in the coverage ledger."""
        plan = self.plan
        return Covered(
            self.run.name,
            self.run.generation,
            plan.tape.name,
            plan.scope,
            plan.name,
            plan.code,
            plan.cut.commit,
            version,
        )

    def record(self, draft: Mapping[str, object], version: int, audit: object) -> dict[str, object]:
        """Write coverage and certificate of a publish that stands in the target."""
        history = runs.read_histories(self.lake, run=self.run.name).get(self.run.name)
        if history is not None and history.certificate is not None:
            return dict(history.certificate)  # Another attempt has found the publish, and said so.
        covered, time_type = self.covered(version), self.plan.time_type
        known = {each.run for each in coverage.current(self.lake, self.plan.target)}
        if self.run.name not in known:
            coverage.write_covered(self.lake, covered, time_type, PUBLISHED)
        emit("replay.coverage", run=self.run.name)
        self._clear_staging()
        done = certificate.finished(
            draft,
            run=self.run.name,
            attempt=self.source,
            generation=self.run.generation,
            target_version=version,
            audit=audit,
            approval=None if history is None else history.approval(self.source),
            seconds=clock.monotonic() - self.started,
        )
        self.end(Step.DONE, done)
        emit("replay.certificate", run=self.run.name)
        if self.plan.piped is not None and self.plan.request.follow is not None:
            # Only now this run's own snapshot counts.
            pipeline = self.plan.piped.pipeline.name
            clear_old(self.spark, self.lake, pipeline, self.run.identity)
        return done

    def _clear_staging(self) -> None:
        """Delete what any attempt has staged."""
        for name in children(self.lake.staging("")):
            if name.rpartition("-")[0] == self.run.name:
                delete_folder(self.lake.staging(name))


def restore(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    history: History,
    *,
    undo: bool = False,
) -> Job:
    """The job of a run as its last intent pinned it.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        history: The run's history.
        undo: Whether it is only to be taken back, for which it does not matter what it computed,
            but where its rows are: as the run has written that down.

    Raises:
        InvalidRequestError: `CAP-NO-INTENT` when the run never got so far; `CAP-CODE` when its
            transform or pipeline has changed since.
    """
    intent = require_intent(history)
    request = Request.from_json(_object(intent, "request"))
    if request.replay not in declarations.replays:
        # What was published outlives its declaration.
        request = replace(request, replay=None)
    tape = open_tape(lake, request.stream)
    cut = index.find_cut(tape, int(str(intent.detail["cut"])))
    undo = undo and "placed" in intent.detail
    asked = _copied(request, intent) if undo else request
    plan = make_plan(lake, declarations, asked, cut=cut)
    plan = with_region(plan, parse_region(str(intent.detail["region"])))
    if undo:
        plan = _placed(plan, request, intent)
    elif plan.code != intent.detail["code"]:
        title = plan.computation.title if plan.computation else "a copy"
        raise InvalidRequestError(
            "CAP-CODE",
            f"{title} is not what it was when run {intent.run} used it",
            "replay again with the present code, or put the old code back",
            run=intent.run,
        )
    run = RunId.named(intent.run, intent.identity, intent.generation, plan.target)
    return Job(spark, lake, plan, run, clock.monotonic(), intent.attempt)


def _copied(request: Request, intent: Row) -> Request:
    """The request without its transform, which may have been mended since, or be no more.

    A pipeline stays: it says which of the stream's times its rows have.
    """
    return replace(request, transform=None, keys=_keys_of(intent))


def _keys_of(intent: Row) -> tuple[str, ...]:
    keys = intent.detail["keys"]
    assert isinstance(keys, list)
    return tuple(map(str, keys))


def _placed(plan: Plan, request: Request, intent: Row) -> Plan:
    """The plan with worker, time and keys in the columns where a run had them, and its code."""
    columns = _object(intent, "placed")
    worker, time = (None if columns[n] is None else str(columns[n]) for n in ("worker", "time"))
    return replace(
        plan,
        request=replace(request, keys=_keys_of(intent)),
        layout=replace(plan.layout, worker=worker, time=time),
        code=str(intent.detail["code"]),
    )


def require_intent(history: History) -> Row:
    """The intent of a run: of the attempt that has published, else the newest one.

    Raises:
        InvalidRequestError: `CAP-NO-INTENT` when it ended before it wrote one.
    """
    intent = history.effective_intent
    if intent is None:
        raise InvalidRequestError(
            "CAP-NO-INTENT",
            f"run {history.last.run} ended before it would have written anything",
            "replay again",
            run=history.last.run,
        )
    return intent


def draft_of(intent: Row) -> dict[str, object]:
    """The certificate's draft that an intent holds."""
    return _object(intent, "certificate")


def _object(row: Row, key: str) -> dict[str, object]:
    value = row.detail[key]
    assert isinstance(value, dict)
    return value
