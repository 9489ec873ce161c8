"""Verification of a tape's workers at a cut, all at once, from where earlier runs stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.core.protocol import Rule, Violation
from capstan.core.times import Antichain, Box, TimeType
from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.spark.session import Later, session_of
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import boxes_of
from capstan.storage.tape.index import worker_labels
from capstan.storage.tape.tape import Cut, Tape, newest_cut, read_events
from capstan.verify import in_process_events, verified_ledger
from capstan.verify.content_check import findings
from capstan.verify.event_columns import NO_WORKER, Fingerprint
from capstan.verify.event_fold import OUTCOME_SCHEMA, FoldResult, ResumePoint, fold
from capstan.verify.file_integrity import require_whole
from capstan.verify.result import Verification, WorkerVerdict
from capstan.verify.violations_ledger import note_violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be judged.

    Attributes:
        labels: The chosen workers that the stream has.
        starts: Where the judging of each begins.
        only: The workers whose events have to be read; None for all.
        after: The commit after which events have to be read.
        checks_known: Whether events of workers that the stream does not have would be seen.
    """

    labels: Mapping[int, str]
    starts: Mapping[int, ResumePoint]
    only: frozenset[int] | None
    after: int
    checks_known: bool


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
    """Verify the recordings of a tape's workers.

    Only events newer than what the ledger `verified` knows are read, and no Spark job runs when
    there are few. The payload is read only where `deep` asks for it.

    Args:
        spark: The session; one that is built when it is needed serves as well.
        lake: The lake with the ledger.
        tape: The tape.
        workers: Only these; None for all, and for whatever else is on the tape.
        cut: What to verify; by default the newest cut.
        deep: Whether to compare the records with the counts and fingerprints of their events.
        remember: Whether to write to the ledgers what was found sound, and what was not.

    Raises:
        InvalidRequestError: `CAP-WORKER` for a chosen worker that the stream does not have.
        SystemFailureError: `CAP-DAMAGED` where `deep` asks for the payload and files of it are gone
            or short.
    """
    if deep:
        require_whole(tape)
    cut = newest_cut(tape) if cut is None else cut
    plan = _plan(lake, tape, cut, workers)
    retired = boxes_of(lake, tape)
    outcomes = _outcomes(spark, tape, cut, plan)
    _require_there(tape, workers, outcomes)
    emit("verify.events", stream=tape.name, cut=cut.commit, read=_read(plan, outcomes))
    if remember:
        _remember(lake, tape, cut, plan, outcomes)
        emit("verify.ledger", stream=tape.name, cut=cut.commit)
    if deep:
        outcomes = _with_content(spark, tape, cut, workers, outcomes, retired)
        emit("verify.deep", stream=tape.name, cut=cut.commit)
    verdicts = [
        _verdict(worker, plan.labels.get(worker, ""), outcome)
        for worker, outcome in sorted(outcomes.items())
    ]
    found = Verification(tape.name, cut, tuple(verdicts), retired)
    if remember:
        note_violations(lake, tape, found, deep=deep)
    return found


def events_to_judge(
    spark: SparkSession, tape: Tape, cut: Cut, workers: Collection[int] | None, after: int
) -> DataFrame:
    """Events as the fold takes them, each worker's in one partition, sorted by worker and seq.

    Columns: `worker INT` (-1 for none), `seq BIGINT, commit BIGINT, kind STRING, time STRUCT,
    updates ARRAY, records BIGINT` as in `events`, and `fingerprint TINYINT`: how much of one
    there is.
    """
    found = F.col("fingerprint")
    whole = found.getField("h1").isNotNull() & found.getField("h2").isNotNull()
    part = (
        F.when(found.isNull(), Fingerprint.NONE.value)
        .when(whole, Fingerprint.WHOLE.value)
        .otherwise(Fingerprint.TORN.value)
    )
    events = read_events(spark, tape, cut, workers=workers, after=after).select(
        F.coalesce("worker", F.lit(NO_WORKER)).alias("worker"),
        "seq",
        "commit",
        "kind",
        "time",
        "updates",
        "records",
        part.cast("tinyint").alias("fingerprint"),
    )
    # All columns: which of two events with one seq comes first must not depend on the files.
    return events.repartition("worker").sortWithinPartitions(*events.columns)


def judge_events(
    events: DataFrame, time_type: TimeType, starts: Mapping[int, ResumePoint]
) -> dict[int, FoldResult]:
    """Judge events that are on no tape yet.

    Args:
        events: Columns as of `events_to_judge`, each worker's in one partition, sorted.
        time_type: Their times.
        starts: By worker, where its recording stands before them.
    """
    folded = partial(fold, minimum=time_type.minimum, starts=dict(starts))
    rows = events.mapInArrow(folded, OUTCOME_SCHEMA).collect()
    return {row["worker"]: FoldResult.from_text(row["outcome"]) for row in rows}


def _plan(lake: Lake, tape: Tape, cut: Cut, workers: Collection[int] | None) -> _Plan:
    labels = worker_labels(tape, cut)
    before = verified_ledger.recall(lake, tape, cut)
    # A worker that was opened later has no events that were looked through already.
    old = worker_labels(tape, Cut(before.known, -1)) if before.known >= 0 else labels
    fresh = ResumePoint(commit=before.known)
    chosen = {w: labels[w] for w in (labels if workers is None else workers) if w in labels}
    starts = {
        worker: before.starts.get(worker, ResumePoint() if worker in old else fresh)
        for worker in chosen
    }
    behind = {worker for worker, start in starts.items() if start.commit < cut.commit}
    strangers = set(workers or ()) - set(chosen)
    bases = [starts[worker].commit for worker in behind]
    if workers is None or strangers:
        bases.append(before.known)
    everything = workers is None and before.known < cut.commit
    only = None if everything else frozenset(behind | strangers)
    after = min(bases, default=cut.commit)
    return _Plan(chosen, starts, only, after, everything)


def _outcomes(
    spark: SparkSession | Later, tape: Tape, cut: Cut, plan: _Plan
) -> dict[int, FoldResult]:
    """What comes of judging each worker; of workers without newer events, where they stand."""
    minimum = tape.time_type.minimum
    outcomes = {
        worker: FoldResult.of(start.judge(minimum)) for worker, start in plan.starts.items()
    }
    if plan.only is None or plan.only:
        outcomes |= _judged(spark, tape, cut, plan.starts, plan.only, plan.after)
    # A repeat of an event that an earlier run has judged sorts before all that is new. It is found
    # where it stands, not at the end.
    repeated = frozenset(
        worker
        for worker, outcome in outcomes.items()
        if outcome.violation is not None
        and outcome.violation.rule in (Rule.SEQ, Rule.SHAPE)
        and outcome.events == plan.starts.get(worker, ResumePoint()).seq > 0
    )
    if repeated:
        again = {worker: ResumePoint() for worker in repeated}
        outcomes |= _judged(spark, tape, cut, again, repeated, -1)
    return outcomes


def _judged(
    spark: SparkSession | Later,
    tape: Tape,
    cut: Cut,
    starts: Mapping[int, ResumePoint],
    only: frozenset[int] | None,
    after: int,
) -> dict[int, FoldResult]:
    if after >= cut.commit:
        return {}
    batches = (
        in_process_events.events(tape, cut, only, after)
        if in_process_events.are_few(tape, after)
        else None
    )
    if batches is not None:
        judged = fold(batches, tape.time_type.minimum, starts)
        return {
            row["worker"]: FoldResult.from_text(row["outcome"])
            for batch in judged
            for row in batch.to_pylist()
        }
    events = events_to_judge(session_of(spark), tape, cut, only, after)
    return judge_events(events, tape.time_type, starts)


def _require_there(
    tape: Tape, workers: Collection[int] | None, outcomes: Mapping[int, FoldResult]
) -> None:
    missing = sorted(set(workers or ()) - set(outcomes))
    if missing:
        raise InvalidRequestError(
            "CAP-WORKER",
            f"stream {tape.name} has no worker {missing[0]} at this cut",
            "see `capstan show` for its workers",
            stream=tape.name,
            worker=missing[0],
        )


def _read(plan: _Plan, outcomes: Mapping[int, FoldResult]) -> int:
    """How many events were judged now."""
    before = sum(start.seq for start in plan.starts.values())
    return sum(outcome.events for outcome in outcomes.values()) - before


def _remember(
    lake: Lake,
    tape: Tape,
    cut: Cut,
    plan: _Plan,
    outcomes: Mapping[int, FoldResult],
) -> None:
    sound = {
        worker: outcomes[worker]
        for worker, start in plan.starts.items()
        if start.commit < cut.commit and outcomes[worker].violation is None
    }
    known = plan.checks_known and set(outcomes) == set(plan.labels)
    verified_ledger.remember(lake, tape, cut, sound, known=known)


def _with_content(
    spark: SparkSession | Later,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    outcomes: Mapping[int, FoldResult],
    retired: Sequence[Box],
) -> dict[int, FoldResult]:
    """The outcomes, ended where the records of a recording that obeys the rules are not its own."""
    unknown = FoldResult.of(ResumePoint().judge(tape.time_type.minimum))
    after = dict(outcomes)
    found = {
        worker: finding
        for worker, finding in findings(session_of(spark), tape, cut, workers, retired).items()
        if after.setdefault(worker, unknown).violation is None
    }
    # What was held before an event in the midst has to be found out again.
    stops = {
        worker: ResumePoint(stop=finding.seq)
        for worker, finding in found.items()
        if finding.seq is not None
    }
    if stops:
        after |= _judged(spark, tape, cut, stops, frozenset(stops), -1)
    for worker, finding in found.items():
        before = after[worker]
        violation = Violation(
            before.events, Rule.CONTENT, finding.time, before.holdings, detail=finding.detail
        )
        after[worker] = replace(before, violation=violation)
    return after


def _verdict(worker: int, label: str, outcome: FoldResult) -> WorkerVerdict:
    return WorkerVerdict(
        worker=worker,
        label=label,
        valid=outcome.violation is None,
        events=outcome.events,
        records=outcome.records,
        violation=outcome.violation,
        holdings=outcome.holdings,
        frontier=Antichain.of(time for time, _ in outcome.holdings),
        closed=not outcome.holdings,
    )
