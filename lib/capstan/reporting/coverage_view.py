"""Coverage of a declared replay as a calendar, with links to fill what is missing.

`capstan.backfill` determines the state of each interval. Here intervals become days of a calendar,
or cells of a strip when times are numbers, and stretches that can be filled. What is not written,
but would be by a run that has not ended, has the state of that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import groupby
from typing import NamedTuple
from urllib.parse import urlencode

from capstan.backfill.interval import Interval, IntervalState
from capstan.backfill.pauses import Pause
from capstan.backfill.survey import Survey, bound_text, survey
from capstan.core.config import Mode, ProjectConfig, Replay
from capstan.core.times import Kind, TimeType
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.target_places import target_path
from capstan.reporting.activity import Activity
from capstan.reporting.formatting import short_bound
from capstan.reporting.run_view import RunView, list_claimed, list_runs
from capstan.reporting.stream_view import read_each
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake, newest_entry

WORST = (
    "failed", "gap", "changed", "stale", "dead", "running", "queued", "waiting", "retired",
    "incomplete", "covered",
)  # fmt: skip
"""States in order of precedence, for a day with intervals in several states."""

FILLED = frozenset({"gap", "changed", "failed", "stale", "dead"})
"""States that a replay can repair."""

_MISSING = frozenset({"gap", "changed", "failed"})
_BUSIEST = (Activity.RUNNING, Activity.QUEUED, Activity.WAITING, Activity.DEAD)

_STRIP = 366
_STRETCHES = 200
_PER_ROW = 48
_FEWEST_WEEKS = 12

Informed = Callable[[Sequence[RunView]], Sequence[RunView]]
"""Adds to runs what is known of their tasks."""

Doubling = Callable[[Iterable[Interval]], bool]
"""Whether a replay over some intervals would duplicate rows."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Contiguous intervals in the same state, with the same workers to replay."""

    since: str
    until: str
    state: str
    workers: tuple[str, ...]  # labels: missing, or written by older code
    intervals: int
    doubles: bool = False  # whether a replay would duplicate rows
    runs: tuple[str, ...] = ()  # published in it, or not ended; in a cell, in all of its intervals

    @property
    def fillable(self) -> bool:
        """Whether a replay can repair it."""
        return self.state in FILLED and not self.doubles

    @property
    def going_on(self) -> bool:
        """Whether a run that has not ended would write it."""
        return self.state in tuple(Activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Stretch):
    """A day of a calendar, or an interval of a strip: its first stretch in its worst state."""

    name: str  # the day, or the interval's first time
    day: date | None = None  # None in a strip


class CellGrid(NamedTuple):
    """The cells of a drawing by column and row, and the columns where months begin."""

    columns: int
    rows: int
    cells: Sequence[tuple[int, int, Cell]]
    months: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of one declared replay."""

    declared: Replay
    counts: Mapping[str, int]  # intervals by state, for all states
    cells: tuple[Cell, ...]
    years: tuple[int, ...]  # that the calendar can show, ascending; empty for a strip
    year: int | None  # shown; None for a strip
    stretches: tuple[Stretch, ...]  # at most 200, in order, preferring those to fill
    left_out: int  # stretches that are not listed
    every_worker: bool  # whether a replay has to include all
    bounded: bool  # whether a replay can cover a part; else it replaces the table
    time_type: TimeType
    pause: Pause | None = None  # of its backfills

    @property
    def total(self) -> int:
        """The number of intervals."""
        return sum(self.counts.values())

    @property
    def states(self) -> list[str]:
        """The states that some interval is in."""
        return [state for state, count in self.counts.items() if count]

    @property
    def grid(self) -> CellGrid:
        """The cells as they are drawn: those of a strip in rows, days in columns of weeks."""
        if self.year is not None:
            return _in_weeks(self.cells)
        places = [(index % _PER_ROW, index // _PER_ROW) for index in range(len(self.cells))]
        cells = [(*place, cell) for place, cell in zip(places, self.cells, strict=True)]
        return CellGrid(_PER_ROW, -(-len(cells) // _PER_ROW), cells)

    def cell(self, name: str) -> Cell | None:
        """The cell with a name, of those that are shown."""
        return next((cell for cell in self.cells if cell.name == name), None)

    def request(self, since: str, until: str, workers: Sequence[str] = ()) -> dict[str, object]:
        """Form fields of `capstan_replay` to fill a part; no workers means the declared ones."""
        replay = self.declared
        chosen = workers if workers and not self.every_worker else replay.workers or ()
        bounds = {"since": since, "until": until} if self.bounded else {}
        declared = {
            name: list(map(str, value)) if isinstance(value, tuple) else value
            for name, value in replay.request_fields.items()
            if not isinstance(value, Mapping)
        }
        return {
            "replay": replay.name,
            **declared,
            # The form has one stream; the declared replay has the others.
            "stream": replay.inputs[0],
            "workers": list(chosen),
            **{name: self.bound(text) for name, text in bounds.items()},
            "approve": bool(replay.approve),
        }

    def bound(self, text: str) -> str:
        """A bound of an interval as a request has it, as short as it can be."""
        return bound_text(self.time_type, short_bound(text))

    def fill_query(self, part: Stretch) -> str:
        """The URL query that prefills the form for a part."""
        fields = self.request(part.since, part.until, part.workers)
        return urlencode(
            [
                (name, "true" if item is True else str(item))
                for name, value in fields.items()
                for item in (value if isinstance(value, list) else [value])
                if item not in (None, "", False)
            ]
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """An interval with the state that is shown of it."""

    of: Interval
    state: str
    runs: tuple[str, ...]

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers whose replay repairs it."""
        lacks = self.of.state in _MISSING
        return self.of.missing if lacks else self.of.stale


@dataclass(frozen=True, slots=True)
class NoCoverage:
    """A declared replay whose coverage is unknown, with the reason."""

    declared: Replay
    error: CapstanError
    states: tuple[str, ...] = ()


_CACHE: VersionedCache[Survey] = VersionedCache()


def view_coverage(
    lake: Lake,
    config: ProjectConfig,
    replay: str,
    *,
    year: int | None = None,
    informed: Informed = list,
) -> Coverage | NoCoverage:
    """The coverage of a declared replay.

    Without a valid `year`, the newest year with something to fill is shown, else the newest year.
    """
    declared = config.replay(replay)
    try:
        for name in declared.inputs:
            require_tape(lake, name)
        surveyed = _survey(lake, config, declared)
    except CapstanError as error:
        return NoCoverage(declared, error)
    time_type = surveyed.plan.inputs.tape.time_type
    dated = time_type.coordinates[-1].kind is not Kind.BIGINT and not surveyed.whole
    doubles = _doubling(declared)
    intervals = _as_they_are(lake, surveyed.intervals, informed)
    days = _days(intervals, doubles) if dated else ()
    years = tuple(sorted({cell.day.year for cell in days if cell.day}))
    to_fill = {cell.day.year for cell in days if cell.day and cell.state in FILLED}
    shown = year if year in years else max(to_fill or years, default=None)
    stretches = _stretches(intervals, doubles)
    states = Counter(interval.state for interval in intervals)
    to_list = sorted(stretches, key=lambda stretch: not stretch.fillable)[:_STRETCHES]
    return Coverage(
        declared,
        {**dict.fromkeys(surveyed.counts, 0), **states},
        tuple(cell for cell in days if cell.day and cell.day.year == shown)
        if dated
        else _strip(intervals, doubles),
        years,
        shown,
        tuple(sorted(to_list, key=stretches.index)),
        len(stretches) - len(to_list),
        surveyed.plan.layout.worker is None,
        not surveyed.whole,
        time_type,
        Pause.read(lake, replay),
    )


def view_coverages(
    lake: Lake, config: ProjectConfig, replays: Sequence[str], *, informed: Informed = list
) -> list[Coverage | NoCoverage]:
    """Read the coverage of several declared replays, concurrently; they keep their order."""

    def view(name: str) -> Coverage | NoCoverage:
        return view_coverage(lake, config, name, informed=informed)

    return read_each(replays, view)


def require_tape(lake: Lake, stream: str) -> None:
    """Check that a stream is on tape, without naming other streams in the error."""
    if not newest_entry(lake.stream(stream).events):
        raise InvalidRequestError(
            "CAP-STREAM", f"stream {stream} is not on tape yet", "capture it first"
        )


def _survey(lake: Lake, config: ProjectConfig, replay: Replay) -> Survey:
    """The state of a replay's intervals, cached until a tape, its target or a ledger changes."""
    ledgers = [lake.ledger(name) for name in ("coverage", "runs", "claims", "retired", "tables")]
    target = target_path(lake, config, replay.target)[0]
    # The log of the target is included, since nothing is published in a table that is gone.
    tapes = [lake.stream(name).events for name in replay.inputs]
    sources = [*tapes, target, *ledgers]
    return _CACHE.get(
        (lake.root, replay.name),
        (config, *map(newest_entry, sources)),
        lambda: survey(lake, config, replay.name),
    )


def _as_they_are(lake: Lake, intervals: Sequence[Interval], informed: Informed) -> list[_Shown]:
    """Intervals with what goes on in them at this moment, which no version of a table tells."""
    names = tuple({run for interval in intervals for run in _going_on(interval)})
    found = [] if not names else [*list_runs(lake, run=names), *list_claimed(lake)]
    activities = {view.run: view.activity for view in informed(found) if view.run in names}

    def shown(interval: Interval) -> _Shown:
        for activity in _BUSIEST if interval.state in FILLED else ():
            # Whatever a dead run has left: rows that are there are stale, or changed by others.
            if activity is Activity.DEAD and interval.state in ("stale", "changed"):
                continue
            runs = [run for run in _going_on(interval) if activities.get(run) is activity]
            if runs:
                return _Shown(interval, str(activity), tuple(runs))
        return _Shown(interval, str(interval.state), interval.runs)

    return list(map(shown, intervals))


def _going_on(interval: Interval) -> tuple[str, ...]:
    """The runs that would write some of an interval, if anything goes on with them."""
    # A failed one may be tried again.
    failed = interval.runs if interval.state is IntervalState.FAILED else ()
    return (*interval.unfinished, *failed)


def _days(intervals: Iterable[_Shown], doubles: Doubling) -> tuple[Cell, ...]:
    """The days that intervals overlap, each with the worst state of its intervals."""
    by_day: dict[date, list[_Shown]] = {}
    for interval in intervals:
        since, until = interval.of.since, interval.of.until
        first, last = date.fromisoformat(since[:10]), date.fromisoformat(until[:10])
        # An interval that ends at midnight, or with a date, does not overlap that day.
        if len(until) == 10 or until[10:19] == "T00:00:00":
            last -= timedelta(days=1)
        for number in range(max((last - first).days, 0) + 1):
            by_day.setdefault(first + timedelta(days=number), []).append(interval)
    return tuple(
        _cell(day.isoformat(), overlapping, day, doubles)
        for day, overlapping in sorted(by_day.items())
    )


def _strip(intervals: Sequence[_Shown], doubles: Doubling) -> tuple[Cell, ...]:
    """Intervals as cells; several share a cell when there are too many to show."""
    size = -(-len(intervals) // _STRIP) or 1
    parts = [intervals[i : i + size] for i in range(0, len(intervals), size)]
    return tuple(_cell(part[0].of.since, part, None, doubles) for part in parts)


def _cell(name: str, intervals: Sequence[_Shown], day: date | None, doubles: Doubling) -> Cell:
    parts = [list(part) for _, part in groupby(intervals, _state_and_workers)]
    # A link fills one gap at a time, so that covered intervals between gaps are not replayed.
    part = min(parts, key=lambda part: WORST.index(part[0].state))
    runs = tuple(dict.fromkeys(run for interval in intervals for run in interval.runs))
    cell = Cell(*_extent(part), len(intervals), _doubled(part, doubles), runs, name=name, day=day)
    return replace(cell, runs=part[0].runs) if cell.going_on else cell


def _in_weeks(cells: Sequence[Cell]) -> CellGrid:
    """A year of days, Monday on top."""
    days = [(cell, cell.day.toordinal()) for cell in cells if cell.day is not None]
    first, last = (date.fromordinal(days[end][1]) for end in (0, -1))
    monday = first.toordinal() - first.weekday()
    begins = [first.replace(month=m, day=1) for m in range(first.month, last.month + 1)]
    # Above the first week that begins in the month; the first month above the first week.
    months = [(max(-((monday - at.toordinal()) // 7), 0), f"{at:%b}") for at in begins]
    placed = [(*divmod(day - monday, 7), cell) for cell, day in days]
    return CellGrid(max(placed[-1][0] + 1, _FEWEST_WEEKS), 7, placed, months)


def _stretches(intervals: Iterable[_Shown], doubles: Doubling) -> list[Stretch]:
    grouped = groupby(intervals, lambda interval: (_state_and_workers(interval), interval.runs))
    parts = [(runs, list(part)) for (_, runs), part in grouped]
    return [
        Stretch(*_extent(part), len(part), _doubled(part, doubles), runs) for runs, part in parts
    ]


def _extent(part: Sequence[_Shown]) -> tuple[str, str, str, tuple[str, ...]]:
    """The bounds of a stretch, its state, and the workers whose replay repairs it."""
    return part[0].of.since, part[-1].of.until, *_state_and_workers(part[0])


def _state_and_workers(interval: _Shown) -> tuple[str, tuple[str, ...]]:
    return interval.state, interval.workers


def _doubled(part: Iterable[_Shown], doubles: Doubling) -> bool:
    return doubles(interval.of for interval in part)


def _doubling(declared: Replay) -> Doubling:
    """The rule by which a replay would duplicate rows; only an append does."""
    # It does so when rows are already published there, or when a followed replay will still cover
    # them.
    if declared.mode is not Mode.APPEND:
        return lambda _: False
    if declared.follow is not None:
        return lambda _: True
    return lambda part: any(one.state is IntervalState.STALE or one.partly for one in part)
