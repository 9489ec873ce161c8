"""Whose the rows of a target are, and what stands of them.

Rows belong to an output: a stream, and a copy, a transform or a sink of a pipeline. The coverage
ledger names the output that last covered given workers and times of the target; the target's log
has what others than runs have done since. All that decides whether a replay may touch rows is
asked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from deltalake.schema import PrimitiveType

from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.owned_rows import workers_here
from capstan.replay.target.standing import (
    Effect,
    ForeignChange,
    WrittenRegion,
    changed_by,
    changes_of_others,
    is_stale,
    rows_before,
    scope_of,
    written_by,
)
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_union import RegionStrip, merge_scopes
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History
from capstan.storage.tape import index
from capstan.storage.tape.bounds import Bounds, fit, may_be_null
from capstan.storage.tape.tape import newest_cut, open_tape


@dataclass(frozen=True, eq=False)
class Ownership:
    """Whose the rows of a plan's target are, as ledgers and log were when first asked.

    Each is read once. So one object answers for one moment: what was asked before a lock was taken
    or anything was written has to be asked of another one afterwards.
    """

    plan: Plan

    @cached_property
    def recorded(self) -> list[Covered]:
        """Publishes in effect into the target, and into other tables that were here before it."""
        return coverage.recorded_at(self.plan.lake, self.plan.target)

    @cached_property
    def table(self) -> OpenedTable | None:
        """The target, with all publishes that are recorded: opened after the coverage was read."""
        _ = self.recorded
        return delta.open_if_table(self.plan.target)

    @cached_property
    def covered(self) -> list[Covered]:
        """Publishes in effect into the target, in order of publication."""
        return coverage.of_present_table(self.recorded, self.table)

    @cached_property
    def histories(self) -> Mapping[str, History]:
        """Histories of all runs into the target, by run."""
        return runs.read_histories(self.plan.lake, target=self.plan.target)

    @cached_property
    def labels(self) -> Mapping[str, Mapping[int, str]]:
        """The worker labels of the other streams with rows in the target."""
        labels: dict[str, Mapping[int, str]] = {}
        for stream in {entry.stream for entry in self.covered} - {self.plan.request.stream}:
            with suppress(InvalidRequestError):
                tape = open_tape(self.plan.lake, stream, stamps=True)
                labels[stream] = index.worker_labels(tape, newest_cut(tape))
        return labels

    def publish_of(self, run: str) -> Covered | None:
        """The publish of a run, if it is in effect."""
        return next((entry for entry in self.covered if entry.run == run), None)

    def within(self, scope: Scope) -> list[Covered]:
        """The publishes in effect that can have a row in a scope."""
        return [entry for entry in self.covered if entry.scope.overlaps(scope)]

    def is_own(self, covered: Covered) -> bool:
        """Whether a publish is one of the plan's output."""
        return covered.output == self.plan.output

    def has_only_own(self, scope: Scope) -> bool:
        """Whether the bounds of the target's files show that all rows of a scope are of its output.

        Bounds tell nothing of rows that lack worker or time.
        """
        plan = self.plan
        if not all(self.is_own(e) and e.scope.region.is_in(plan.time_type) for e in self.covered):
            return False
        strips = merge_scopes(entry.scope for entry in self.covered)
        if self.table is None:
            return True
        for bounds in pa.table(self.table.get_add_actions(flatten=True)).to_pylist():
            file = scope_of(plan, bounds)
            if file.overlaps(scope) and (
                _may_lack(plan, bounds) or not any(_holds(strip, file) for strip in strips)
            ):
                return False
        return True

    def has_published(self, run: RunId) -> bool:
        """Whether the target is the table into which a run has published, not a later one."""
        # A table that was replaced keeps its log, and the transactions in it, but has another id.
        if target_table.txn_version(self.table, run) < 0:
            return False
        return run.name not in {entry.run for entry in self.recorded} or (
            self.publish_of(run.name) is not None
        )

    def changes(self, covered: Sequence[Covered], since: int = 0) -> tuple[ForeignChange, ...]:
        """Foreign changes after a version to rows that these runs were the last to write."""
        if not covered:
            return ()
        first = min(entry.target_version for entry in covered)
        changes = changes_of_others(self.plan, max(first, since))
        return tuple(change for change in changes if _is_newest(change, covered))

    @cached_property
    def regions(self) -> tuple[WrittenRegion, ...]:
        """What runs and others did to the rows of the target, in the order of its versions."""
        plan = self.plan
        if not self.covered:
            return ()
        publishes: list[tuple[int, WrittenRegion]] = []
        compared: list[tuple[int, WrittenRegion]] = []
        for covered in self.covered:
            workers = workers_here(plan, covered, self.labels, by_label=self._keeps_labels)
            entry = written_by(plan, covered, workers, self.histories.get(covered.run))
            publishes.append((covered.target_version, entry))
            for scope, version in covered.compared:
                # As if the run had replaced all rows at that version by the same ones.
                part = None if scope.workers is None else frozenset(scope.workers)
                again = replace(entry, workers=part, region=scope.region, effect=Effect.REPLACES)
                compared.append((version, again))
        first = self.covered[0].target_version
        changes = [
            (each.version, changed_by(str(each), each.scope))
            for each in changes_of_others(plan, first)
        ]
        if any(entry.effect is Effect.APPENDS for _, entry in publishes):
            changes += [(first - 1, entry) for entry in rows_before(plan, first)]
        # An audit of a version comes after what has made the version.
        in_order = sorted([*publishes, *changes, *compared], key=lambda pair: pair[0])
        return tuple(entry for _, entry in in_order)

    @property
    def _keeps_labels(self) -> bool:
        """Whether the target keeps the labels of workers, not their numbers."""
        fields = [] if self.table is None else self.table.schema().fields
        kinds = {field.name: field.type for field in fields}
        kind = kinds.get(self.plan.layout.worker or "")
        return isinstance(kind, PrimitiveType) and kind.type == "string"

    def is_disturbed(self, run: str) -> bool:
        """Whether others may have been at the rows of the plan since its run published them."""
        scope, entries = self.plan.scope, self.regions
        own = [i for i, each in enumerate(entries) if each.run == run and each.covers(scope)]
        return not own or any(
            entry.changed
            and (i > own[-1] or entry.remains_under(entries[own[-1]].effect))
            and entry.overlaps(scope)
            for i, entry in enumerate(entries)
        )

    @property
    def covering_run(self) -> str | None:
        """The last run of the same output and code that has written all of the range, if any."""
        own = [entry for entry in self.within(self.plan.scope) if self.is_own(entry)]
        if not own or not own[-1].scope.contains(self.plan.scope) or is_stale(self.plan, own[-1]):
            return None
        return own[-1].run


def _may_lack(plan: Plan, bounds: Bounds) -> bool:
    """Whether rows of a file may lack worker or time."""
    layout, names = plan.layout, plan.time_type.names
    times = () if layout.time is None else (layout.time, *(f"{layout.time}.{n}" for n in names))
    columns = times if layout.worker is None else (layout.worker, *times)
    return any(may_be_null(bounds, column) for column in columns)


def _holds(strip: RegionStrip, file: Scope) -> bool:
    """Whether the bounds of a file lie in a strip."""
    if strip.workers is not None and not (file.workers and set(file.workers) <= strip.workers):
        return False
    return any(fit(file.region.box, region) for region in strip.regions)


def _is_newest(change: ForeignChange, covered: Sequence[Covered]) -> bool:
    """Whether a change is newer than all runs that cover its rows, as far as bounds show."""
    parts = [part for entry in covered for part in entry.compared]
    known = [*((entry.scope, entry.target_version) for entry in covered), *parts]
    met = [version for scope, version in known if scope.overlaps(change.scope)]
    return bool(met) and max(met) < change.version


def record_whole(plan: Plan, run: str, version: int) -> None:
    """Record that an audit found the rows of a plan whole, if others have been there since."""
    owner = Ownership(plan)
    covered = owner.publish_of(run)
    if covered is None or not owner.is_disturbed(run):
        return
    compared = replace(covered, scope=plan.scope, target_version=version)
    if (compared.scope, version) not in covered.compared:
        coverage.write_covered(plan.lake, [compared], plan.time_type, coverage.COMPARED)
