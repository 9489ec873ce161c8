"""The Airflow plugin with Capstan's pages: streams, runs, tables, coverage, gaps to fill.

Airflow loads plugins in each of its processes, including tasks, but only the API server serves the
pages. So nothing of them is imported before the first request.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from capstan.airflow.tasks.attempt_name import attempt_name

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/capstan"
"""The path of the pages, below the UI's address."""

_LACKING = (
    "Capstan's pages need the package {} (pip install 'capstan-replay[spark]' where the API server "
    "runs; it needs no Java)\n"
)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The pages as an ASGI application, built at the first request, outside the event loop."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import PlainTextResponse

    try:
        pages = await run_in_threadpool(_pages)
    except ModuleNotFoundError as error:
        # Airflow's own pages, and links to tasks, need no such package.
        pages = PlainTextResponse(_LACKING.format(error.name), 503)
    await pages(scope, receive, send)


@lru_cache(maxsize=1)
def _pages() -> ASGIApp:
    from capstan.airflow.web.routes import make_app, read_ahead
    from capstan.airflow.web.visit import current_settings

    pages = make_app()
    read_ahead(current_settings())
    return pages


def href(path: str) -> str:
    """The address of a path below the UI, on the UI's own server."""
    base: str = conf.get("api", "base_url", fallback="/") or "/"
    return urlsplit(base).path.rstrip("/") + path


class CapstanPlugin(AirflowPlugin):
    """Adds *Capstan* to the navigation of Airflow's UI, and `macros.capstan` to templates."""

    name = "capstan"
    macros = [attempt_name]  # noqa: RUF012
    fastapi_apps = [{"name": "capstan", "app": app, "url_prefix": PREFIX}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Capstan",
            "href": href(f"{PREFIX}/"),
            "destination": "nav",
            "url_route": "capstan",
            "nav_top_level": True,
            "icon": href(f"{PREFIX}/icon.svg"),
            "icon_dark_mode": href(f"{PREFIX}/icon-dark.svg"),
        }
    ]
