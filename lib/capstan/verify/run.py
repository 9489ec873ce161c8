"""Verification of a tape's workers at a cut, incremental from earlier verifications."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from capstan.core.protocol import Rule, Violation
from capstan.core.times import Box, TimeType
from capstan.errors import InvalidRequestError
from capstan.spark.session import Later, session_of
from capstan.storage.delta.small_files import look_again
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.tape.index import worker_labels
from capstan.storage.tape.tape import Cut, Tape, newest_cut, read_events
from capstan.telemetry.instrumentation import emit
from capstan.verify import event_columns, verified_ledger
from capstan.verify.content_check import find_mismatches, require_whole
from capstan.verify.event_fold import OUTCOME_SCHEMA, FoldResult, ResumePoint, fold
from capstan.verify.result import Verification, WorkerVerdict
from capstan.verify.violations_ledger import record_violations


@dataclass(frozen=True, slots=True)
class _Plan:
    """The events to check: those of workers `only` (None for all), after the commit `after`."""

    labels: Mapping[int, str]
    starts: Mapping[int, ResumePoint]
    only: frozenset[int] | None
    after: int


def verify(
    spark: SparkSession | Later,
    lake: Lake,
    tape: Tape,
    *,
    workers: Collection[int] | None = None,
    cut: Cut | None = None,
    deep: bool = False,
    remember: bool = True,
) -> Verification:
    """Verify the recordings of a tape's workers at a cut, by default the newest.

    Only events newer than the ledger `verified` are read; few events need no Spark job. The payload
    is read, and compared with its events, only if `deep`. Without `workers`, unknown ones on the
    tape are verified too. Results go to the ledgers if `remember`.
    """
    if deep:
        look_again()
        require_whole(tape)
    cut = newest_cut(tape) if cut is None else cut
    plan = _plan(lake, tape, cut, workers)
    retired = retired_boxes(lake, tape)
    outcomes = _outcomes(spark, tape, cut, plan)
    _require_workers(tape, workers, outcomes)
    verified_before = sum(start.seq for start in plan.starts.values())
    read = sum(outcome.events for outcome in outcomes.values()) - verified_before
    emit("verify.events", stream=tape.name, cut=cut.commit, read=read)
    if remember:
        _remember(lake, tape, cut, plan, outcomes)
        emit("verify.ledger", stream=tape.name, cut=cut.commit)
    if deep:
        outcomes = _with_content(spark, tape, cut, workers, outcomes, retired)
        emit("verify.deep", stream=tape.name, cut=cut.commit)
    verdicts = tuple(
        WorkerVerdict(
            worker,
            plan.labels.get(worker, ""),
            outcome.events,
            outcome.records,
            outcome.holdings,
            outcome.violation,
        )
        for worker, outcome in sorted(outcomes.items())
    )
    verification = Verification(tape, cut, verdicts, retired)
    if remember:
        record_violations(lake, tape, verification, deep=deep)
    return verification


def events_to_check(
    spark: SparkSession, tape: Tape, cut: Cut, workers: Collection[int] | None, after: int
) -> DataFrame:
    """Events of these workers after a commit, with the columns that are checked, in no order."""
    events = read_events(spark, tape, cut, workers=workers, after=after)
    return events.select(*event_columns.columns_of(tape))


def check_events(
    events: DataFrame, time_type: TimeType, starts: Mapping[int, ResumePoint]
) -> dict[int, FoldResult]:
    """Check events, which need not be on a tape yet, with the columns of `events_to_check`."""
    # By all columns: the order of two events with one seq must not depend on the files.
    ordered = events.repartition("worker").sortWithinPartitions(*events.columns)
    folded = partial(fold, time_type=time_type, starts=dict(starts))
    rows = ordered.mapInArrow(folded, OUTCOME_SCHEMA).collect()
    return {row["worker"]: FoldResult.from_text(row["outcome"]) for row in rows}


def _plan(lake: Lake, tape: Tape, cut: Cut, workers: Collection[int] | None) -> _Plan:
    labels = worker_labels(tape, cut)
    earlier = verified_ledger.load_verified(lake, tape, cut, workers)
    # A worker opened later has no events in the commits already checked.
    old = worker_labels(tape, Cut(earlier.known, -1)) if earlier.known >= 0 else labels
    fresh = ResumePoint(commit=earlier.known)
    selected = {w: labels[w] for w in (labels if workers is None else workers) if w in labels}
    starts = {
        worker: earlier.starts.get(worker, ResumePoint() if worker in old else fresh)
        for worker in selected
    }
    behind = {worker for worker, start in starts.items() if start.commit < cut.commit}
    unknown = set(workers or ()) - set(selected)
    bases = [starts[worker].commit for worker in behind]
    if workers is None or unknown:
        bases.append(earlier.known)
    everything = workers is None and earlier.known < cut.commit
    only = None if everything else frozenset(behind | unknown)
    after = min(bases, default=cut.commit)
    return _Plan(selected, starts, only, after)


def _outcomes(
    spark: SparkSession | Later, tape: Tape, cut: Cut, plan: _Plan
) -> dict[int, FoldResult]:
    """The result of each worker; without newer events it is the state at its resume point."""
    outcomes = {
        worker: FoldResult.of(start.checker(tape.time_type))
        for worker, start in plan.starts.items()
    }
    if plan.only is None or plan.only:
        outcomes |= _check(spark, tape, cut, plan.starts, plan.only, plan.after)
    # A repeat of an event checked earlier sorts before all new events. Check again from the start
    # to report it at its own position.
    repeated = frozenset(
        worker
        for worker, outcome in outcomes.items()
        if outcome.violation is not None
        and outcome.violation.rule in (Rule.SEQ, Rule.SHAPE)
        and outcome.events == plan.starts.get(worker, ResumePoint()).seq > 0
    )
    if repeated:
        restarts = {worker: ResumePoint() for worker in repeated}
        outcomes |= _check(spark, tape, cut, restarts, repeated, -1)
    return outcomes


def _check(
    spark: SparkSession | Later,
    tape: Tape,
    cut: Cut,
    starts: Mapping[int, ResumePoint],
    only: frozenset[int] | None,
    after: int,
) -> dict[int, FoldResult]:
    if after >= cut.commit:
        return {}
    batches = event_columns.few_events(tape, cut, only, after)
    if batches is not None:
        return {
            row["worker"]: FoldResult.from_text(row["outcome"])
            for batch in fold(batches, tape.time_type, starts)
            for row in batch.to_pylist()
        }
    events = events_to_check(session_of(spark), tape, cut, only, after)
    return check_events(events, tape.time_type, starts)


def _require_workers(
    tape: Tape, workers: Collection[int] | None, outcomes: Mapping[int, FoldResult]
) -> None:
    missing = sorted(set(workers or ()) - set(outcomes))
    if missing:
        raise InvalidRequestError(
            "CAP-WORKER",
            f"stream {tape.name} has no worker {missing[0]} at this cut",
            "`capstan show` lists its workers",
            stream=tape.name,
            worker=missing[0],
        )


def _remember(
    lake: Lake, tape: Tape, cut: Cut, plan: _Plan, outcomes: Mapping[int, FoldResult]
) -> None:
    valid = {
        worker: outcomes[worker]
        for worker, start in plan.starts.items()
        if start.commit < cut.commit and outcomes[worker].violation is None
    }
    # Events of unknown workers are noticed only where all are read.
    known = plan.only is None and set(outcomes) == set(plan.labels)
    verified_ledger.record_verified(lake, tape, cut, valid, known=known)


def _with_content(
    spark: SparkSession | Later,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    outcomes: Mapping[int, FoldResult],
    retired: Sequence[Box],
) -> dict[int, FoldResult]:
    """The results, with a violation for each valid recording whose records do not match."""
    unknown = FoldResult.of(ResumePoint().checker(tape.time_type))
    results = dict(outcomes)
    differing = find_mismatches(session_of(spark), tape, cut, workers, retired)
    mismatches = {
        worker: mismatch
        for worker, mismatch in differing.items()
        if results.setdefault(worker, unknown).violation is None
    }
    # Checked again up to the mismatch, to know the times held before it.
    stops = {
        worker: ResumePoint(stop=mismatch.seq)
        for worker, mismatch in mismatches.items()
        if mismatch.seq is not None
    }
    if stops:
        results |= _check(spark, tape, cut, stops, frozenset(stops), -1)
    for worker, mismatch in mismatches.items():
        before = results[worker]
        violation = Violation(
            before.events, Rule.CONTENT, mismatch.time, before.holdings, detail=mismatch.detail
        )
        results[worker] = replace(before, violation=violation)
    return results
