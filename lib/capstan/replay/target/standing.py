"""What stands in a target: the rows of runs that nobody has changed since.

The coverage of intervals, the replay of what is already published, and the records of audits ask
here. A range stands when a run of the output has written it, and everything that others did there
since was replaced by such a run, or compared by an audit that found the rows whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa
from deltalake.schema import PrimitiveType

from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import SystemFailureError
from capstan.replay.planning.plan import Plan
from capstan.replay.target.foreign_changes import (
    Change,
    changes_of_others,
    region_of,
    workers_of,
)
from capstan.replay.target.foreign_rows import labels_of_others
from capstan.replay.target.owned_rows import workers_here
from capstan.storage.delta import delta
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History

_MAX_PLACES = 64
"""The most places of earlier rows that are distinguished."""


class Effect(StrEnum):
    """What an entry of a target's history does to the rows that are there.

    Attributes:
        REPLACES: A run took all of them away; or an audit found those of a run to be all.
        MERGES: A run put its rows over what others had changed, and beside rows of other outputs.
        APPENDS: A run put its rows beside all others.
        MIXES: A run of another output put its rows beside them, or over some.
        CHANGES: Somebody else may have changed some.
    """

    REPLACES = "replaces"
    MERGES = "merges"
    APPENDS = "appends"
    MIXES = "mixes"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class WrittenRegion:
    """A region of a target written by a run, or changed by somebody else.

    Attributes:
        run: The run; empty when its rows cannot be those of the output in question.
        workers: The workers of the rows; None for all.
        region: The times of the rows.
        current: Whether the present code has written it.
        changed: The name of a commit by somebody else, or of a run of another output.
        effect: The effect on earlier rows.
    """

    run: str
    workers: frozenset[int] | None
    region: Region
    current: bool = True
    changed: str = ""
    effect: Effect = Effect.REPLACES

    @property
    def writes(self) -> bool:
        """Whether its rows are the last ones that a run has written there."""
        return self.effect not in (Effect.MIXES, Effect.CHANGES)

    def remains_under(self, effect: Effect) -> bool:
        """Whether what others did remains under a run with this effect that came after it."""
        return bool(self.changed) and (
            effect is Effect.APPENDS
            or (effect is Effect.MERGES and self.effect is not Effect.CHANGES)
        )

    def holds(self, worker: int) -> bool:
        """Whether it can include rows of this worker."""
        return self.workers is None or worker in self.workers


def written_regions(
    plan: Plan, published: Sequence[Covered], histories: Mapping[str, History]
) -> tuple[WrittenRegion, ...]:
    """What runs and others did to the rows of a plan's target, in the order of its versions.

    Args:
        plan: The plan, with the output in question.
        published: The runs that are published in the target, in order of publication.
        histories: Histories of runs in the target, by run.
    """
    if not published:
        return ()
    labels, by_label = labels_of_others(plan, published), _keeps_labels(plan)
    publishes: list[tuple[int, WrittenRegion]] = []
    compared: list[tuple[int, WrittenRegion]] = []
    for covered in published:
        workers = workers_here(plan, covered, labels, by_label=by_label)
        entry = _publish(plan, covered, workers, histories.get(covered.run))
        publishes.append((covered.target_version, entry))
        for scope, version in covered.compared:
            # As if the run had replaced all rows at that version by the same ones.
            part = None if scope.workers is None else frozenset(scope.workers)
            again = replace(entry, workers=part, region=scope.region, effect=Effect.REPLACES)
            compared.append((version, again))
    first = published[0].target_version
    changes = [(each.version, _change(each)) for each in changes_of_others(plan, first)]
    if any(entry.effect is Effect.APPENDS for _, entry in publishes):
        changes += [(first - 1, entry) for entry in _rows_before(plan, first)]
    # An audit of a version comes after what has made the version.
    in_order = sorted([*publishes, *changes, *compared], key=lambda pair: pair[0])
    return tuple(entry for _, entry in in_order)


def _keeps_labels(plan: Plan) -> bool:
    """Whether the target keeps the labels of workers, not their numbers."""
    fields = {field.name: field.type for field in delta.open_table(plan.target).schema().fields}
    kind = fields.get(plan.layout.worker or "")
    return isinstance(kind, PrimitiveType) and kind.type == "string"


def _change(change: Change) -> WrittenRegion:
    effect = Effect.CHANGES
    return WrittenRegion("", change.workers, change.region, changed=str(change), effect=effect)


def is_stale(plan: Plan, covered: Covered) -> bool:
    """Whether a run used another transform or pipeline than the plan, or other code."""
    computation = plan.computation
    return (covered.transform, covered.code) != (computation.name, computation.code)


def _rows_before(plan: Plan, first: int) -> list[WrittenRegion]:
    """Where rows were before the first publish, beside which a run has appended its own."""
    try:
        files = delta.open_table(plan.target, first - 1).get_add_actions(flatten=True)
    except SystemFailureError:
        return []  # There was no table, or the log no longer goes back to that version.
    bounds = pa.table(files).to_pylist()
    places = list(dict.fromkeys((workers_of(plan, b), region_of(plan, b)) for b in bounds))
    if len(places) > _MAX_PLACES:
        places = [(None, Region(Box.everything(plan.time_type)))]
    name = f"rows from before version {first}"
    return [WrittenRegion("", *place, changed=name, effect=Effect.CHANGES) for place in places]


def _publish(
    plan: Plan, covered: Covered, workers: Sequence[int] | None, history: History | None
) -> WrittenRegion:
    """What a run did to the rows of a target, as seen by the output of a plan."""
    is_own, mode = covered.output == plan.output, None if history is None else history.mode
    same_shape = covered.scope.region.is_in(plan.time_type)
    # A copy has more coordinates than a pipeline, so its rows may lie anywhere.
    region = covered.scope.region if same_shape else Region(Box.everything(plan.time_type))
    if plan.layout.time is None and covered.stream == plan.request.stream:
        # The target has no time column, so its scope is all times; the replayed region is smaller.
        region = (history and history.region) or region
    anyone = plan.layout.worker is None and covered.stream != plan.request.stream
    effect = Effect.REPLACES
    if not is_own and mode in (Mode.APPEND, Mode.MERGE):
        effect = Effect.MIXES
    elif mode == Mode.APPEND:
        effect = Effect.APPENDS
    elif mode == Mode.MERGE and plan.change_rule is None:
        effect = Effect.MERGES
    return WrittenRegion(
        covered.run if covered.stream == plan.request.stream or effect is Effect.REPLACES else "",
        None if workers is None or anyone else frozenset(workers),
        region,
        current=is_own and not is_stale(plan, covered),
        changed="" if is_own else f"run {covered.run} of {_output(covered)}",
        effect=effect,
    )


def _output(covered: Covered) -> str:
    return f"stream {covered.stream}" + (f", {covered.transform}" if covered.transform else "")


def is_disturbed(plan: Plan, run: str) -> bool:
    """Whether others may have been at the rows of a plan since its run published them.

    What an audit has compared since does not count.
    """
    published = coverage.current(plan.lake, plan.target)
    entries = written_regions(plan, published, runs.read_histories(plan.lake, target=plan.target))
    own = [i for i, entry in enumerate(entries) if entry.run == run and _has(entry, plan.scope)]
    return not own or any(
        entry.changed
        and (i > own[-1] or entry.remains_under(entries[own[-1]].effect))
        and _overlaps(entry, plan.scope)
        for i, entry in enumerate(entries)
    )


def covering_run(plan: Plan) -> str | None:
    """The last run of the same output and code that has written all of a plan's range, if any."""
    for covered in reversed(coverage.current(plan.lake, plan.target)):
        if covered.output == plan.output and covered.scope.overlaps(plan.scope):
            workers = None if covered.scope.workers is None else frozenset(covered.scope.workers)
            written = WrittenRegion(covered.run, workers, covered.scope.region)
            whole = _has(written, plan.scope) and not is_stale(plan, covered)
            return covered.run if whole else None
    return None


def record_whole(plan: Plan, run: str, version: int) -> None:
    """Record that an audit found the rows of a plan whole, if others have been there since.

    Args:
        run: The run that has published them.
        version: The version of the target that was audited.
    """
    published = coverage.current(plan.lake, plan.target)
    covered = next((entry for entry in published if entry.run == run), None)
    if covered is None or not is_disturbed(plan, run):
        return
    compared = replace(covered, scope=plan.scope, target_version=version)
    if (compared.scope, version) not in covered.compared:
        coverage.write_covered(plan.lake, compared, plan.time_type, coverage.COMPARED)


def _has(entry: WrittenRegion, scope: Scope) -> bool:
    """Whether a run has written all of a scope."""
    named = entry.workers is None or (
        scope.workers is not None and entry.workers.issuperset(scope.workers)
    )
    return entry.writes and named and entry.region.includes(scope.region)


def _overlaps(entry: WrittenRegion, scope: Scope) -> bool:
    workers = None if entry.workers is None else tuple(entry.workers)
    return Scope(scope.target, workers, entry.region).overlaps(scope)
