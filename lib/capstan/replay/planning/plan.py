"""The plan of a replay: reads and writes, resolved from the index and the ledgers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from capstan.core.config import Mode, ProjectConfig, Target
from capstan.core.config.change_rules import ChangeRule
from capstan.core.config.row_checks import Check
from capstan.core.times import Antichain, Box, TimeType
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.replay.planning.computation import (
    Computation,
    CopyComputation,
    PipelineComputation,
    check_grain,
    check_workers,
    computation_of,
)
from capstan.replay.planning.cursor import Cursor, follow_identity, reached_by
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_layout import Layout
from capstan.replay.planning.time_range import requested_box
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.retirements import require_records
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.runs import History
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape, open_tape


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, resolved.

    Attributes:
        lake: The lake.
        request: The request.
        tape: The stream's tape.
        cut: The pinned cut.
        workers: Labels of the chosen workers by number, in the order they were chosen.
        everyone: Whether all workers of the cut are chosen.
        box: The requested range.
        frontier: The common frontier of the chosen workers at the cut.
        frontiers: The frontier of each chosen worker at the cut.
        region: The times of the rows that are written, in the coordinates of `time_type`.
        reached: The frontier under which all written rows are complete; a followed replay
            continues from it.
        cursor: The frontier that earlier runs of a followed replay have reached; None for others.
        complete: Whether the whole range is complete.
        target: The target's path.
        declared: The target's declaration, if there is one.
        layout: The target's columns of worker and time.
        computation: The computation that makes the rows.
        checks: The checks of the target and of the declared replay, for every row that is written.
    """

    lake: Lake
    request: Request
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]
    everyone: bool
    box: Box
    frontier: Antichain
    frontiers: Mapping[int, Antichain]
    region: Region
    reached: Antichain
    cursor: Antichain | None
    complete: bool
    target: str
    declared: Target | None
    layout: Layout
    computation: Computation
    checks: tuple[Check, ...] = ()

    @property
    def scope(self) -> Scope:
        """The part of the target that the replay may change; None as workers means all of them."""
        keeps = self.layout.worker is not None
        region = self.region
        if self.layout.time is None:
            region = Region(Box.everything(self.time_type))
        return Scope(self.target, tuple(sorted(self.workers)) if keeps else None, region)

    @property
    def whole_target(self) -> Scope:
        """All rows of the target."""
        return Scope(self.target, None, Region(Box.everything(self.time_type)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which `merge` and audits match rows."""
        return self.request.keys or self.computation.keys

    @property
    def change_rule(self) -> ChangeRule | None:
        """The rule by which changes of a key become rows; None unless it merges by sequence."""
        request = self.request
        if not request.sequence_by:
            return None
        return ChangeRule(self.keys, request.sequence_by, request.delete_when, request.history)

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row of the target, for audits and comparisons."""
        return self.keys if self.change_rule is None else self.change_rule.identity

    @property
    def locks(self) -> Scope:
        """The part of the target that an attempt locks: all of it for a merge by sequence.

        Its keys are not bound to the range, and its rows depend on all other changes of the table.
        """
        return self.scope if self.change_rule is None else self.whole_target

    @property
    def time_type(self) -> TimeType:
        """The times of the rows that are written; a pipeline keeps one coordinate of the tape's."""
        return self.computation.time_type(self.tape.time_type)

    def same_coordinates(self, region: Region) -> bool:
        """Whether a region has as many coordinates as `time_type`."""
        return len(region.box.since) == len(self.time_type.coordinates)

    @property
    def axes(self) -> tuple[int, ...]:
        """The positions of the coordinates of `time_type` in the tape's times."""
        return tuple(map(self.tape.time_type.index, self.time_type.names))

    @property
    def grain(self) -> int:
        """The length that ranges are multiples of, in integers of the last coordinate."""
        return math.lcm(self.computation.grain, self.tape.step)

    @property
    def reads(self) -> Region:
        """The times whose records are read; a pipeline also reads times around the range."""
        return self.computation.reads(self.region)

    @property
    def output(self) -> tuple[str, str]:
        """The identity of the rows: the stream, and the name of the computation."""
        return self.tape.name, self.computation.name

    def completes(self, box: Box) -> bool:
        """Whether the rows of a range, in the tape's times, can no longer change."""
        return self.computation.is_complete(box, self.frontier)

    def is_complete(self, frontier: Antichain) -> bool:
        """Whether the whole range would be complete under a frontier, or has no end."""
        if all(bound is None for bound in self.box.until):
            return True
        return self.computation.is_complete(self.box, frontier)

    @property
    def peers(self) -> int:
        """The number of replay workers: as requested, else as in the resumed snapshot."""
        if self.request.peers:
            return self.request.peers
        computation = self.computation
        if isinstance(computation, PipelineComputation) and computation.resumed is not None:
            return computation.resumed.peers
        return len(self.workers)

    @property
    def identity(self) -> str:
        """The hash of input, computation and target; of a followed replay, that of its cursor."""
        if self.request.follow is not None:
            return follow_identity(self.request, self.target)
        pipeline = (
            {
                "pipeline": self.computation.name,
                "reads": region_text(self.reads.simplified()),
            }
            if isinstance(self.computation, PipelineComputation)
            else {}
        )
        rule = self.change_rule
        return identity_of(
            {
                **pipeline,
                **({} if rule is None else {"changes": rule.to_json()}),
                "stream": self.tape.name,
                "tape": self.tape.identity,
                "cut": self.cut.commit,
                "workers": sorted(self.workers),
                "region": region_text(self.region.simplified()),
                "transform": self.request.transform,
                "code": self.computation.code,
                "mode": str(self.request.mode),
                "keys": list(self.keys),
                "target": self.target,
            }
        )

    def require_complete(self) -> None:
        """Check that the whole range is complete, unless `--partial` was given.

        Raises:
            IncompleteError: `CAP-INCOMPLETE`, with the frontier.
        """
        if self.complete or self.request.partial:
            return
        times = [self.tape.time_type.render(time) for time in self.frontier.elements]
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {self.tape.name}: the range is not complete, the frontier is at "
            + ", ".join(map(str, times)),
            "capture more first, shorten the range, or replay its complete part with --partial",
            stream=self.tape.name,
            frontier=times,
        )

    def require_records(self) -> None:
        """Check that no record that it reads was deleted.

        Raises:
            InvalidRequestError: `CAP-RETIRED`, naming the times whose records are gone.
        """
        workers = tuple(self.workers)
        needed = (self.lake, self.tape, self.cut, workers, self.reads, "the replay")
        if self.cursor is None:
            require_records(*needed)
        else:
            require_records(*needed, "follow under another name, {since} being its --since")

    @property
    def nothing_new(self) -> bool:
        """Whether no time became complete since the last run of a followed replay."""
        if self.cursor is None:
            return False
        return self.cursor == self.reached or self.region.simplified().box.is_empty

    def require_cursor(self, last: History | None) -> None:
        """Check, under the claim, that the last published run is still that of the plan.

        Raises:
            RangeLockedError: `CAP-CONFLICT` when that run was rolled back, or another one has
                published, since the planning.
        """
        if (None if last is None else reached_by(self.request, last)) != self.cursor:
            raise RangeLockedError(
                "CAP-CONFLICT",
                f"{self.request.follow} has moved while this run was planned",
                "run the same command again",
                follow=self.request.follow,
            )


def make_plan(
    lake: Lake,
    declarations: ProjectConfig,
    request: Request,
    *,
    cut: Cut | None = None,
    cursor: Cursor | None = None,
) -> Plan:
    """Resolve a request, without a JVM.

    Args:
        lake: The lake.
        declarations: The registered transforms and the declared targets.
        request: The request.
        cut: The cut, when it is already pinned.
        cursor: The position of a followed replay.

    Raises:
        InvalidRequestError: Unknown stream, worker, transform, cut or declared replay; a range that
            is reversed, or does not fit the transform's grain; missing workers that the transform
            needs; a pipeline that has changed since its state was kept.
    """
    tape = open_tape(lake, request.stream)
    cut = cut or index.find_cut(tape, request.as_of)
    workers = index.resolve_workers(tape, cut, request.workers)
    states = [state for state in index.worker_states(tape, cut) if state.worker in workers]
    frontier = index.frontier_of(tape, states)
    box = requested_box(tape, request)
    path, declared = target_path(lake, declarations, request.into)
    computation = computation_of(declarations, request, tape.time_type, box, frontier, declared)
    check_grain(computation, tape.time_type, box)
    if isinstance(computation, PipelineComputation):
        computation = computation.resuming(None if cursor is None else cursor.resumed)
        computation.require_coarse(tape.step)
    reached = computation.written_until(tape.time_type, frontier)
    played = None if cursor is None else cursor.reached
    region = Region(computation.project(box), reached, played).simplified()
    # Rows of a pipeline have times of their own, which are not truncated as the stream's are.
    step = 1 if isinstance(computation, PipelineComputation) else tape.step
    labels = index.worker_labels(tape, cut)
    plan = Plan(
        lake=lake,
        request=request,
        tape=tape,
        cut=cut,
        workers=workers,
        everyone=set(workers) == set(labels),
        box=box,
        frontier=frontier,
        frontiers={state.worker: state.frontier for state in states},
        region=region,
        reached=reached,
        cursor=played,
        complete=False,
        target=path,
        declared=declared,
        layout=Layout(computation.worker, computation.time, labels, step),
        computation=computation.at(region),
        checks=_checks(declarations, request, declared, computation),
    )
    _check_scope(plan)
    return replace(plan, complete=plan.is_complete(frontier))


def target_path(lake: Lake, declarations: ProjectConfig, into: str) -> tuple[str, Target | None]:
    """The path of a target and its declaration, even when the target is named by its path.

    Raises:
        InvalidRequestError: `CAP-NAME` for a place that belongs to the lake itself; `CAP-DECLARE`
            for an invalid declaration; of a path, for any invalid one, as that may be its own.
    """
    declarations.require_sound("targets", None if "/" in into else into)
    places = {
        name: lake.table(target.path or name) for name, target in declarations.targets.items()
    }
    path = places.get(into) or lake.table(into)
    name = into if into in places else next((n for n, at in places.items() if at == path), None)
    return lake.target(path), declarations.targets[name] if name is not None else None


def with_region(plan: Plan, region: Region) -> Plan:
    """The plan for other times, such as those that an earlier attempt pinned."""
    return replace(plan, region=region, computation=plan.computation.at(region))


def _checks(
    declarations: ProjectConfig,
    request: Request,
    declared: Target | None,
    computation: Computation,
) -> tuple[Check, ...]:
    of_target = () if declared is None else declared.checks
    of_replay = () if request.replay is None else declarations.replay(request.replay).checks
    checks = (*of_target, *of_replay)
    keys = request.keys or computation.keys
    if request.mode is not Mode.MERGE or not keys or any(c.unique == keys for c in checks):
        return checks
    if request.sequence_by:
        return checks  # It has one change per key, whatever the records have.
    # When the table lacks a key, a merge inserts every row of that key.
    return (*checks, Check(unique=keys))


def _check_scope(plan: Plan) -> None:
    mode, computation = plan.request.mode, plan.computation
    bounded = any(bound is not None for bound in (*plan.box.since, *plan.box.until))
    timeless = mode is Mode.REPLACE and plan.layout.time is None
    if not isinstance(computation, CopyComputation):
        check_workers(computation, everyone=plan.everyone)
        if timeless and (bounded or plan.request.follow):
            raise InvalidRequestError(
                "CAP-TIMELESS",
                f"{computation.title} keeps no time, so no range of its output can be replaced",
                "replace all of it (no range), or use mode append or merge",
            )
    if mode is Mode.MERGE and not plan.keys:
        raise InvalidRequestError(
            "CAP-KEYS",
            "mode merge needs the columns that identify a row",
            "give --keys, or declare keys for the transform or for the pipeline's sink",
        )
    both = sorted(set(plan.request.sequence_by) & set(plan.keys))
    if both:
        raise InvalidRequestError(
            "CAP-SEQUENCE",
            f"column {both[0]} is a key, so it cannot order the changes of a key",
            "name another column in sequence_by",
        )
