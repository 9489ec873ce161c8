"""What is recorded of publishes: their coverage, then the certificates, which end their runs."""

from __future__ import annotations

import time as clock
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from capstan.errors import SystemFailureError
from capstan.replay.execution.job import Job, finish_all
from capstan.replay.publish.snapshot_gc import clear_old
from capstan.replay.target.ownership import Ownership
from capstan.storage.delta import delta
from capstan.storage.delta.staged_rows import discard
from capstan.storage.lake import children, delete_folder
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.coverage import PUBLISHED
from capstan.storage.ledger.runs import History, Step
from capstan.storage.stored_log import look_again
from capstan.telemetry.instrumentation import emit


@dataclass(frozen=True, slots=True)
class RunPublish:
    """A run with its commit, which is in the target, and with the audit of its rows."""

    job: Job
    draft: Certificate
    version: int
    audit: Mapping[str, object]

    def certificate(self, history: History | None) -> Certificate:
        """The certificate of the run, whose history the ledger has."""
        job = self.job
        return replace(
            self.draft,
            published=True,
            run=job.run.name,
            attempt=job.source,
            generation=job.run.generation,
            target_version=self.version,
            audit=self.audit,
            approval=None if history is None else history.approval(job.source),
            seconds=round(clock.monotonic() - job.started, 3),
        )


def record_publishes(publishes: Sequence[RunPublish]) -> list[Certificate]:
    """Write coverage and certificates of publishes into one target."""
    look_again()
    lake = publishes[0].job.lake
    histories = runs.read_histories(lake, run=tuple(each.job.run.name for each in publishes))
    # Of these, another attempt has already recorded the publish.
    certificates = {
        run: known
        for run, history in histories.items()
        if (known := history.certificate) is not None
    }
    fresh = {each.job.run.name: each for each in publishes if each.job.run.name not in certificates}
    if fresh:
        record_coverage([(each.job, each.version) for each in fresh.values()])
        for run in fresh:
            emit("replay.coverage", run=run)
    _clear_staging([each.job for each in publishes])
    if fresh:
        made = {run: each.certificate(histories.get(run)) for run, each in fresh.items()}
        finish_all(Step.DONE, [(fresh[run].job, made[run].to_json()) for run in fresh])
        for run, each in fresh.items():
            emit("replay.certificate", run=run)
            _clear_state(each.job)
        certificates |= made
    return [certificates[each.job.run.name] for each in publishes]


def record_coverage(publishes: Sequence[tuple[Job, int]]) -> None:
    """Write the entries of runs and their versions of one target, unless they are there."""
    plan = publishes[0][0].plan
    known = {entry.run for entry in Ownership(plan).covered}
    tables = _tables(plan.target, [version for _, version in publishes])
    entries = [
        replace(job.covered(version), table=tables[version])
        for job, version in publishes
        if job.run.name not in known
    ]
    if entries:
        coverage.write_covered(plan.lake, entries, plan.time_type, PUBLISHED)


def _tables(path: str, versions: Collection[int]) -> dict[int, str]:
    """The Delta id of a target at some versions; empty where it is not known any more."""
    ends = {version: _table(path, version) for version in (min(versions), max(versions))}
    first, *others = set(ends.values())
    if first and not others:
        # A table made in the place of another one gets an id that no table had before.
        return dict.fromkeys(versions, first)
    return {version: _table(path, version) for version in versions}


def _table(path: str, version: int) -> str:
    # Of a publish that is recorded late, the log may not have the version any more.
    with suppress(SystemFailureError):
        return delta.identity_of(path, version)
    return ""


def _clear_staging(jobs: Sequence[Job]) -> None:
    """Delete the staged output of all attempts of runs, of which one has published its own."""
    by_run = {job.run.name: job for job in jobs}
    lake = jobs[0].lake
    for name in children(lake.staging("")):
        job = by_run.get(name.rpartition("-")[0])
        if job is None:
            continue
        if name != job.name:
            discard(job.plan.target, lake.staging(name))
        delete_folder(lake.staging(name))


def _clear_state(job: Job) -> None:
    state_name = job.plan.computation.state_name
    if state_name is not None and job.plan.request.follow is not None:
        # The run's own snapshot counts only from now on.
        clear_old(job.spark, job.lake, state_name, job.run.identity)
