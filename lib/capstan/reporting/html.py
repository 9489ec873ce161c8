"""Pages and reports as HTML, by templates.

All values, also in `Markup`, are escaped. A page loads resources only from its own server. The
content security policy of a report allows neither scripts nor loading, so that it can be attached
to a ticket and opened anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from capstan.core.config import ProjectConfig, split_streams
from capstan.core.times import Coordinate
from capstan.errors.shell_command import shell_line
from capstan.reporting import airflow_paths, formatting, plots, summaries
from capstan.reporting.attention.items import SEARCHES
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.run_view import RunView, view_run
from capstan.reporting.stream_view import StreamHistory, clock_lag, least_held, view_stream
from capstan.storage.lake import Lake

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "times.js": "text/javascript; charset=utf-8",
    "calendar.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""Static files of the pages, with their media types."""

_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+(\.[0-9]+)?Z")
_PROSE = re.compile(r"`([^`]+)`|(?<![\w*(])\*(\w[\w ]*)\*(?![\w*])")
_ZEROS = re.compile(r"\.0+Z$")


def render(template: str, /, **values: object) -> str:
    """Render a file in `templates`. Each page extends `page.html` and needs its values, too."""
    return environment().get_template(template).render(**values)


@lru_cache(maxsize=8)
def static(name: str) -> str:
    """The text of one of the `STATIC` files."""
    if name not in STATIC:
        raise KeyError(name)
    return (files("capstan.reporting") / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """What the templates are rendered with."""
    environment = Environment(
        loader=PackageLoader("capstan.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=moment_markup,
        shell=shell_line,
        time=time_markup,
        number=formatting.number,
        size=formatting.size,
        value=formatting.value_text,
        row=formatting.row_text,
        brief=formatting.brief_text,
        prose=prose_markup,
        tenths=lambda length: f"{length:.1f}",
        titled=_titled,
    )
    environment.globals.update(
        airflow_paths=airflow_paths, formatting=formatting, summaries=summaries, plots=plots,
        least_held=least_held, bounds=bounds_markup, coordinate=coordinate_markup,
        searches=SEARCHES,
        clock_lag=lambda view: clock_lag(view, datetime.now(UTC)),
    )  # fmt: skip
    return environment


def _titled(facts: Iterable[summaries.Fact]) -> list[summaries.Fact]:
    return [(name.capitalize(), value) for name, value in facts]


def prose_markup(value: object) -> Markup:
    """A text of a person or a program, with `code` and *emphasis* as markdown has them."""
    shown, text, end = Markup(), str(value or ""), 0
    for mark in _PROSE.finditer(text):
        name = "em" if mark[1] is None else "code"
        part = Markup(f"<{name}>{{}}</{name}>").format(mark[1] or mark[2])  # noqa: S704
        shown += text[end : mark.start()] + part
        end = mark.end()
    return shown + text[end:]


def moment_markup(at: datetime | None) -> Markup:
    """An instant of the clock, to the second."""
    return Markup() if at is None else _element(f"{at:%Y-%m-%dT%H:%M:%SZ}", formatting.moment(at))


def time_markup(value: object) -> str:
    """A time of a tape from JSON; dates and numbers have no zone, and are text."""
    if isinstance(value, list | tuple):
        return Markup("({})").format(Markup(", ").join(map(time_markup, value)))
    text = formatting.time_text(value)
    return _element(str(value), text) if _ISO.fullmatch(str(value)) else text


def coordinate_markup(coordinate: Coordinate, value: int | None) -> str:
    """A value of a coordinate, as `coordinate_text`."""
    return formatting.coordinate_text(coordinate, value, time_markup)


def bounds_markup(since: object, until: object) -> str:
    """The bounds of a range in words, as `bounds_text`."""
    return formatting.bounds_text(since, until, time_markup)


def _element(iso: str, text: str) -> Markup:
    return Markup('<time datetime="{}">{} UTC</time>').format(_ZEROS.sub("Z", iso), text)


def run_report(lake: Lake, config: ProjectConfig, run: str) -> str:
    """The report of a run as one file: its certificate, what it does not cover, and its audit.

    Late rows are those that the certificate counts, at its cut. The plots of the stream show the
    present tape, which may be longer, or gone.
    """
    lake.require()
    view = view_run(lake, run)
    # Of several streams, the certificate has a part each, and no plot is of all of them.
    several = len(split_streams(view.stream)) > 1
    tape = None if several else view_stream(lake, config, view.stream)
    return render(
        "report.html",
        view=view,
        tape=tape if isinstance(tape, StreamHistory) else None,
        course=read_commit_times(lake, tape) if isinstance(tape, StreamHistory) else None,
        range_late=None if view.certificate is None else view.certificate.late,
        counts=_by_replay_worker(view),
        lake=lake.root,
        base="",
        made=datetime.now(UTC),
        style=inline_style(),
        style_hash=_style_hash(),
    )


def inline_style() -> Markup:
    """The style sheet, for what is one file; `report_policy` allows it."""
    return Markup(static("style.css"))  # noqa: S704  (a file of this package)


def report_policy() -> str:
    """The content security policy of one file, which allows only its own style."""
    return f"default-src 'none'; style-src '{_style_hash()}'; base-uri 'none'; form-action 'none'"


def _style_hash() -> str:
    digest = hashlib.sha256(static("style.css").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _by_replay_worker(view: RunView) -> list[tuple[str, int]]:
    """The records of each replay worker, named by the captured workers that it replays."""
    shares = None if view.certificate is None else view.certificate.replay_workers
    return [
        (", ".join(map(str, share.get("sequences") or ())) or "none", share.get("records") or 0)
        for share in shares or ()
    ]
