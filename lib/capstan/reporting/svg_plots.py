"""Plots as inline SVG: step lines and bars, with axes, and labels in addition to colours.

The page's style sheet sets the colours by class, so that a drawing works in light and dark mode.
All text from data is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from capstan.reporting.svg_axes import Axis

KINDS = 8
"""The number of line styles, by colour and dashes; the ninth line looks like the first."""

_WIDTH, _HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 96, 28, 44
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
        _grid(across, up),
        *(_line(series, kind % KINDS, across, up) for kind, series in enumerate(lines)),
        _names(lines, up),
        _bands(across, lines, marks),
    )


def bar_plot(title: str, name: str, rows: Sequence[tuple[str, int]]) -> Markup:
    """Horizontal bars, each with its name and non-negative number."""
    left, right, height = 150.0, 90.0, 24
    most = max((count for _, count in rows), default=0) or 1
    parts = []
    for index, (label, count) in enumerate(rows):
        y = 8 + index * height
        length = max(1.0, (_WIDTH - left - right) * count / most)
        parts.append(
            Markup(
                '<g><title>{label}: {count}</title><text class="name" x="{text}" y="{base}" '
                'text-anchor="end">{label}</text><rect class="bar" x="{left}" y="{y}" '
                'width="{length:.1f}" height="{thick}" rx="2"/>'
                '<text x="{end:.1f}" y="{base}">{count}</text></g>'
            ).format(
                label=label,
                count=f"{count:,}",
                text=left - 8,
                base=y + 13,
                left=left,
                y=y,
                length=length,
                thick=height - 7,
                end=left + length + 6,
            )
        )
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


def _grid(across: Axis, up: Axis) -> Markup:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value, text in up.ticks:
        y = up.place(value, bottom, _TOP)
        parts.append(
            Markup(
                '<line class="rule" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
                '<text x="{}" y="{base:.1f}" text-anchor="end">{}</text>'
            ).format(_LEFT, right, _LEFT - 7, text, y=y, base=y + 4)
        )
    for value, text in across.ticks:
        x = across.place(value, _LEFT, right)
        parts.append(
            Markup(
                '<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
                '<text x="{x:.1f}" y="{}" text-anchor="middle">{}</text>'
            ).format(bottom, bottom + 5, bottom + 18, text, x=x)
        )
    parts.append(
        Markup(
            '<line class="edge" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
            '<text class="axis" x="{1}" y="{3}" text-anchor="end">{4}</text>'
            '<text class="axis" x="{0}" y="12">{5}</text>'
        ).format(_LEFT, right, bottom, _HEIGHT - 8, across.name, up.name)
    )
    return Markup("").join(parts)


def _line(series: Series, kind: int, across: Axis, up: Axis) -> Markup:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    places: list[tuple[float, float | None]] = []
    before: float | None = None
    for value, height in series.points:
        x = across.place(value, _LEFT, right)
        y = None if height is None else up.place(height, bottom, _TOP)
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


def _names(lines: Sequence[Series], up: Axis) -> Markup:
    """Each line's name at its end; names of lines that end together stand under each other."""
    bottom = _HEIGHT - _BOTTOM
    ends = []
    for kind, series in enumerate(lines):
        heights = [height for _, height in series.points if height is not None]
        if heights:
            ends.append((up.place(heights[-1], bottom, _TOP), kind % KINDS, series.name))
    ends.sort()
    top = min([_TOP + 4.0, *(y for y, _, _ in ends)])
    highest = bottom - _LINE * (len(ends) - 1)
    parts, free = [], top
    for index, (y, kind, name) in enumerate(ends):
        # Below the previous name, and high enough to leave room for the following ones.
        at = max(free, min(y, highest + index * _LINE))
        free = at + _LINE
        parts.append(
            Markup(
                '<g><line class="line s{}" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
                '<text class="name" x="{}" y="{base:.1f}">{}</text></g>'
            ).format(
                kind,
                _WIDTH - _RIGHT + 6,
                _WIDTH - _RIGHT + 22,
                _WIDTH - _RIGHT + 26,
                name if len(name) <= 10 else name[:9] + "…",
                y=at,
                base=at + 4,
            )
        )
    return Markup("").join(parts)


def _bands(across: Axis, lines: Sequence[Series], marks: Sequence[str]) -> Markup:
    """Invisible bands along the axis, whose tooltips show the values of all lines."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    count = len(lines[0].points) if lines else 0
    step = -(-count // _BANDS) or 1
    parts = []
    for index in range(0, count, step):
        x = across.place(lines[0].points[index][0], _LEFT, right)
        # Up to the next band; the last band has a minimum width within the plot.
        after = lines[0].points[min(index + step, count - 1)][0]
        end = max(across.place(after, _LEFT, right), min(x + _LEAST, right))
        values = "\n".join(f"{series.name}: {series.texts[index]}" for series in lines)
        parts.append(
            Markup(
                '<rect class="band" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
                "<title>{}\n{}</title></rect>"
            ).format(x, _TOP, end - x, bottom - _TOP, marks[index], values)
        )
    return Markup("").join(parts)
