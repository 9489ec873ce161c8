"""The plan of a replay: what would be read and written, from the index and the ledgers alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from capstan.declare import (
    Declarations,
    Mode,
    Target,
    Transform,
    format_duration,
    transforms,
)
from capstan.declare.checks import Check
from capstan.errors import BadRequest, NotComplete
from capstan.ledger.claims import Scope
from capstan.ledger.identity import identity_of
from capstan.ledger.regions import region_text
from capstan.replay.follow import follow_identity
from capstan.replay.layout import Layout
from capstan.replay.request import Request
from capstan.tape import delta, summary
from capstan.tape.lake import Lake
from capstan.tape.summary import WorkerState
from capstan.tape.tape import Cut, Tape, open_tape
from capstan.times import Antichain, Box, Kind
from capstan.times.region import Region


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, resolved.

    Attributes:
        request: What was asked.
        tape: The stream's tape.
        cut: The pinned cut.
        workers: Labels of the chosen workers by number, in the order they were chosen.
        everyone: Whether all workers of the cut are chosen.
        box: The range that was asked for.
        frontier: Of the chosen workers together, at the cut.
        region: The times that are played.
        reached: The frontier under which all that is played is complete; a followed replay goes
            on from it.
        cursor: Of a followed replay, what earlier runs have played.
        complete: Whether the whole range is.
        target: The target's path.
        declared: The target's declaration, if it has one.
        layout: How the target keeps worker and time.
        transform: The transform, or None for a copy.
        code: The hash of the transform's code and settings, empty for a copy.
        checks: What every row must meet that is put out: the target's checks, and the replay's.
    """

    request: Request
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]
    everyone: bool
    box: Box
    frontier: Antichain
    region: Region
    reached: Antichain
    cursor: Antichain | None
    complete: bool
    target: str
    declared: Target | None
    layout: Layout
    transform: Transform | None
    code: str
    checks: tuple[Check, ...] = ()

    @property
    def scope(self) -> Scope:
        """What of the target the replay may change; None as workers means all of them."""
        keeps = self.layout.worker is not None
        region = self.region
        if self.layout.time is None:
            region = Region(Box.everything(self.tape.time_type))
        return Scope(self.target, tuple(sorted(self.workers)) if keeps else None, region)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which `merge` and audits match rows."""
        return self.request.keys or (self.transform.keys if self.transform else ())

    @property
    def peers(self) -> int:
        """How many replay workers play."""
        return self.request.peers or len(self.workers)

    @property
    def identity(self) -> str:
        """The hash of what is replayed, how, and into what; the cursor's for a followed replay."""
        if self.request.follow is not None:
            return follow_identity(self.request, self.target)
        return identity_of(
            {
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
            NotComplete: `CAP-INCOMPLETE`, with the frontier.
        """
        if self.complete or self.request.partial:
            return
        times = [self.tape.time_type.render(time) for time in self.frontier.elements]
        raise NotComplete(
            "CAP-INCOMPLETE",
            f"stream {self.tape.name}: the range is not complete, the frontier is at "
            + ", ".join(map(str, times)),
            "capture more first, ask for less, or play what is complete with --partial",
            stream=self.tape.name,
            frontier=times,
        )


def make_plan(
    lake: Lake,
    declarations: Declarations,
    request: Request,
    *,
    states: Collection[WorkerState] | None = None,
    cut: Cut | None = None,
    cursor: Antichain | None = None,
) -> Plan:
    """Resolve a request, without a JVM.

    Args:
        lake: The lake.
        declarations: Registered transforms and declared targets.
        request: What is asked.
        states: The workers at the cut, when a verification has just told them.
        cut: The cut, when it is pinned already.
        cursor: Of a followed replay, what it has played already.

    Raises:
        BadRequest: Unknown stream, worker, transform, cut, declared replay; a range that is
            reversed, or does not fit the transform's grain; workers that the transform cannot do
            without.
    """
    tape = open_tape(lake, request.stream)
    cut = cut or summary.find_cut(tape, request.as_of)
    workers = summary.resolve_workers(tape, cut, request.workers)
    if states is None:
        states = summary.worker_states(tape, cut)
    everyone = set(workers) == set(summary.worker_labels(tape, cut))
    frontier = summary.frontier_of([state for state in states if state.worker in workers])
    transform, code = _transform(declarations, request)
    box = _box(tape, request)
    _check_grain(tape, transform, box)
    path, declared = target_path(lake, declarations, request.into)
    reached = _whole_grains(tape, transform, frontier)
    plan = Plan(
        request,
        tape,
        cut,
        workers,
        everyone,
        box,
        frontier,
        Region(box, reached, cursor).simplified(),
        reached,
        cursor,
        all(bound is None for bound in box.until) or box.is_complete(frontier),
        path,
        declared,
        _layout(tape, cut, transform, declared),
        transform,
        code,
        _checks(declarations, request, declared),
    )
    _check_scope(plan)
    return plan


def target_path(lake: Lake, declarations: Declarations, into: str) -> tuple[str, Target | None]:
    """The path of a target, and its declaration if it has one."""
    declared = declarations.targets.get(into)
    path = declared.path if declared is not None and declared.path else into
    return lake.table(path), declared


def with_region(plan: Plan, region: Region) -> Plan:
    """The plan for other times: those that an earlier attempt had pinned."""
    return replace(plan, region=region)


def _transform(declarations: Declarations, request: Request) -> tuple[Transform | None, str]:
    if request.transform is None:
        return None, ""
    found = transforms(declarations.transforms).get(request.transform)
    return found, found.code_hash


def _checks(
    declarations: Declarations, request: Request, declared: Target | None
) -> tuple[Check, ...]:
    own = () if request.replay is None else declarations.replay(request.replay).checks
    return (*(declared.checks if declared is not None else ()), *own)


def _box(tape: Tape, request: Request) -> Box:
    bounds = [Box.bound_of_text(tape.time_type, text) for text in (request.since, request.until)]
    box = Box(*bounds)
    if request.known_at is not None:
        box = box.intersect(_known(tape, request.known_at))
    if box.is_empty:
        raise BadRequest(
            "CAP-RANGE",
            f"the range from {request.since} to {request.until} is empty or reversed",
            "a range goes from its first time to the first one after it",
        )
    return box


def _known(tape: Tape, epoch: int) -> Box:
    """The times of what was known at an epoch."""
    if "epoch" not in tape.time_type.names:
        raise BadRequest(
            "CAP-KNOWN-AT",
            f"times of stream {tape.name} have no epoch: {', '.join(tape.time_type.names)}",
            "leave out --known-at; --as-of names a commit of any tape",
            stream=tape.name,
        )
    past = tape.time_type.coordinates[tape.time_type.index("epoch")].parse(epoch) + 1
    return Box.of(tape.time_type, until={"epoch": past})


def _grain(transform: Transform | None) -> int:
    if transform is None or transform.grain is None:
        return 1
    return transform.grain // timedelta(microseconds=1)


def _check_grain(tape: Tape, transform: Transform | None, box: Box) -> None:
    if transform is None or transform.grain is None:
        return
    grain, at = _grain(transform), _event(tape)
    coordinate = tape.time_type.coordinates[at]
    for bound in (box.since[at], box.until[at]):
        if bound is not None and bound % grain:
            below = bound - bound % grain
            near = [coordinate.render(value) for value in (below, below + grain)]
            raise BadRequest(
                "CAP-GRAIN",
                f"transform {transform.name} works on whole multiples of "
                f"{format_duration(transform.grain)}, and {coordinate.render(bound)} is none",
                f"the nearest are {near[0]} and {near[1]}",
            )


def _event(tape: Tape) -> int:
    """Which coordinate is the event time: the last one."""
    return len(tape.time_type.coordinates) - 1


def _whole_grains(tape: Tape, transform: Transform | None, frontier: Antichain) -> Antichain:
    grain, at = _grain(transform), _event(tape)
    if grain == 1 or tape.time_type.coordinates[at].kind is not Kind.TIMESTAMP:
        return frontier
    # Only whole grains are played: the last one has to wait for its end.
    return Antichain.of((*time[:at], time[at] - time[at] % grain) for time in frontier.elements)


def _layout(tape: Tape, cut: Cut, transform: Transform | None, declared: Target | None) -> Layout:
    labels = summary.worker_labels(tape, cut)
    every = _every(tape)
    if transform is not None:
        return Layout(transform.worker, transform.time, labels, every)
    if declared is not None:
        return Layout(declared.worker, declared.time, labels, every)
    return Layout("_worker", "_time", labels, every)


def _every(tape: Tape) -> int:
    fixed = tape.settings.get("fixed")
    time = fixed.get("time") if isinstance(fixed, Mapping) else None
    return int(time["every_us"]) if isinstance(time, Mapping) else 1


def _check_scope(plan: Plan) -> None:
    name = plan.transform.name if plan.transform else ""
    mode = plan.request.mode
    if plan.transform and plan.layout.worker is None and not plan.everyone:
        raise BadRequest(
            "CAP-WORKERS",
            f"transform {name} mixes workers: its output does not say whose a row is",
            "replay all workers, or have the transform keep the worker and declare the column",
        )
    bounded = any(x is not None for x in (*plan.box.since, *plan.box.until))
    timeless = plan.transform is not None and plan.layout.time is None
    if timeless and mode is Mode.REPLACE and (bounded or plan.request.follow):
        raise BadRequest(
            "CAP-TIMELESS",
            f"transform {name} keeps no time, so no range of its output can be replaced",
            "replace all of it (no range), or use mode append or merge",
        )
    if mode is Mode.MERGE and not plan.keys:
        raise BadRequest(
            "CAP-KEYS",
            "mode merge needs the columns that identify a row",
            "give --keys, or declare keys with the transform",
        )
