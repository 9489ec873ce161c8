"""Plots of a stream: their axes, lines and places; `templates/plots.html` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, NamedTuple

from capstan.core.times import Coordinate, Kind
from capstan.reporting.commit_history import CommitTimes
from capstan.reporting.formatting import coordinate_text, length_text, moment
from capstan.reporting.stream_view import StreamHistory, least_held
from capstan.storage.tape.index import WorkerState

KINDS = 8
"""The number of line styles, by colour and dashes; the ninth line looks like the first."""

_BANDS = 60
# Over the clock, half of the commits in less of a plot than this are a vertical line.
_BURST = 1 / 20
_NAME_HEIGHT = 15
_NARROWEST = 6.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US, _MINUTE_US = 86_400_000_000, 60_000_000
# Round distances between ticks, in microseconds.
_STEPS = tuple(
    1_000_000 * seconds
    for seconds in (
        1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600,
        86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400,
    )
)  # fmt: skip
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1_200, 2_400, 6_000, 12_000, 24_000)

_WRITTEN = Coordinate.of("written", Kind.TIMESTAMP)

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    name: str
    low: float
    high: float  # greater than `low`
    ticks: tuple[tuple[float, str], ...]  # marked values with labels, ascending

    def place(self, value: float, begin: float, end: float) -> float:
        """The position of a value between `begin` and `end` in a drawing."""
        return begin + (value - self.low) / (self.high - self.low) * (end - begin)


class Line(NamedTuple):
    """A line of a plot: a value, None for a gap, and its text at each place."""

    name: str  # at its end and in the tooltips of its points
    values: Sequence[int | None]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class StepPlot:
    """Lines, at most `KINDS`, that keep their value until the next place."""

    LEFT: ClassVar = 84
    RIGHT: ClassVar = 624
    TOP: ClassVar = 28
    BOTTOM: ClassVar = 236

    title: str  # a sentence for screen readers
    across: Axis
    up: Axis
    places: Sequence[float]  # ascending
    marks: Sequence[str]  # what is at each place
    lines: Sequence[Line]

    def x(self, value: float) -> float:
        """The position of a place in the drawing."""
        return self.across.place(value, self.LEFT, self.RIGHT)

    def y(self, value: float) -> float:
        """The position of a line's value in the drawing."""
        return self.up.place(value, self.BOTTOM, self.TOP)

    def path(self, line: Line) -> str:
        """The path of a line as SVG has it."""
        points: list[Point] = []
        before: float | None = None
        for place, value in zip(self.places, line.values, strict=True):
            x, y = self.x(place), None if value is None else self.y(value)
            if before is not None and y is not None:
                points.append((x, before))  # The value holds until the next place.
            points.append((x, y))
            before = y
        return _path(points)

    def names(self) -> Iterator[tuple[float, int, str]]:
        """Height, style and name of each line at its end; those that end together are a list."""
        ends = []
        for kind, line in enumerate(self.lines):
            values = [value for value in line.values if value is not None]
            if values:
                ends.append((self.y(values[-1]), kind, line.name))
        ends.sort()
        free = min([self.TOP + 4.0, *(y for y, _, _ in ends)])
        highest = self.BOTTOM - _NAME_HEIGHT * (len(ends) - 1)
        for index, (y, kind, name) in enumerate(ends):
            # Below the previous name, and high enough to leave room for the following ones.
            at = max(free, min(y, highest + index * _NAME_HEIGHT))
            free = at + _NAME_HEIGHT
            yield at, kind, name if len(name) <= 10 else name[:9] + "…"

    def bands(self) -> Iterator[tuple[float, float, str]]:
        """Start, width and tooltip of invisible bands, which show the values of all lines."""
        count = len(self.places) if self.lines else 0
        step = -(-count // _BANDS) or 1
        for index in range(0, count, step):
            x = self.x(self.places[index])
            # Up to the next band; the last band has a minimum width within the plot.
            after = self.x(self.places[min(index + step, count - 1)])
            texts = (f"{line.name}: {line.texts[index]}" for line in self.lines)
            text = "\n".join((self.marks[index], *texts))
            yield x, max(after, min(x + _NARROWEST, self.RIGHT)) - x, text


def frontier_plot(view: StreamHistory, course: CommitTimes) -> StepPlot | None:
    """Each worker's frontier over time, or by commit; of many workers, those furthest behind."""
    lines = [
        Line(
            state.label,
            _drawable(view, state.worker),
            [coordinate_text(view.coordinate, at) for at in view.progress.frontiers[state.worker]],
        )
        for state in furthest_behind(view)
    ]
    up = coordinate_axis(view.coordinate, *_span(lines))
    return _plot(view, course, "Frontier", lines, replace(up, name=f"frontier, {up.name}"))


def lag_plot(view: StreamHistory, course: CommitTimes) -> StepPlot | None:
    """The lag of each worker's frontier behind the greatest time on tape."""
    lines = []
    for state in furthest_behind(view):
        lags = [
            None if held is None or most is None else max(0, most - held)
            for held, most in zip(_drawable(view, state.worker), course.greatest, strict=True)
        ]
        texts = [length_text(view.coordinate, lag) or "not known" for lag in lags]
        lines.append(Line(state.label, lags, texts))
    up = length_axis("lag behind the last record", view.coordinate, _span(lines)[1])
    return _plot(view, course, "Lag", lines, up)


def _plot(
    view: StreamHistory, course: CommitTimes, what: str, lines: Sequence[Line], up: Axis
) -> StepPlot | None:
    """Lines over the times of commits.

    Over the commits when their times are unknown, or when half of them were written in a burst. A
    single commit has no plot, only the table of workers.
    """
    commits = view.progress.commits
    timed = {i: _micros(at) for i, at in enumerate(course.moments) if at is not None}
    burst = _shortest_half(list(timed.values()))
    clock = burst is None and len(set(timed.values())) > 1
    marked = timed if clock else dict(enumerate(commits))
    shown, places = list(marked), list(marked.values())
    if len(shown) < 2 or all(line.values[i] is None for line in lines for i in shown):
        return None
    ends = places[0], places[-1]
    return StepPlot(
        f"{what} of {len(lines)} of {len(view.workers)} workers of {view.name}",
        coordinate_axis(_WRITTEN, *ends)
        if clock
        else number_axis(f"commit{burst or ''}", *ends, marks=8),
        up,
        places,
        [
            f"commit {commits[i]:,}" + (f", {moment(at)} UTC" if (at := course.moments[i]) else "")
            for i in shown
        ],
        [
            Line(line.name, [line.values[i] for i in shown], [line.texts[i] for i in shown])
            for line in lines
        ],
    )


def _shortest_half(times: Sequence[int]) -> str | None:
    """How long half of the commits took, in words, if that is a small part of all the time."""
    half, ends = len(times) // 2, sorted(times)
    whole = ends[-1] - ends[0] if ends else 0
    shortest = min((b - a for a, b in zip(ends, ends[half:], strict=False)), default=0)
    if half < 2 or shortest >= whole * _BURST:
        return None
    return f" (half of them within {length_text(_WRITTEN, shortest)})"


def _span(lines: Sequence[Line]) -> tuple[int, int]:
    known = [value for line in lines for value in line.values if value is not None]
    return min(known, default=0), max(known, default=0)


def furthest_behind(view: StreamHistory) -> list[WorkerState]:
    """The workers in a plot: those furthest behind, preferring open ones; sorted by number."""
    ranked = sorted(view.workers, key=lambda state: (state.closed, least_held(state) or 0))
    return sorted(ranked[:KINDS], key=lambda state: state.worker)


def least_frontier(view: StreamHistory) -> list[int | None]:
    """The stream's frontier after each commit, for a small line; None where it is not known."""
    # Without the minimum time, as `_drawable`.
    return view.progress.frontiers.least(view.coordinate.minimum)


def spark_path(values: Sequence[float | None]) -> str:
    """The path of a small line without axes."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    spread, last = (high - low) or 1.0, max(len(values) - 1, 1)
    return _path(
        [
            (2 + 116 * i / last, None if value is None else 24 - 20 * (value - low) / spread)
            for i, value in enumerate(values)
        ]
    )


def _drawable(view: StreamHistory, worker: int) -> list[int | None]:
    """A line without the minimum time, at which a stream starts; it may be year 1."""
    bottom = view.coordinate.minimum
    return [None if value == bottom else value for value in view.progress.frontiers[worker]]


def _path(points: Sequence[Point]) -> str:
    words: list[str] = []
    pen = "M"
    for (x, y), following in zip(points, [*points[1:], (0.0, None)], strict=False):
        if y is None:
            pen = "M"
            continue
        # A point by itself is a line without length, which round ends make a dot.
        alone = " h0" if pen == "M" and following[1] is None else ""
        words.append(f"{pen}{x:.1f} {y:.1f}{alone}")
        pen = "L"
    return " ".join(words)


def number_axis(name: str, low: int, high: int, *, marks: int = 6) -> Axis:
    """An axis of whole numbers with about `marks` ticks."""
    low, high = (low, high) if high > low else (low, low + 1)
    step = max(1, _round_up((high - low) / marks))
    first = -(-low // step) * step
    ticks = tuple((value, f"{value:,}") for value in range(first, high + 1, step))
    return Axis(name, low, high, ticks)


def coordinate_axis(coordinate: Coordinate, low: int, high: int) -> Axis:
    """An axis of a time coordinate: numbers, days, or times in UTC."""
    if coordinate.kind is Kind.BIGINT:
        return number_axis(coordinate.name, low, high)
    unit = _DAY_US if coordinate.kind is Kind.DATE else 1
    low, high = (low, high) if high > low else (low, low + _DAY_US // unit)
    marks, left_out = _moments(low * unit, high * unit)
    ticks = tuple((value / unit, text) for value, text in marks)
    return Axis(f"{coordinate.name} (UTC{left_out})", low, high, ticks)


def length_axis(name: str, coordinate: Coordinate, high: int) -> Axis:
    """An axis of distances in a coordinate, from zero to `high`."""
    if coordinate.kind is Kind.BIGINT:
        return number_axis(name, 0, high, marks=5)
    unit = _DAY_US if coordinate.kind is Kind.DATE else 1
    wanted = high * unit / 5
    days = _round_up(wanted / _DAY_US) * _DAY_US
    step = max(next((step for step in _STEPS if step >= wanted), days), unit) // unit
    ticks = tuple((value, length_text(coordinate, value)) for value in range(0, high + 1, step))
    return Axis(name, 0, max(high, 1), ticks)


def _round_up(value: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50, ... that is at least `value`."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= value:
                return digit * power
        power *= 10


def _moments(low: int, high: int) -> tuple[list[tuple[int, str]], str]:
    """Ticks between two times in microseconds, and what their short labels leave out of them."""
    wanted = (high - low) / 6
    for step in _STEPS:
        if step >= wanted:
            first = -(-low // step) * step
            ends = [_EPOCH + timedelta(microseconds=at) for at in (low, high)]
            dayless = step < _MINUTE_US or ends[0].date() == ends[1].date()
            form = "%m-%d" if step >= _DAY_US else "%H:%M" if dayless else "%m-%d %H:%M"
            form = "%H:%M:%S" if step < _MINUTE_US else form
            rest = [end.date().isoformat() if dayless else f"{end.year:04}" for end in ends]
            left_out = f", {' to '.join(dict.fromkeys(rest))}"
            return [(at, _text(at, form)) for at in range(first, high + 1, step)], left_out
    months = next((m for m in _MONTHS if m * 30 * _DAY_US >= wanted), _MONTHS[-1])
    form = "%Y-%m" if months < 12 else "%Y"
    return [(at, _text(at, form)) for at in _firsts(low, high, months)], ""


def _firsts(low: int, high: int, months: int) -> Iterator[int]:
    """The first days of every `months`-th month between two times."""
    start = _EPOCH + timedelta(microseconds=low)
    month = (start.year * 12 + start.month - 1) // months * months
    while month < 9999 * 12:
        first = datetime(max(month // 12, 1), month % 12 + 1, 1, tzinfo=UTC)
        at = _micros(first)
        if at > high:
            return
        if at >= low:
            yield at
        month += months


def _micros(at: datetime) -> int:
    """An instant in microseconds, as axes of times have it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _text(at: int, form: str) -> str:
    return (_EPOCH + timedelta(microseconds=at)).strftime(form)
