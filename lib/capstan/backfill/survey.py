"""Survey of a declared replay: the state of each interval of its range.

Uses only the ledgers and the tape's index, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import lcm
from typing import TYPE_CHECKING

from capstan.backfill.evidence import gather, recorded_extent, worker_starts
from capstan.backfill.interval import Interval, IntervalState
from capstan.backfill.interval_grid import Every, Grid, cut, grids
from capstan.backfill.interval_state import IntervalClassifier, classify_intervals, whole_target
from capstan.core.config import Mode, ProjectConfig, Replay
from capstan.core.times import Box, Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape, require_single_times

if TYPE_CHECKING:
    from capstan.spark.session import Later

__all__ = ["Every", "Interval", "IntervalState", "Survey", "bound_text", "survey"]

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Survey:
    """A declared replay and the state of its intervals.

    Attributes:
        plan: The plan of its whole range at a pinned cut.
        intervals: The intervals in the order of their times; they partition the range.
    """

    declared: Replay
    plan: Plan
    intervals: tuple[Interval, ...] = field(repr=False)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of intervals in each state, for all states in order."""
        states = [interval.state for interval in self.intervals]
        return {str(state): states.count(state) for state in IntervalState}

    @property
    def whole(self) -> bool:
        """Whether the target can only be replaced as a whole, with a single interval."""
        return self.plan.layout.time is None and self.plan.request.mode is Mode.REPLACE

    def to_json(self) -> dict[str, object]:
        """The survey as a JSON object."""
        plan = self.plan
        return {
            "replay": self.declared.name,
            "stream": plan.request.stream,
            "target": plan.request.into,
            "cut": plan.inputs.cut.commit,
            **({"cuts": dict(plan.inputs.cuts)} if plan.inputs.several else {}),
            "workers": list(plan.inputs.workers.values()),
            "frontier": [
                plan.inputs.tape.time_type.render(time) for time in plan.frontier.elements
            ],
            "counts": self.counts,
            "intervals": [interval.to_json() for interval in self.intervals],
        }


def survey(
    lake: Lake,
    config: ProjectConfig,
    replay: str,
    *,
    every: Every | None = None,
    since: str | None = None,
    until: str | None = None,
    as_of: int | None = None,
    cuts: Mapping[str, int] | None = None,
    session: Later | None = None,
) -> Survey:
    """Determine the state of each interval of a declared replay, without a JVM.

    The range is the declared one, limited to the given bounds. An open start means the interval of
    the first record; an open end means the interval of the frontier or of the last record. A target
    without a time column that is replaced as a whole has one interval, up to the frontier.

    Args:
        every: The length of intervals: a number for BIGINT times. By default, intervals follow the
            replay's schedule, else the grain of its transform or sink, else days; they have length
            1 for BIGINT times. They are counted from the declared first time, or from 1970.
        since: The first time, as on the command line.
        as_of: The cut; None for the newest.
        cuts: The cuts of several streams by source; those that are left out are the newest.
        session: Finds tables that the lake has not seen yet, or that were moved.
    """
    declared = config.replay(replay)
    tape = open_tape(lake, declared.inputs[0], stamps=True)
    if len(tape.columns) > 1:
        # Of one coordinate, the least element of a stamp is in one interval.
        require_single_times(tape, "a backfill")
    coordinate = tape.time_type.coordinates[-1]
    low = _tightest(max, _declared(coordinate, declared.since), _given(tape.time_type, since))
    high = _tightest(min, _declared(coordinate, declared.until), _given(tape.time_type, until))
    request = Request.of_replay(
        declared,
        since=None if low is None else bound_text(tape.time_type, coordinate.render(low)),
        until=None if high is None else bound_text(tape.time_type, coordinate.render(high)),
        as_of=as_of,
        cuts=cuts or {},
    )
    plan = make_plan(lake, config, request, session=session)
    if plan.computation.axes(plan.inputs.tape.time_type)[-1] != len(tape.time_type.coordinates) - 1:
        raise InvalidRequestError(
            "CAP-INTERVALS",
            f"intervals are cut by {coordinate.name}, but pipeline {request.pipeline} uses another "
            "coordinate as its time",
            "replay its ranges with `capstan replay`",
        )
    classifier = IntervalClassifier(plan, gather(lake, plan), worker_starts(plan))
    surveyed = Survey(declared, plan, ())
    if surveyed.whole:
        return replace(surveyed, intervals=whole_target(classifier))
    bounds = _cut(plan, declared, every)
    return replace(surveyed, intervals=classify_intervals(classifier, bounds))


def bound_text(time_type: TimeType, value: int | str) -> str:
    """A bound of the last coordinate alone, in the form of a request."""
    if len(time_type.coordinates) == 1:
        return str(value)
    return f"{time_type.names[-1]}={value}"


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
            f"intervals are cut by {time_type.names[-1]} alone, but {str(text)[:80]!r} bounds more",
            f"use a bound of {time_type.names[-1]} only",
        )
    return last


def _tightest(choose: Callable[[Iterable[int]], int], *bounds: int | None) -> int | None:
    given = [bound for bound in bounds if bound is not None]
    return choose(given) if given else None


def _cut(plan: Plan, declared: Replay, every: Every | None) -> list[tuple[int, int]]:
    """The intervals of the plan's range, as integers of the last coordinate."""
    coordinate = plan.inputs.tape.time_type.coordinates[-1]
    unit = lcm(plan.computation.grain, plan.inputs.step)
    anchor = _declared(coordinate, declared.since) or 0
    output_grain = plan.computation.grain
    grain = None if unit == 1 else unit * _MICROSECOND
    if coordinate.kind is Kind.BIGINT:
        every, grain = every or unit, None
    candidates = grids(
        coordinate.kind,
        every,
        schedule=declared.schedule,
        grain=grain,
        default=None if output_grain == 1 else grain,
        anchor=anchor,
    )
    for grid in candidates:
        bounds = _cut_by(grid, plan)
        # A schedule's times may lie inside a grain, which can only be replayed whole.
        if all(since % unit == 0 for since, _ in bounds[1:]):
            break
    return bounds


def _cut_by(grid: Grid, plan: Plan) -> list[tuple[int, int]]:
    low, high = plan.box.since[-1], plan.box.until[-1]
    if low is not None and high is not None:
        return cut(grid, low, high)
    recorded = recorded_extent(plan)
    # The last times to cover: that of the last record, and those before the frontier.
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
