"""Rendering of views as HTML, by the templates of the pages.

All values, also in `Markup`, are escaped. A page loads resources only from its own server.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from capstan.errors.shell_command import shell_line
from capstan.reporting import formatting, plots, summaries
from capstan.reporting.run_view import UNCOVERED
from capstan.reporting.stream_view import least_held

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
"""Static files of the pages, with their media types."""


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
        moment=formatting.moment,
        shell=shell_line,
        time=formatting.time_text,
        number=formatting.number,
        size=formatting.size,
        value=formatting.value_text,
        row=formatting.row_text,
        brief=formatting.brief_text,
        tenths=lambda length: f"{length:.1f}",
        titled=_titled,
    )
    environment.globals.update(
        formatting=formatting,
        summaries=summaries,
        plots=plots,
        least_held=least_held,
        uncovered=UNCOVERED,
    )
    return environment


def _titled(facts: Iterable[summaries.Fact]) -> list[summaries.Fact]:
    return [(name.capitalize(), value) for name, value in facts]
