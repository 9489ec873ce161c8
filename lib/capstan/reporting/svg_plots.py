"""Plots as inline SVG: step lines and bars, with axes, and labels in addition to colours.

The page's style sheet sets the colours by class, so that a drawing works in light and dark mode.
All text from data is escaped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from capstan.reporting.svg_axes import Axis

KINDS = 8
"""The number of line styles, by colour and dashes; the ninth line looks like the first."""

_WIDTH, _HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 624, 28, 236
"""The edges of the area between the axes."""
_BANDS = 60
_LINE = 15
_LEAST = 6.0


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot, with points from left to right; None is a gap."""

    name: str  # at its end and in the tooltips of its points
    points: tuple[tuple[float, float | None], ...]
    texts: tuple[str, ...]


def step_plot(
    title: str, across: Axis, up: Axis, lines: Sequence[Series], marks: Sequence[str]
) -> Markup:
    """Lines, at most `KINDS`, that keep their value until the next point.

    All have points at the same horizontal values. `title` is a sentence for screen readers.
    """
    return _svg(
        title,
        _HEIGHT,
        *_grid(across, up),
        *(_line(series, kind % KINDS, across, up) for kind, series in enumerate(lines)),
        *_names(lines, up),
        *_bands(across, lines, marks),
    )


def bar_plot(title: str, name: str, rows: Sequence[tuple[str, int]]) -> Markup:
    """Horizontal bars, each with its name and non-negative number."""
    left, width, height = 150.0, 480, 24
    bar = Markup(
        "<g><title>{0}: {1}</title>"
        '<text class="name" x="142.0" y="{2}" text-anchor="end">{0}</text>'
        '<rect class="bar" x="150.0" y="{3}" width="{4:.1f}" height="17" rx="2"/>'
        '<text x="{5:.1f}" y="{2}">{1}</text></g>'
    )
    most = max((count for _, count in rows), default=0) or 1
    parts = []
    for y, (label, count) in zip(itertools.count(8, height), rows, strict=False):
        length = max(1.0, width * count / most)
        parts.append(bar.format(label, f"{count:,}", y + 13, y, length, left + length + 6))
    foot = 8 + len(rows) * height + 14
    parts.append(Markup('<text class="axis" x="{}" y="{}">{}</text>').format(left, foot, name))
    return _svg(title, foot + 8, *parts)


def spark(title: str, values: Sequence[float | None]) -> Markup:
    """A small line without axes, for a row of a table."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    spread = (high - low) or 1.0
    last = max(len(values) - 1, 1)
    path = _path(
        [
            (2 + 116 * i / last, None if v is None else 24 - 20 * (v - low) / spread)
            for i, v in enumerate(values)
        ]
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 120 28" role="img" aria-label="{0}"><title>{0}</title>'
        '<path class="line s0" d="{1}"/></svg>'
    ).format(title, path)


def _svg(title: str, height: float, *parts: Markup) -> Markup:
    return Markup(
        '<div class="plot"><svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg></div>'
    ).format(_WIDTH, height, title, Markup("").join(parts))


def _grid(across: Axis, up: Axis) -> Iterator[Markup]:
    for value, text in up.ticks:
        y = up.place(value, _BOTTOM, _TOP)
        yield Markup(
            '<line class="rule" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
            '<text x="{}" y="{base:.1f}" text-anchor="end">{}</text>'
        ).format(_LEFT, _RIGHT, _LEFT - 7, text, y=y, base=y + 4)
    for value, text in across.ticks:
        yield Markup(
            '<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
            '<text x="{x:.1f}" y="{}" text-anchor="middle">{}</text>'
        ).format(_BOTTOM, _BOTTOM + 5, _BOTTOM + 18, text, x=across.place(value, _LEFT, _RIGHT))
    yield Markup(
        '<line class="edge" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
        '<text class="axis" x="{1}" y="{3}" text-anchor="end">{4}</text>'
        '<text class="axis" x="{0}" y="12">{5}</text>'
    ).format(_LEFT, _RIGHT, _BOTTOM, _HEIGHT - 8, across.name, up.name)


def _line(series: Series, kind: int, across: Axis, up: Axis) -> Markup:
    places: list[tuple[float, float | None]] = []
    before: float | None = None
    for value, height in series.points:
        x = across.place(value, _LEFT, _RIGHT)
        y = None if height is None else up.place(height, _BOTTOM, _TOP)
        if before is not None and y is not None:
            places.append((x, before))  # The value holds until the next point.
        places.append((x, y))
        before = y
    return Markup('<path class="line s{}" d="{}"><title>{}</title></path>').format(
        kind, _path(places), series.name
    )


def _path(places: Sequence[tuple[float, float | None]]) -> str:
    words: list[str] = []
    pen = "M"
    for (x, y), following in zip(places, [*places[1:], (0.0, None)], strict=False):
        if y is None:
            pen = "M"
            continue
        # A point by itself is a line without length, which round ends make a dot.
        alone = " h0" if pen == "M" and following[1] is None else ""
        words.append(f"{pen}{x:.1f} {y:.1f}{alone}")
        pen = "L"
    return " ".join(words)


def _names(lines: Sequence[Series], up: Axis) -> Iterator[Markup]:
    """Each line's name at its end; names of lines that end together stand under each other."""
    ends = []
    for kind, series in enumerate(lines):
        heights = [height for _, height in series.points if height is not None]
        if heights:
            ends.append((up.place(heights[-1], _BOTTOM, _TOP), kind % KINDS, series.name))
    ends.sort()
    free = min([_TOP + 4.0, *(y for y, _, _ in ends)])
    highest = _BOTTOM - _LINE * (len(ends) - 1)
    for index, (y, kind, name) in enumerate(ends):
        # Below the previous name, and high enough to leave room for the following ones.
        at = max(free, min(y, highest + index * _LINE))
        free = at + _LINE
        short = name if len(name) <= 10 else name[:9] + "…"
        yield Markup(
            '<g><line class="line s{}" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
            '<text class="name" x="{}" y="{base:.1f}">{}</text></g>'
        ).format(kind, _RIGHT + 6, _RIGHT + 22, _RIGHT + 26, short, y=at, base=at + 4)


def _bands(across: Axis, lines: Sequence[Series], marks: Sequence[str]) -> Iterator[Markup]:
    """Invisible bands along the axis, whose tooltips show the values of all lines."""
    count = len(lines[0].points) if lines else 0
    step = -(-count // _BANDS) or 1
    for index in range(0, count, step):
        x = across.place(lines[0].points[index][0], _LEFT, _RIGHT)
        # Up to the next band; the last band has a minimum width within the plot.
        after = lines[0].points[min(index + step, count - 1)][0]
        end = max(across.place(after, _LEFT, _RIGHT), min(x + _LEAST, _RIGHT))
        values = "\n".join(f"{series.name}: {series.texts[index]}" for series in lines)
        yield Markup(
            '<rect class="band" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
            "<title>{}\n{}</title></rect>"
        ).format(x, _TOP, end - x, _BOTTOM - _TOP, marks[index], values)
