"""Security headers of all responses, and error pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as AnyHTTPException

from capstan.errors import CapstanError, InvalidRequestError
from capstan.errors.translation import to_capstan_error
from capstan.reporting.html import render

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of every response: nothing is loaded from other origins."""

_UNKNOWN = frozenset({"CAP-STREAM", "CAP-REPLAY", "CAP-RUN"})
_HEADINGS = {401: "Not logged in", 403: "Not allowed", 404: "Not found", 503: "No lake"}

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class Headers:
    """ASGI middleware that adds `HEADERS` to every response."""

    def __init__(self, app: _App) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Handle one request."""

        async def headed(message: _Scope) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, headed)


def refuse() -> HTTPException:
    """The response to a logged-in user who lacks permission."""
    return HTTPException(403, "you may not see the DAGs that this data belongs to")


def guard(app: FastAPI) -> None:
    """Add headers to all responses of an application, and render errors as pages."""
    app.add_middleware(Headers)
    app.add_exception_handler(AnyHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(CapstanError, _failed)
    app.add_exception_handler(Exception, _failed)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    body: dict[str, object] = {"error": f"HTTP {error.status_code}", "message": error.detail}
    return _page(request, error.status_code, body)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
    return _page(request, 400, {"error": "CAP-REQUEST", "message": wrong})


def _failed(request: Request, exception: Exception) -> Response:
    error = to_capstan_error(exception)
    status = (
        404 if error.code in _UNKNOWN else 400 if isinstance(error, InvalidRequestError) else 500
    )
    return _page(request, 503 if error.code == "CAP-LAKE" else status, error.summary())


def _page(request: Request, status: int, error: dict[str, object]) -> Response:
    base = str(request.scope.get("root_path", ""))
    airflow = base.rsplit("/", 1)[0]
    values = {"base": base, "airflow": airflow, "here": "", "lake": ""}
    login = f"{airflow}/" if status == 401 else ""
    heading = _HEADINGS.get(status, "Error")
    text = render("error.html", heading=heading, error=error, login=login, **values)
    return HTMLResponse(text, status)
