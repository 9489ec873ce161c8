"""Rendering of views as HTML, by the templates of the pages.

All values, also in `Markup`, are escaped. A page loads resources only from its own server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from capstan.errors.shell_command import shell_line
from capstan.reporting import formatting, summaries
from capstan.reporting.commit_history import CommitTimes
from capstan.reporting.coverage_view import Coverage, Stretch
from capstan.reporting.run_view import UNCOVERED
from capstan.reporting.stream_view import StreamHistory, least_held
from capstan.reporting.svg_axes import (
    Axis,
    clock_axis,
    coordinate_axis,
    length_axis,
    micros,
    number_axis,
)
from capstan.reporting.svg_calendar import calendar, strip
from capstan.reporting.svg_plots import KINDS, Series, bar_plot, spark, step_plot
from capstan.storage.tape.index import WorkerState

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""Static files of the pages, with their media types."""


def render(template: str, /, **values: object) -> str:
    """Render a file in `templates`. Each page extends `page.html` and needs its values, too."""
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=8)
def static(name: str) -> str:
    """The text of one of the `STATIC` files."""
    if name not in STATIC:
        raise KeyError(name)
    return (files("capstan.reporting") / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("capstan.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=formatting.moment,
        shell=shell_line,
        time=formatting.time_text,
        number=formatting.number,
        size=formatting.size,
        value=formatting.value_text,
        row=formatting.row_text,
        brief=formatting.brief_text,
    )
    environment.globals.update(
        states=formatting.STATES,
        bounds_text=formatting.bounds_text,
        pipeline_text=formatting.pipeline_text,
        workers_text=formatting.workers_text,
        least_held=least_held,
        length=formatting.length_text,
        coordinate=formatting.coordinate_text,
        short_target=formatting.short_target,
        frontier_plot=frontier_plot,
        lag_plot=lag_plot,
        frontier_spark=frontier_spark,
        late_plot=late_plot,
        coverage_plot=coverage_plot,
        approval_text=formatting.approval_text,
        uncovered=UNCOVERED,
        plan_facts=lambda plan: _titled(summaries.plan_facts(plan, formatting.value_text)),
        stream_facts=lambda c: _titled(summaries.stream_facts(c, formatting.value_text)),
        difference_facts=lambda d: _titled(summaries.difference_facts(d, formatting.number)),
        audit_text=lambda audit: summaries.audit_text(audit, formatting.value_text),
        check_facts=lambda audit: summaries.check_facts(audit, formatting.value_text),
        checks_text=lambda audit: summaries.checks_text(audit, formatting.value_text),
        fill_query=fill_query,
        query=lambda **fields: urlencode(fields),
    )
    return environment


def _titled(facts: Iterable[summaries.Fact]) -> list[summaries.Fact]:
    return [(name.capitalize(), value) for name, value in facts]


def frontier_plot(view: StreamHistory, course: CommitTimes) -> Markup:
    """Each worker's frontier over time, or by commit; of many workers, those furthest behind.

    A single commit has no plot, only the table of workers.
    """
    drawn = furthest_behind(view)
    rows = [
        _Row(
            state.label,
            _drawable(view, state.worker),
            [
                formatting.coordinate_text(view.coordinate, value)
                for value in view.progress.frontiers[state.worker]
            ],
        )
        for state in drawn
    ]
    title = f"Frontier of {len(drawn)} of {len(view.workers)} workers of {view.name}"
    low, high = _span(rows)
    return _plot(view, course, title, rows, coordinate_axis(view.coordinate, low, high))


def lag_plot(view: StreamHistory, course: CommitTimes) -> Markup:
    """A plot of the lag of each worker's frontier behind the greatest time on tape."""
    drawn, rows = furthest_behind(view), []
    for state in drawn:
        lags = [
            None if held is None or most is None else max(0, most - held)
            for held, most in zip(_drawable(view, state.worker), course.greatest, strict=True)
        ]
        texts = [formatting.length_text(view.coordinate, lag) or "not known" for lag in lags]
        rows.append(_Row(state.label, lags, texts))
    title = f"Lag of {len(drawn)} of {len(view.workers)} workers of {view.name}"
    up = length_axis("behind the last record", view.coordinate, _span(rows)[1])
    return _plot(view, course, title, rows, up)


class _Row(NamedTuple):
    """A line of a plot: its name, and a value with its text for each sampled commit."""

    name: str
    values: Sequence[int | None]
    texts: Sequence[str]


def _plot(
    view: StreamHistory, course: CommitTimes, title: str, rows: Sequence[_Row], up: Axis
) -> Markup:
    """Lines over the times of commits, or over the commits when their times are unknown."""
    commits = view.progress.commits
    timed = {i: micros(at) for i, at in enumerate(course.moments) if at is not None}
    clock = len(set(timed.values())) > 1
    marked = timed if clock else dict(enumerate(commits))
    places, at = list(marked), list(marked.values())
    if len(places) < 2 or all(row.values[i] is None for row in rows for i in places):
        return Markup("")
    across = (clock_axis("written", at[0], at[-1]) if clock
              else number_axis("commit", at[0], at[-1], marks=8))  # fmt: skip
    lines = [
        Series(
            row.name,
            tuple((float(x), row.values[i]) for x, i in zip(at, places, strict=True)),
            tuple(row.texts[i] for i in places),
        )
        for row in rows
    ]
    return step_plot(
        title, across, up, lines, [_mark(course.moments[i], commits[i]) for i in places]
    )


def _span(rows: Sequence[_Row]) -> tuple[int, int]:
    known = [value for row in rows for value in row.values if value is not None]
    return min(known, default=0), max(known, default=0)


def _mark(at: datetime | None, commit: int) -> str:
    return f"commit {commit:,}" + (f", {formatting.moment(at)}" if at else "")


def furthest_behind(view: StreamHistory) -> list[WorkerState]:
    """The workers in a plot: those furthest behind, preferring open ones; sorted by number."""
    ranked = sorted(view.workers, key=lambda state: (state.closed, least_held(state) or 0))
    kept = {state.worker for state in ranked[:KINDS]}
    return [state for state in view.workers if state.worker in kept]


def frontier_spark(view: StreamHistory) -> Markup:
    """A small plot of the stream's frontier over its commits."""
    lines = [_drawable(view, state.worker) for state in view.workers]
    least = []
    for values in zip(*lines, strict=True):
        held = [value for value in values if value is not None]
        least.append(float(min(held)) if held else None)
    return spark(f"Frontier of {view.name} over {len(view.progress.commits)} commits", least)


def _drawable(view: StreamHistory, worker: int) -> tuple[int | None, ...]:
    """A line without the minimum time, at which a stream starts; it may be year 1."""
    bottom = view.coordinate.minimum
    return tuple(None if value == bottom else value for value in view.progress.frontiers[worker])


def late_plot(late: Mapping[str, int]) -> Markup:
    """A plot of late rows by reason."""
    return bar_plot("Late rows by reason", "late rows", list(late.items())) if late else Markup("")


def coverage_plot(view: Coverage, fill: str) -> Markup:
    """The calendar or strip of a replay, with links to the form `fill` unless that is empty."""

    def link(part: Stretch) -> str:
        return f"{fill}?{fill_query(view, part)}" if fill and part.fillable else ""

    counts = ", ".join(f"{count} {state}" for state, count in view.counts.items() if count)
    name = f"Coverage of {view.declared.name}"
    if view.year is None:
        return strip(f"{name}: {counts}", view.cells, link)
    return calendar(f"{name} in {view.year}; of all its intervals {counts}", view.cells, link)


def fill_query(view: Coverage, part: Stretch) -> str:
    """The URL query that prefills the form for a part of a replay."""
    fields = view.request(part.since, part.until, part.workers)
    pairs = [
        (name, "true" if item is True else str(item))
        for name, value in fields.items()
        for item in (value if isinstance(value, list) else [value])
        if item not in (None, "", False)
    ]
    return urlencode(pairs)
