"""Coverage as a calendar: what state each interval of a declared replay is in, and what is missing.

What states there are, and what is in which, is told by `capstan.backfill`; here intervals become
days of a calendar, or cells of a strip where times are numbers, and stretches that can be filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby, takewhile

from capstan.backfill.interval import Interval, State
from capstan.backfill.survey import Survey, bound_text, survey
from capstan.core.config import Mode, ProjectConfig, Replay
from capstan.core.times import Kind, TimeType
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.plan import target_path
from capstan.reporting.formatting import short_bound
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.table_cache import VersionedCache

WORST = ("failed", "gap", "changed", "stale", "waiting", "retired", "incomplete", "covered")
"""States by what has to be shown of a day that has intervals of several."""

FILLED = frozenset({"gap", "changed", "failed", "stale"})
"""States that a replay mends."""

_AT_ONCE = 8
_STRIP = 366
_STRETCHES = 200


Doubling = Callable[[Iterable[Interval]], bool]


@dataclass(frozen=True, slots=True)
class Cell:
    """A day of a calendar, or an interval of a strip.

    Attributes:
        name: The day, or the interval's first time.
        state: The worst state of what lies in it.
        since: Where the first interval in this state begins.
        until: Where the last of those ends that follow upon it, in this state for these workers.
        intervals: How many intervals meet it.
        day: The day itself, of a calendar.
        workers: Labels of the workers that are missing there, or written by older code.
        doubles: Whether a replay over it would put in rows that stand there already.
    """

    name: str
    state: str
    since: str
    until: str
    intervals: int
    day: date | None = None
    workers: tuple[str, ...] = ()
    doubles: bool = False

    @property
    def fillable(self) -> bool:
        """Whether a replay mends it."""
        return self.state in FILLED and not self.doubles


@dataclass(frozen=True, slots=True)
class Stretch:
    """Intervals one after another of which the same is to be said.

    Attributes:
        since: The first time.
        until: The first time after it.
        state: Their state.
        runs: Runs whose rows stand in them.
        workers: Labels of the workers that are missing, or written by older code.
        intervals: How many they are.
        doubles: Whether a replay over them would put in rows that stand there already.
    """

    since: str
    until: str
    state: str
    runs: tuple[str, ...]
    workers: tuple[str, ...]
    intervals: int
    doubles: bool = False

    @property
    def fillable(self) -> bool:
        """Whether a replay mends it."""
        return self.state in FILLED and not self.doubles


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a page shows of the coverage of one declared replay.

    Attributes:
        declared: The replay.
        counts: Intervals by state, all states.
        cells: Days or intervals of what is shown.
        years: Years that the calendar can show, rising; empty for a strip.
        year: The one that it shows; None for a strip.
        stretches: The same in words, in order; at most 200, those that can be filled before others.
        left_out: How many stretches are not among them.
        every_worker: Whether a replay has to play all its workers at once.
        bounded: Whether a replay can play a part of the times: else it replaces the whole table.
        time_type: Of the stream's times.
    """

    declared: Replay
    counts: Mapping[str, int]
    cells: tuple[Cell, ...]
    years: tuple[int, ...]
    year: int | None
    stretches: tuple[Stretch, ...]
    left_out: int
    every_worker: bool
    bounded: bool
    time_type: TimeType

    @property
    def total(self) -> int:
        """How many intervals there are."""
        return sum(self.counts.values())

    @property
    def state(self) -> str:
        """The worst state that any interval is in; empty where there is none."""
        return next((state for state in WORST if self.counts.get(state)), "")

    def request(self, since: str, until: str, workers: Sequence[str] = ()) -> dict[str, object]:
        """The fields of a replay that fills a part of it, as the form of `capstan_replay` has them.

        Args:
            since: The first time.
            until: The first time after it.
            workers: Labels of those to play, where not all have to be; none for the declared ones.
        """
        replay = self.declared
        chosen = workers if workers and not self.every_worker else replay.workers or ()
        bounds = {"since": since, "until": until} if self.bounded else {}
        shortest = {name: short_bound(text) for name, text in bounds.items()}
        return {
            "replay": replay.name,
            "stream": replay.stream,
            "into": replay.target,
            "workers": list(chosen),
            **{name: bound_text(self.time_type, text) for name, text in shortest.items()},
            "transform": replay.transform,
            "pipeline": replay.pipeline,
            "sink": replay.sink,
            "mode": str(replay.mode),
            "keys": list(replay.keys),
            "approve": replay.approve,
        }


@dataclass(frozen=True, slots=True)
class NoCoverage:
    """A declared replay whose coverage cannot be told, and why."""

    declared: Replay
    error: CapstanError


_KEPT: VersionedCache[Survey] = VersionedCache()


def view_coverage(
    lake: Lake, declarations: ProjectConfig, replay: str, *, year: int | None = None
) -> Coverage | NoCoverage:
    """What a page shows of the coverage of a declared replay.

    Args:
        lake: The lake.
        declarations: What is declared.
        replay: The replay's name.
        year: Which year the calendar shows; the newest one in which something is to be done, or
            the newest, where it is not among them.

    Raises:
        InvalidRequestError: `CAP-REPLAY` for a replay that is not declared.
    """
    declared = declarations.replay(replay)
    try:
        require_tape(lake, declared.stream)
        found = _survey(lake, declarations, declared)
    except CapstanError as error:
        return NoCoverage(declared, error)
    time_type = found.plan.tape.time_type
    dated = time_type.coordinates[-1].kind is not Kind.BIGINT and not found.whole
    doubles = _doubling(declared)
    days = _days(found.intervals, doubles) if dated else ()
    years = tuple(sorted({cell.day.year for cell in days if cell.day}))
    shown = _year(days, years, year)
    stretches = _stretches(found.intervals, doubles)
    kept = _kept(stretches)
    return Coverage(
        declared,
        found.counts,
        tuple(cell for cell in days if cell.day and cell.day.year == shown)
        if dated
        else _strip(found.intervals, doubles),
        years,
        shown,
        kept,
        len(stretches) - len(kept),
        found.plan.layout.worker is None,
        not found.whole,
        time_type,
    )


def view_coverages(
    lake: Lake, declarations: ProjectConfig, replays: Sequence[str]
) -> list[Coverage | NoCoverage]:
    """What a page shows of several declared replays, in their order; several are told at a time."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name: view_coverage(lake, declarations, name), replays))


def require_tape(lake: Lake, stream: str) -> None:
    """Check that a stream is on tape, without a word of other streams.

    Raises:
        InvalidRequestError: `CAP-STREAM`.
    """
    if not newest_entry(lake.stream(stream).events):
        raise InvalidRequestError(
            "CAP-STREAM", f"stream {stream} is not on tape yet", "capture it first"
        )


def _survey(lake: Lake, declarations: ProjectConfig, replay: Replay) -> Survey:
    """The state of a replay's intervals, told again when its tape or a ledger has grown."""
    ledgers = [lake.ledger(name) for name in ("coverage", "runs", "claims", "retired")]
    target = target_path(lake, declarations, replay.target)[0]
    # Nothing stands in a table that is gone; its own log tells that.
    read = [lake.stream(replay.stream).events, target, *ledgers]
    return _KEPT.get(
        (lake.root, replay.name),
        (declarations, *map(newest_entry, read)),
        lambda: survey(lake, declarations, replay.name),
    )


def _year(days: Sequence[Cell], years: Sequence[int], asked: int | None) -> int | None:
    if asked in years or not years:
        return asked if years else None
    open_ones = {cell.day.year for cell in days if cell.day and cell.state in FILLED}
    return max(open_ones, default=years[-1])


def _days(intervals: Iterable[Interval], doubles: Doubling) -> tuple[Cell, ...]:
    """The days that intervals meet, each with the worst state of those."""
    by_day: dict[date, list[Interval]] = {}
    for each in intervals:
        first = date.fromisoformat(each.since[:10])
        last = date.fromisoformat(each.until[:10])
        # An interval that ends at midnight, or with a date, does not meet that day.
        if len(each.until) == 10 or each.until[10:19] == "T00:00:00":
            last -= timedelta(days=1)
        for number in range(max((last - first).days, 0) + 1):
            by_day.setdefault(first + timedelta(days=number), []).append(each)
    listed = sorted(by_day.items())
    return tuple(_cell(day.isoformat(), found, day, doubles) for day, found in listed)


def _strip(intervals: Sequence[Interval], doubles: Doubling) -> tuple[Cell, ...]:
    """The newest intervals as cells; several in one where they are more than can be shown."""
    many = -(-len(intervals) // _STRIP) or 1
    parts = [intervals[i : i + many] for i in range(0, len(intervals), many)]
    return tuple(_cell(part[0].since, part, None, doubles) for part in parts)


def _cell(name: str, intervals: Sequence[Interval], day: date | None, doubles: Doubling) -> Cell:
    states = {str(each.state) for each in intervals}
    worst = next(state for state in WORST if state in states)
    # What is covered between two gaps is not to be played again: a link leads to one at a time.
    first = next(n for n, each in enumerate(intervals) if each.state == worst)
    workers = _concerned(intervals[first])
    part = list(
        takewhile(lambda e: e.state == worst and _concerned(e) == workers, intervals[first:])
    )
    bounds = part[0].since, part[-1].until
    return Cell(name, worst, *bounds, len(intervals), day, workers, doubles(part))


def _stretches(intervals: Iterable[Interval], doubles: Doubling) -> list[Stretch]:
    found = []
    for (state, runs, workers), group in groupby(intervals, _said):
        part = list(group)
        bounds = part[0].since, part[-1].until
        found.append(Stretch(*bounds, state, runs, workers, len(part), doubles(part)))
    return found


def _doubling(declared: Replay) -> Doubling:
    """Of intervals that lack something, whether to play them would put in rows twice.

    Only what appends does: where rows stand there, and where a replay that follows will come by.
    """
    if declared.mode is not Mode.APPEND:
        return lambda _: False
    if declared.follow is not None:
        return lambda _: True
    return lambda part: any(each.state is State.STALE or each.partly for each in part)


def _said(each: Interval) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return str(each.state), each.runs, _concerned(each)


def _concerned(each: Interval) -> tuple[str, ...]:
    """The workers that have to be played to mend an interval."""
    return each.missing if each.state in ("gap", "changed", "failed") else each.stale


def _kept(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """At most so many as a page can show, in order; what can be filled before what is covered."""
    if len(stretches) <= _STRETCHES:
        return tuple(stretches)
    wanted = sorted(stretches, key=lambda each: not each.fillable)[:_STRETCHES]
    return tuple(sorted(wanted, key=stretches.index))
