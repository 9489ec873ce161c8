"""First attempts of runs of adjoining ranges: one Spark job writes all rows, and one audits them.

Each stays a run of its own: it has its claim, its intent, its list of staged files, a commit of its
own in the target, its coverage and its certificate, as if it had been carried out alone. So a kill
leaves ordinary runs. Nothing is published unless all can be, and what is not published is given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from capstan.core.times import AdjoiningRanges
from capstan.errors import CapstanError, FencedError, translation
from capstan.replay.execution.attempt import commit_staged, open_target
from capstan.replay.execution.fencing import fence_stale_attempts
from capstan.replay.execution.job import Job, write_all
from capstan.replay.execution.recording import RunPublish, record_publishes
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.planning.plan import Plan
from capstan.replay.result import ReplayResult
from capstan.replay.target import target_table
from capstan.replay.target.foreign_rows import require_restorable
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.staged_output import stage_all, stages_in_target
from capstan.spark.own_session import interpreting
from capstan.storage.delta import delta
from capstan.storage.delta.staged_rows import count_staged, discard
from capstan.storage.lake import Lake, delete_folder
from capstan.storage.ledger import claims
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.claims import HeldClaims, Scope
from capstan.storage.ledger.runs import AGAIN, Step
from capstan.storage.tape.index import MessageCounts, summarised
from capstan.telemetry.instrumentation import emit


@dataclass(frozen=True, slots=True)
class JobSet:
    """Runs of adjoining ranges, in the order of their times."""

    whole: Plan  # The plan of all their ranges.
    ranges: AdjoiningRanges
    jobs: tuple[Job, ...]
    events: Sequence[Sequence[MessageCounts]]  # The messages of each range.
    newest_first: bool = False  # The order in which they are published.

    @property
    def spark(self) -> SparkSession:
        """Their session."""
        return self.jobs[0].spark

    @property
    def lake(self) -> Lake:
        """Their lake."""
        return self.whole.lake

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return [job.run.name for job in self.jobs]

    @property
    def scopes(self) -> dict[str, Scope]:
        """What they claim, by run."""
        return {job.run.name: job.plan.locks for job in self.jobs}

    def claimed(self) -> JobSet:
        """The same runs at their next attempts, which lock their ranges: all of them, or none."""
        attempts = claims.claim_all(self.lake, self.whole.request.stream, self.scopes)
        return replace(self, jobs=tuple(job.at(attempts[job.run.name]) for job in self.jobs))

    @property
    def in_order(self) -> tuple[Job, ...]:
        """The runs in the order of their publishes."""
        return self.jobs[::-1] if self.newest_first else self.jobs


def carry_out_together(jobs: JobSet, expected: DataFrame) -> list[ReplayResult | CapstanError]:
    """Carry out runs that have not begun: lock, stage, audit, publish each.

    Returns:
        The results of those that were published, in order; then an error, if a publish has failed.
        The others, which may be all, hold no lock. After a failed publish, what they have staged
        stays, as that of a single run.
    """
    jobs = jobs.claimed()
    for job in jobs.in_order:
        emit("replay.claim", run=job.run.name, attempt=job.attempt)
    published: list[RunPublish] = []
    failed: CapstanError | None = None
    try:
        audited = _stage_and_audit(jobs, expected)
        # A publish has to do with the rows of one run at most.
        with interpreting(jobs.spark, max((each.draft.records for each in audited), default=0)):
            failed = _publish_all(audited, published)
    except KeyboardInterrupt:
        # As after that of a single attempt: Spark may still commit something.
        for job in jobs.jobs:
            claims.release_if_active(jobs.lake, job.run.name, job.attempt)
        raise
    except Exception as error:
        # Each run tells what is wrong with it when it is carried out alone.
        _give_up(jobs.jobs, translation.to_capstan_error(error, AGAIN))
        return []
    left = jobs.in_order[len(published) :]
    if failed is not None:
        _release(left, failed)
    elif left:
        _give_up(left, None)
    certificates = record_publishes(published) if published else []
    outcomes: list[ReplayResult | CapstanError] = list(map(ReplayResult, certificates))
    return outcomes if failed is None else [*outcomes, failed]


@dataclass(frozen=True, slots=True)
class _Audited:
    """A run whose rows are staged and audited, among those of others."""

    job: Job
    draft: Certificate
    audit: Mapping[str, object]
    staged: DataFrame  # The rows of all runs.
    held: HeldClaims

    def publish(self) -> RunPublish:
        """Publish its rows, under its claim."""
        job, staged = self.job, self.staged
        self.held.ensure(job.run.name)
        rows = staged.where(target_table.predicate(job.plan, staged.schema))
        return commit_staged(job, rows, job.lake.staging(job.name), self.audit, self.draft)


def _publish_all(audited: Sequence[_Audited], published: list[RunPublish]) -> CapstanError | None:
    """Publish runs in order, up to the first that fails; returns its error."""
    for each in audited:
        try:
            published.append(each.publish())
        except Exception as error:
            coded = translation.to_capstan_error(error, AGAIN)
            # Of one that was shut out, a later attempt may be at work.
            if not isinstance(error, FencedError):
                each.job.write(Step.FAILED, coded.to_json())
            return coded
    return None


def _stage_and_audit(jobs: JobSet, expected: DataFrame) -> list[_Audited]:
    """Stage and audit the rows of runs that are locked, up to their publishes.

    None of them if they cannot be carried out together after all, or fail their audit.
    """
    whole, spark = jobs.whole, jobs.spark
    owner = Ownership(whole)
    open_target(spark, owner, expected, jobs.names)
    if any(job.attempt > 1 for job in jobs.jobs) or not _can_be_together(owner, expected):
        return []
    fence_stale_attempts(replace(jobs.jobs[0], plan=whole))
    require_restorable(spark, whole)
    contents = [summarised(events) for events in jobs.events]
    drafts = [
        draft_certificate(job.plan, [content])
        for job, content in zip(jobs.jobs, contents, strict=True)
    ]
    held = HeldClaims(jobs.lake, {job.run.name: job.attempt for job in jobs.jobs})
    _write_intents(jobs, held, drafts, expected.columns)
    with interpreting(spark, sum(content.records for content in contents)):
        staged = _staged(jobs, expected)
        audits = _audits(jobs, staged)
    audited = (
        [
            _Audited(job, draft, audit, staged, held)
            for job, draft, audit in zip(jobs.jobs, drafts, audits, strict=True)
        ]
        if audits
        else []
    )
    return audited[::-1] if jobs.newest_first else audited


def _can_be_together(owner: Ownership, expected: DataFrame) -> bool:
    """Whether a target, as it is under the claims, can get the rows of several runs at once."""
    table = delta.open_table(owner.plan.target)
    known = {field.name.lower() for field in table.schema().fields}
    return (
        not owner.within(owner.plan.scope)
        and known.issuperset(name.lower() for name in expected.columns)
        and stages_in_target(owner.plan)
    )


def _write_intents(
    jobs: JobSet, held: HeldClaims, drafts: Sequence[Certificate], columns: Sequence[str]
) -> None:
    intents = [
        (job, job.intent(draft, columns).to_json())
        for job, draft in zip(jobs.jobs, drafts, strict=True)
    ]
    for job in jobs.jobs:
        held.ensure(job.run.name)
    write_all(Step.INTENT, intents)
    for job, draft in zip(jobs.jobs, drafts, strict=True):
        emit("replay.intent", run=job.run.name, records=draft.records)


def _staged(jobs: JobSet, rows: DataFrame) -> DataFrame:
    """Write the rows of all runs, and list those of each; returns all of them."""
    stagings = [jobs.lake.staging(job.name) for job in jobs.jobs]
    staged = stage_all(jobs.whole, rows, stagings, jobs.ranges)
    for run in jobs.names:
        emit("replay.staging", run=run)
    return staged


def _audits(jobs: JobSet, staged: DataFrame) -> list[dict[str, object]]:
    """Audit the rows of all runs at once; the audit of each, or none unless all have passed."""
    audit = target_table.audit(jobs.spark, jobs.whole, staged)
    # All cells are as the index states them, so it also tells how many there are in each range.
    parts = [
        replace(
            audit,
            cells=len({(event.worker, event.time) for event in events if event.records}),
            records=sum(event.records for event in events),
        )
        for events in jobs.events
    ]
    written = [count_staged(jobs.lake.staging(job.name)) for job in jobs.jobs]
    as_stated = written == [part.records for part in parts]
    if not audit.passed or not as_stated or sum(part.cells for part in parts) != audit.cells:
        return []
    for run, part in zip(jobs.names, parts, strict=True):
        emit("replay.audit", run=run, passed=True, cells=part.cells)
    return [part.to_json(jobs.whole.inputs.tape.time_type) for part in parts]


def _give_up(jobs: Sequence[Job], error: CapstanError | None) -> None:
    """Delete what runs have staged, and release their claims."""
    lake = jobs[0].lake
    for job in jobs:
        discard(job.plan.target, lake.staging(job.name))
        delete_folder(lake.staging(job.name))
    _release(jobs, error)


def _release(jobs: Sequence[Job], error: CapstanError | None) -> None:
    lake = jobs[0].lake
    claims.release_all(lake, {job.run.name: job.attempt for job in jobs})
    emit("replay.apart", runs=len(jobs), error=None if error is None else str(error))
