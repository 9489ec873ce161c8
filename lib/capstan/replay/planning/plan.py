"""The plan of a replay: what would be read and written, from the index and the ledgers alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from capstan.core.config import Mode, ProjectConfig, Target, Transform
from capstan.core.config.row_checks import Check
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, InvalidRequestError
from capstan.replay.planning.computation import (
    Computation,
    PipelineComputation,
    check_grain,
    check_workers,
    computation_of,
    time_of,
)
from capstan.replay.planning.cursor import Cursor, follow_identity
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_layout import Layout
from capstan.replay.planning.time_range import asked_box
from capstan.storage import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.retirements import require_records
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.tape import index
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.tape import Cut, Tape, open_tape


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, resolved.

    Attributes:
        lake: Where it happens.
        request: What was asked.
        tape: The stream's tape.
        cut: The pinned cut.
        workers: Labels of the chosen workers by number, in the order they were chosen.
        everyone: Whether all workers of the cut are chosen.
        box: The range that was asked for.
        frontier: Of the chosen workers together, at the cut.
        frontiers: Of each chosen worker, at the cut.
        region: The times of the rows that are written, in the coordinates of `time_type`.
        reached: The frontier under which all that is written is complete; a followed replay goes
            on from it.
        cursor: Of a followed replay, what earlier runs have played.
        complete: Whether the whole range is.
        target: The target's path.
        declared: The target's declaration, if it has one.
        layout: How the target keeps worker and time.
        transform: The transform, if it has one.
        piped: The pipeline and the sink of it that is played, if it has one.
        computation: What either of them computes; None for a copy.
        code: The hash of its code and settings, empty for a copy.
        checks: What every row must meet that is put out: the target's checks, and the replay's.
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
    transform: Transform | None
    piped: PipelineComputation | None
    computation: Computation | None
    code: str
    checks: tuple[Check, ...] = ()

    @property
    def scope(self) -> Scope:
        """What of the target the replay may change; None as workers means all of them."""
        keeps = self.layout.worker is not None
        region = self.region
        if self.layout.time is None:
            region = Region(Box.everything(self.time_type))
        return Scope(self.target, tuple(sorted(self.workers)) if keeps else None, region)

    @property
    def whole(self) -> Scope:
        """All rows of the target."""
        return Scope(self.target, None, Region(Box.everything(self.time_type)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which `merge` and audits match rows."""
        return _keys(self.request, self.computation)

    @property
    def time_type(self) -> TimeType:
        """The times of the rows that are written: of a pipeline's one coordinate of the tape's."""
        return self.tape.time_type if self.piped is None else self.piped.time_type

    def tells(self, region: Region) -> bool:
        """Whether a region is one of `time_type`, by its number of coordinates."""
        return len(region.box.since) == len(self.time_type.coordinates)

    @property
    def axes(self) -> tuple[int, ...]:
        """Which coordinates of the tape's times those of `time_type` are."""
        return tuple(map(self.tape.time_type.index, self.time_type.names))

    @property
    def grain(self) -> int:
        """Of what length a range has to be a whole multiple, in its last coordinate's integers."""
        own = 1 if self.computation is None else self.computation.grain
        return math.lcm(own, self.tape.step)

    @property
    def reads(self) -> Region:
        """The times whose records are read; of a pipeline those before and after count as well."""
        return self.region if self.piped is None else self.piped.reads

    @property
    def name(self) -> str:
        """What the ledgers call what computes its rows; empty for a copy."""
        return self.computation.name if self.computation else self.request.transform or ""

    @property
    def output(self) -> tuple[str, str]:
        """Whose rows it writes: the stream, and what is made of its records."""
        return self.tape.name, self.name

    def completes(self, box: Box) -> bool:
        """Whether nothing can change the rows of a range, in the tape's times, any more."""
        if self.piped is None:
            return box.is_complete(self.frontier)
        return replace(self.piped, box=box).complete(self.frontier)

    def is_complete(self, frontier: Antichain) -> bool:
        """Whether its whole range would be complete under a frontier, or has no end."""
        if all(bound is None for bound in self.box.until):
            return True
        return self.box.is_complete(frontier) if not self.piped else self.piped.complete(frontier)

    @property
    def peers(self) -> int:
        """How many replay workers play: those that were asked for, else as many as there were."""
        resumed = None if self.piped is None else self.piped.resumed
        return self.request.peers or (resumed.peers if resumed else len(self.workers))

    @property
    def identity(self) -> str:
        """The hash of what is replayed, how, and into what; the cursor's for a followed replay."""
        if self.request.follow is not None:
            return follow_identity(self.request, self.target)
        piped = (
            {}
            if self.piped is None
            else {
                "pipeline": self.name,
                "reads": region_text(self.reads.simplified()),
            }
        )
        return identity_of(
            {
                **piped,
                "stream": self.tape.name,
                "tape": delta.open_table(self.tape.paths.events).metadata().id,
                "cut": self.cut.commit,
                "workers": sorted(self.workers),
                "region": region_text(self.region.simplified()),
                "transform": self.request.transform,
                "code": self.code,
                "mode": str(self.request.mode),
                "keys": list(self.keys),
                "target": self.target,
            }
        )

    def require_complete(self) -> None:
        """Check that the whole range is complete, or that a part was asked for.

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
            "capture more first, ask for less, or play what is complete with --partial",
            stream=self.tape.name,
            frontier=times,
        )

    def require_records(self) -> None:
        """Check that no record is gone of what is read.

        Raises:
            InvalidRequestError: `CAP-RETIRED`, naming the times that have no records any more.
        """
        workers = tuple(self.workers)
        what = (self.lake, self.tape, self.cut, workers, self.reads, "the replay")
        if self.cursor is None:
            require_records(*what)
        else:
            require_records(*what, "follow under another name, {since} being its --since")


def make_plan(
    lake: Lake,
    declarations: ProjectConfig,
    request: Request,
    *,
    states: Collection[WorkerState] | None = None,
    cut: Cut | None = None,
    cursor: Cursor | None = None,
) -> Plan:
    """Resolve a request, without a JVM.

    Args:
        lake: The lake.
        declarations: Registered transforms and declared targets.
        request: What is asked.
        states: The workers at the cut, when a verification has just told them.
        cut: The cut, when it is pinned already.
        cursor: Of a followed replay, where it stands.

    Raises:
        InvalidRequestError: Unknown stream, worker, transform, cut, declared replay; a range that
            is reversed, or does not fit the transform's grain; workers that the transform cannot do
            without; a pipeline that has changed since the state that it goes on from was kept.
    """
    tape = open_tape(lake, request.stream)
    cut = cut or index.find_cut(tape, request.as_of)
    workers = index.resolve_workers(tape, cut, request.workers)
    if states is None:
        states = index.worker_states(tape, cut)
    states = [state for state in states if state.worker in workers]
    frontier = index.frontier_of(tape, states)
    transform, named, computation = computation_of(declarations, request)
    box = asked_box(tape, request)
    if computation is not None:
        check_grain(computation, tape.time_type, time_of(named, tape.time_type), box)
    resumed = None if cursor is None else cursor.resumed
    piped = named and PipelineComputation.over(named, tape.time_type, box, frontier, resumed)
    if piped is not None:
        piped.require_unchanged()
        piped.require_coarse(tape.step)
    reached = _reached(tape, computation, piped, frontier)
    played = None if cursor is None else cursor.reached
    region = Region(piped.asked if piped else box, reached, played).simplified()
    path, declared = target_path(lake, declarations, request.into)
    plan = Plan(
        lake=lake,
        request=request,
        tape=tape,
        cut=cut,
        workers=workers,
        everyone=set(workers) == set(index.worker_labels(tape, cut)),
        box=box,
        frontier=frontier,
        frontiers={state.worker: state.frontier for state in states},
        region=region,
        reached=reached,
        cursor=played,
        complete=False,
        target=path,
        declared=declared,
        layout=_layout(tape, cut, computation, piped, declared),
        transform=transform,
        piped=piped and piped.at(region),
        computation=computation,
        code=computation.code if computation else "",
        checks=_checks(declarations, request, declared, computation),
    )
    _check_scope(plan)
    return replace(plan, complete=plan.is_complete(frontier))


def target_path(lake: Lake, declarations: ProjectConfig, into: str) -> tuple[str, Target | None]:
    """The path of a target, and its declaration if it has one: also where it is named by its path.

    Raises:
        InvalidRequestError: `CAP-NAME` for a place that belongs to the lake itself; `CAP-DECLARE`
            for one whose declaration is wrong, or may be: of a path nobody knows what declares it.
    """
    declarations.require_sound("targets", None if "/" in into else into)
    places = {name: lake.table(each.path or name) for name, each in declarations.targets.items()}
    path = places.get(into) or lake.table(into)
    name = into if into in places else next((n for n, at in places.items() if at == path), None)
    return lake.target(path), declarations.targets[name] if name is not None else None


def with_region(plan: Plan, region: Region) -> Plan:
    """The plan for other times: those that an earlier attempt had pinned."""
    return replace(plan, region=region, piped=plan.piped and plan.piped.at(region))


def _checks(
    declarations: ProjectConfig,
    request: Request,
    declared: Target | None,
    computation: Computation | None,
) -> tuple[Check, ...]:
    own = () if request.replay is None else declarations.replay(request.replay).checks
    found = (*(declared.checks if declared is not None else ()), *own)
    keys = _keys(request, computation)
    if request.mode is not Mode.MERGE or not keys or any(c.unique == keys for c in found):
        return found
    # Of two rows of one key a merge takes both where the table has none of it yet.
    return (*found, Check(unique=keys))


def _keys(request: Request, computation: Computation | None) -> tuple[str, ...]:
    return request.keys or (computation.keys if computation else ())


def _reached(
    tape: Tape,
    computation: Computation | None,
    piped: PipelineComputation | None,
    frontier: Antichain,
) -> Antichain:
    """Up to where rows are written: only whole grains, as the last one has to wait for its end."""
    grain = 1 if computation is None else computation.grain
    if piped is not None:
        end = piped.reach.until
        if end is None:
            return Antichain()
        least = piped.time_type.minimum[0]
        return Antichain.of([Time((max(least, end - end % grain),))])
    at = len(tape.time_type.coordinates) - 1
    if grain == 1 or tape.time_type.coordinates[at].kind is not Kind.TIMESTAMP:
        return frontier
    return Antichain.of((*time[:at], time[at] - time[at] % grain) for time in frontier.elements)


def _layout(
    tape: Tape,
    cut: Cut,
    computation: Computation | None,
    piped: PipelineComputation | None,
    declared: Target | None,
) -> Layout:
    labels = index.worker_labels(tape, cut)
    # Rows of a pipeline have times of their own, which are not truncated as the stream's are.
    every = 1 if piped else tape.step
    if computation is not None:
        return Layout(computation.worker, computation.time, labels, every)
    if declared is not None:
        return Layout(declared.worker, declared.time, labels, every)
    return Layout("_worker", "_time", labels, every)


def _check_scope(plan: Plan) -> None:
    mode, computation = plan.request.mode, plan.computation
    if computation is not None:
        check_workers(computation, everyone=plan.everyone)
    bounded = any(x is not None for x in (*plan.box.since, *plan.box.until))
    timeless = mode is Mode.REPLACE and plan.layout.time is None
    if computation is not None and timeless and (bounded or plan.request.follow):
        raise InvalidRequestError(
            "CAP-TIMELESS",
            f"{computation.title} keeps no time, so no range of its output can be replaced",
            "replace all of it (no range), or use mode append or merge",
        )
    if mode is Mode.MERGE and not plan.keys:
        raise InvalidRequestError(
            "CAP-KEYS",
            "mode merge needs the columns that identify a row",
            "give --keys, or declare keys with the transform, or with the pipeline's sink",
        )
