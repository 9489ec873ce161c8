"""Drawings of coverage: a year of days in columns of weeks, or a strip of intervals.

Each state has a colour and a sign, so that it is readable without colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta

from markupsafe import Markup

from capstan.reporting.coverage_view import Cell, Stretch
from capstan.reporting.formatting import STATES, bounds_text

Link = Callable[[Stretch], str]
"""The link target of a cell; empty for none."""

_SIZE, _STEP = 12, 14
_LEFT, _TOP = 34, 20
_PER_ROW = 48
_LEAST = 12
_SCALE = 1.3
_ROW = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>')
_MONTH = Markup('<text x="{}" y="{}">{}</text>')
_DAYS = ("Mon", "", "Wed", "", "Fri", "", "Sun")


def calendar(title: str, cells: Sequence[Cell], link: Link) -> Markup:
    """A year of days, a column for each week, Monday on top; cells are in order."""
    days = [(cell, cell.day) for cell in cells if cell.day is not None]
    if not days:
        return Markup("")
    first, last = days[0][1], days[-1][1]
    start = first - timedelta(days=first.weekday())
    weeks = max((last - start).days // 7 + 1, _LEAST)
    parts = [
        _ROW.format(_LEFT - 6, _TOP + row * _STEP + 10, name) for row, name in enumerate(_DAYS)
    ]
    for begin in (date(first.year, month, 1) for month in range(first.month, last.month + 1)):
        # Above the first week that begins in the month; the first month above the first week.
        week = -(-(begin - start).days // 7) if begin > start else 0
        parts.append(_MONTH.format(_LEFT + week * _STEP, _TOP - 7, f"{begin:%b}"))
    for cell, day in days:
        week = (day - start).days // 7
        place = (_LEFT + week * _STEP, _TOP + day.weekday() * _STEP)
        parts.append(_cell(cell, place, link))
    return _svg(title, (_LEFT + weeks * _STEP + 2, _TOP + 7 * _STEP + 2), parts)


def strip(title: str, cells: Sequence[Cell], link: Link) -> Markup:
    """Intervals in rows, from left to right."""
    parts = []
    for index, cell in enumerate(cells):
        row, column = divmod(index, _PER_ROW)
        if column == 0:
            name = cell.name if len(cell.name) <= 12 else cell.name[:10]
            parts.append(_ROW.format(76, 4 + row * _STEP + 10, name))
        parts.append(_cell(cell, (82 + column * _STEP, 4 + row * _STEP), link))
    rows = -(-len(cells) // _PER_ROW)
    return _svg(title, (82 + _PER_ROW * _STEP, 6 + rows * _STEP), parts)


def _svg(title: str, size: tuple[int, int], parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<div class="plot calendar"><svg viewBox="0 0 {} {}" width="{:.0f}" height="{:.0f}" '
        'role="group" aria-label="{}">{}</svg></div>'
    ).format(*size, *(_SCALE * length for length in size), title, Markup("").join(parts))


def _cell(cell: Cell, place: tuple[int, int], link: Link) -> Markup:
    x, y = place
    sign, meaning = STATES[cell.state]
    many = f", {cell.intervals} intervals" if cell.intervals > 1 else ""
    bounds = "" if cell.day else f" ({bounds_text(cell.since, cell.until)})"
    label = f"{cell.name}{bounds}: {cell.state}{many}: {meaning}"
    drawn = Markup(
        '<rect class="cell {}" x="{}" y="{}" width="{size}" height="{size}" rx="2"/>'
        '<text class="sign {}" x="{}" y="{}" text-anchor="middle">{}</text>'
    ).format(cell.state, x, y, cell.state, x + _SIZE / 2, y + 10, sign, size=_SIZE)
    href = link(cell)
    if not href:
        return Markup("<g><title>{}</title>{}</g>").format(label, drawn)
    return Markup('<a href="{}" aria-label="{}"><title>{}</title>{}</a>').format(
        href, label, label, drawn
    )
