"""What stands in a target: what runs wrote to its rows, and what others did to them since.

A range stands when a run of the output has written it, and everything that others did there since
was replaced by such a run, or compared by an audit that found the rows whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import pyarrow as pa

from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import SystemFailureError
from capstan.replay.planning.plan import Plan
from capstan.storage.delta import delta
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.foreign_commits import touched_since
from capstan.storage.ledger.runs import History
from capstan.storage.tape.bounds import Bounds, box_of, only_value

_MAX_PLACES = 64
"""The most places of earlier rows that are distinguished."""


class Effect(StrEnum):
    """What an entry of a target's history does to the rows that are there."""

    REPLACES = "replaces"  # A run took all of them away; or an audit found its rows to be all.
    MERGES = "merges"  # A run put its rows over what others had changed, beside other outputs.
    APPENDS = "appends"  # A run put its rows beside all others.
    MIXES = "mixes"  # A run of another output put its rows beside them, or over some.
    CHANGES = "changes"  # Somebody else may have changed some.


@dataclass(frozen=True, slots=True)
class WrittenRegion:
    """A region of a target written by a run, or changed by somebody else."""

    run: str  # The run; empty when its rows cannot be those of the output in question.
    workers: frozenset[int] | None  # The workers of the rows; None for all.
    region: Region
    current: bool = True  # Whether the present code has written it.
    changed: str = ""  # The name of a commit by somebody else, or of a run of another output.
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

    def covers(self, scope: Scope) -> bool:
        """Whether a run has written all of a scope."""
        return self.writes and self._scope_in(scope.target).contains(scope)

    def overlaps(self, scope: Scope) -> bool:
        """Whether it can have a row in common with a scope."""
        return self._scope_in(scope.target).overlaps(scope)

    def _scope_in(self, target: str) -> Scope:
        return Scope(target, None if self.workers is None else tuple(self.workers), self.region)


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A foreign commit to a target that may have changed its rows."""

    version: int  # The version of the target.
    operation: str  # Delta's name of the operation: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
    at: datetime  # The time of the commit.
    scope: Scope  # The rows that it may have changed, and possibly more.

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.at:%Y-%m-%d %H:%M:%S})"


def changes_of_others(plan: Plan, since: int) -> Iterator[ForeignChange]:
    """Foreign changes to the rows of a plan's target, in the order of its versions."""
    # They are found in the target's log without reading a row. Commits that the log has lost are
    # included as far as maintenance has recorded them before.
    for commit in touched_since(plan.lake, plan.target, since):
        for scope in dict.fromkeys(scope_of(plan, bounds) for bounds in commit.files):
            yield ForeignChange(commit.version, commit.operation, commit.at, scope)


def scope_of(plan: Plan, bounds: Bounds) -> Scope:
    """The workers and times that contain those of a file's rows in a plan's target."""
    layout, value = plan.layout, only_value(bounds, plan.layout.worker or "")
    workers: tuple[int, ...] = (value,) if isinstance(value, int) else ()
    if isinstance(value, str):
        workers = tuple(number for number, label in layout.labels.items() if label == value)
    box = box_of(bounds, plan.time_type, layout.time or "")
    since = (low if low is None else low - low % layout.every for low in box.since)
    return Scope(plan.target, workers or None, Region(Box(tuple(since), box.until)))


def may_have_rows(plan: Plan) -> bool:
    """Whether a file of the target can have a row of the plan's range, by its bounds."""
    files = pa.table(delta.open_table(plan.target).get_add_actions(flatten=True)).to_pylist()
    return any(scope_of(plan, bounds).overlaps(plan.scope) for bounds in files)


def is_stale(plan: Plan, covered: Covered) -> bool:
    """Whether a run used another transform or pipeline than the plan, or other code."""
    computation = plan.computation
    return (covered.transform, covered.code) != (computation.name, computation.code)


def rows_before(plan: Plan, first: int) -> list[WrittenRegion]:
    """Where rows were before the first publish, beside which a run has appended its own."""
    try:
        files = delta.open_table(plan.target, first - 1).get_add_actions(flatten=True)
    except SystemFailureError:
        return []  # There was no table, or the log no longer goes back to that version.
    scopes = dict.fromkeys(scope_of(plan, bounds) for bounds in pa.table(files).to_pylist())
    anywhere = Scope(plan.target, None, Region(Box.everything(plan.time_type)))
    places = [anywhere] if len(scopes) > _MAX_PLACES else list(scopes)
    return [changed_by(f"rows from before version {first}", place) for place in places]


def changed_by(name: ForeignChange | str, scope: Scope) -> WrittenRegion:
    """What somebody else may have done to the rows of a scope."""
    workers = None if scope.workers is None else frozenset(scope.workers)
    return WrittenRegion("", workers, scope.region, changed=str(name), effect=Effect.CHANGES)


def written_by(
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
    output = f"stream {covered.stream}" + (f", {covered.transform}" if covered.transform else "")
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
        changed="" if is_own else f"run {covered.run} of {output}",
        effect=effect,
    )
