"""Coverage of a declared replay, interval by interval: what is covered, stale, missing, too early.

Told from the ledgers and the tape's index alone, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from capstan.backfill.evidence import beginnings, extent, gather
from capstan.backfill.interval import Interval, State
from capstan.backfill.interval_grid import Every, Grid, cut, grids
from capstan.backfill.interval_state import IntervalClassifier, judged, whole_target
from capstan.core.config import Mode, ProjectConfig, Replay
from capstan.core.times import Box, Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan, make_plan
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape

__all__ = ["Every", "Interval", "State", "Survey", "bound_text", "intervals", "survey"]

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Survey:
    """A declared replay and the state of its intervals.

    Attributes:
        declared: The replay.
        plan: Its whole range, resolved at a pinned cut.
        intervals: In the order of their times; they partition the range.
    """

    declared: Replay
    plan: Plan
    intervals: tuple[Interval, ...] = field(repr=False)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many intervals are in which state; all states, in their order."""
        return {str(state): sum(each.state is state for each in self.intervals) for state in State}

    @property
    def whole(self) -> bool:
        """Whether the target can only be replaced as a whole: then there is one interval."""
        return _whole(self.plan)

    def to_json(self) -> dict[str, object]:
        """The survey as `--json` prints it."""
        plan = self.plan
        return {
            "replay": self.declared.name,
            "stream": plan.tape.name,
            "target": plan.request.into,
            "cut": plan.cut.commit,
            "workers": list(plan.workers.values()),
            "frontier": [plan.tape.time_type.render(time) for time in plan.frontier.elements],
            "counts": self.counts,
            "intervals": [each.to_json() for each in self.intervals],
        }


def intervals(
    lake: Lake,
    declarations: ProjectConfig,
    replay: str,
    *,
    every: Every | None = None,
    since: str | None = None,
    until: str | None = None,
) -> list[Interval]:
    """The intervals of a declared replay, in the order of their times; see `survey`."""
    found = survey(lake, declarations, replay, every=every, since=since, until=until)
    return list(found.intervals)


def survey(
    lake: Lake,
    declarations: ProjectConfig,
    replay: str,
    *,
    every: Every | None = None,
    since: str | None = None,
    until: str | None = None,
    as_of: int | None = None,
) -> Survey:
    """Tell of each interval of a declared replay what state it is in, without a JVM.

    The range is that of the declaration, within the bounds that are given. Without a first time it
    begins with the interval of the first record; without an end it ends with the interval that the
    frontier, or the last record, lies in. A target that keeps no time and is replaced as a whole
    has one interval, up to the frontier.

    Args:
        lake: The lake.
        declarations: What is declared.
        replay: The replay's name.
        every: How long an interval is: a number where times are BIGINT. By default the intervals
            are those of the replay's schedule, or of the grain of its transform or sink, or days;
            one each where times are BIGINT. They are counted from the declared first time, or from
            1970.
        since: First time that is asked about, as the command line writes it.
        until: First time after that.
        as_of: The cut; None for the newest.

    Raises:
        InvalidRequestError: `CAP-REPLAY` for a replay that is not declared; `CAP-EVERY` for a
            length that does not fit; `CAP-INTERVALS` when there are too many; and as `make_plan`.
    """
    declared = declarations.replay(replay)
    tape = open_tape(lake, declared.stream)
    coordinate = tape.time_type.coordinates[-1]
    low = _tightest(max, _declared(coordinate, declared.since), _given(tape.time_type, since))
    high = _tightest(min, _declared(coordinate, declared.until), _given(tape.time_type, until))
    request = Request(
        declared.stream,
        declared.target,
        workers=declared.workers,
        since=None if low is None else bound_text(tape.time_type, coordinate.render(low)),
        until=None if high is None else bound_text(tape.time_type, coordinate.render(high)),
        as_of=as_of,
        transform=declared.transform,
        pipeline=declared.pipeline,
        sink=declared.sink,
        mode=declared.mode,
        keys=declared.keys,
        replay=declared.name,
    )
    plan = make_plan(lake, declarations, request)
    if plan.axes[-1] != len(tape.time_type.coordinates) - 1:
        raise InvalidRequestError(
            "CAP-INTERVALS",
            f"intervals are cut in {coordinate.name}, and pipeline {request.pipeline} has another "
            "coordinate for its time",
            "replay its ranges with `capstan replay`",
        )
    judging = IntervalClassifier(plan, gather(lake, plan), beginnings(plan))
    found = whole_target(judging) if _whole(plan) else judged(judging, _cut(plan, declared, every))
    return Survey(declared, plan, found)


def bound_text(time_type: TimeType, value: int | str) -> str:
    """A bound in the last coordinate alone, as a request has it."""
    if len(time_type.coordinates) == 1:
        return str(value)
    return f"{time_type.names[-1]}={value}"


def _whole(plan: Plan) -> bool:
    return plan.layout.time is None and plan.request.mode is Mode.REPLACE


def _declared(coordinate: Coordinate, bound: datetime | int | None) -> int | None:
    if not isinstance(bound, datetime):
        return bound
    day = coordinate.kind is Kind.DATE
    return coordinate.parse(bound.date().isoformat() if day else bound.isoformat())


def _given(time_type: TimeType, text: str | None) -> int | None:
    *outer, last = Box.bound_of_text(time_type, text)
    if any(value is not None for value in outer):
        raise InvalidRequestError(
            "CAP-TIME",
            f"intervals are cut in {time_type.names[-1]} alone, and {str(text)[:80]!r} bounds more",
            f"give a bound of {time_type.names[-1]}",
        )
    return last


def _tightest(choose: Callable[[Iterable[int]], int], *bounds: int | None) -> int | None:
    there = [bound for bound in bounds if bound is not None]
    return choose(there) if there else None


def _cut(plan: Plan, declared: Replay, every: Every | None) -> list[tuple[int, int]]:
    """The intervals of the plan's range, as integers of the last coordinate."""
    coordinate = plan.tape.time_type.coordinates[-1]
    unit = plan.grain
    anchor = _declared(coordinate, declared.since) or 0
    own = plan.computation.grain
    grain = None if unit == 1 else unit * _MICROSECOND
    if coordinate.kind is Kind.BIGINT:
        every, grain = every or unit, None
    choice = grids(
        coordinate.kind,
        every,
        schedule=declared.schedule,
        grain=grain,
        usual=None if own == 1 else grain,
        anchor=anchor,
    )
    for grid in choice:
        found = _within(plan, grid)
        # A schedule's moments may lie inside a grain, which can only be played whole.
        if all(since % unit == 0 for since, _ in found[1:]):
            break
    return found


def _within(plan: Plan, grid: Grid) -> list[tuple[int, int]]:
    low, high = plan.box.since[-1], plan.box.until[-1]
    if low is not None and high is not None:
        return cut(grid, low, high)
    recorded = extent(plan)
    # The last times that are told of: those of the last record, and those before the frontier.
    lasts = [] if recorded is None else [recorded[1]]
    if not plan.frontier.is_empty:
        lasts.append(min(time[-1] for time in plan.frontier) - 1)
    if recorded is None and low is None:
        return []
    if low is None:
        assert recorded is not None
        low = grid.at_or_before(recorded[0])
    if high is None:
        last = max(lasts, default=low - 1)
        high = low if last < low else grid.after(last)
    return cut(grid, low, high)
