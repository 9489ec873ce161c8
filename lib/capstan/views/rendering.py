"""Views as HTML: the templates of the pages, and what is put into them.

Everything is escaped as it is put in; what is not text of a template is `Markup` that was put
together in the same way. A page loads nothing from anywhere but its own server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from capstan.views import shown
from capstan.views.axes import coordinate_axis, number_axis
from capstan.views.calendars import Link, calendar, strip
from capstan.views.coverage import Cell, Coverage, Stretch
from capstan.views.plots import KINDS, Series, bar_plot, spark, step_plot
from capstan.views.progress import Line
from capstan.views.streams import StreamView

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""Files that pages need beside themselves, with their media types."""


def render(template: str, /, **values: object) -> str:
    """A template with values put in; each page extends `page.html` and needs what that needs.

    Args:
        template: The name of a file of `templates`.
        values: By the names that the template uses.
    """
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=8)
def static(name: str) -> str:
    """The text of one of the `STATIC` files.

    Raises:
        KeyError: For any other name.
    """
    if name not in STATIC:
        raise KeyError(name)
    return (files("capstan.views") / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("capstan.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        moment=shown.moment,
        time=shown.time_text,
        number=shown.number,
        size=shown.size,
        value=shown.value_text,
        row=shown.row_text,
    )
    made.globals.update(
        states=shown.STATES,
        range_text=shown.range_text,
        pipeline_text=shown.pipeline_text,
        length=shown.length_text,
        coordinate=shown.coordinate_text,
        short_target=shown.short_target,
        frontier_plot=frontier_plot,
        frontier_spark=frontier_spark,
        late_plot=late_plot,
        coverage_plot=coverage_plot,
        approval_text=shown.approval_text,
        behind_text=lambda behind: shown.behind_text(behind, shown.value_text),
        standing_text=lambda standing: shown.standing_text(standing, shown.number),
        covered_text=shown.covered_text,
        fill_query=fill_query,
    )
    return made


def frontier_plot(view: StreamView) -> Markup:
    """The frontier of each worker over the commits of the tape; of many, those furthest behind.

    Of one commit there is none: its frontiers stand in the table of workers.
    """
    if len(view.progress.commits) < 2:
        return Markup("")
    drawn = furthest_behind(view)
    values = [v for line in drawn for v in _drawable(view, line) if v is not None]
    if not values:
        return Markup("")
    commits = view.progress.commits
    series = [
        Series(
            line.label,
            tuple(zip(map(float, commits), _drawable(view, line), strict=True)),
            tuple(shown.coordinate_text(view.coordinate, value) for value in line.frontier),
        )
        for line in drawn
    ]
    title = f"Frontier of {len(drawn)} of {len(view.progress.lines)} workers of {view.name}"
    return step_plot(
        title,
        number_axis("commit", commits[0], commits[-1], marks=8),
        coordinate_axis(view.coordinate, min(values), max(values)),
        series,
    )


def furthest_behind(view: StreamView) -> list[Line]:
    """The workers that a plot shows, by number: open ones first, those furthest behind first."""
    lines = view.progress.lines
    ranked = sorted(lines, key=lambda line: (line.last is None, line.last or 0))
    kept = {line.worker for line in ranked[:KINDS]}
    return [line for line in lines if line.worker in kept]


def frontier_spark(view: StreamView) -> Markup:
    """The stream's own frontier over its commits, small."""
    lines = [_drawable(view, line) for line in view.progress.lines]
    least = []
    for values in zip(*lines, strict=True):
        there = [value for value in values if value is not None]
        least.append(float(min(there)) if there else None)
    return spark(f"Frontier of {view.name} over {len(view.progress.commits)} commits", least)


def _drawable(view: StreamView, line: Line) -> tuple[int | None, ...]:
    """A line without the time before its stream began, which may be year 1."""
    bottom = view.coordinate.minimum
    return tuple(None if value == bottom else value for value in line.frontier)


def late_plot(late: Mapping[str, int]) -> Markup:
    """Late rows by reason."""
    return bar_plot("Late rows by reason", "late rows", list(late.items())) if late else Markup("")


def coverage_plot(view: Coverage, fill: str) -> Markup:
    """The calendar of a replay, or its strip of intervals.

    Args:
        view: What is covered.
        fill: Where the form is to which what can be filled leads; empty for nowhere.
    """
    link = _filler(view, fill)
    counts = ", ".join(f"{count} {state}" for state, count in view.counts.items() if count)
    name = f"Coverage of {view.declared.name}"
    if view.year is None:
        return strip(f"{name}: {counts}", view.cells, link)
    return calendar(f"{name} in {view.year}; of all its intervals {counts}", view.cells, link)


def _filler(view: Coverage, fill: str) -> Link:
    def link(cell: Cell | Stretch) -> str:
        return f"{fill}?{fill_query(view, cell)}" if fill and cell.fillable else ""

    return link


def fill_query(view: Coverage, part: Cell | Stretch) -> str:
    """The query by which the form is filled in for a part of a replay."""
    workers: Sequence[str] = part.workers if isinstance(part, Stretch) else ()
    fields = view.request(part.since, part.until, workers)
    pairs = [
        (name, "true" if each is True else str(each))
        for name, value in fields.items()
        for each in (value if isinstance(value, list) else [value])
        if each not in (None, "", False)
    ]
    return urlencode(pairs)
