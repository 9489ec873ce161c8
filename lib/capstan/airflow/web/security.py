"""Security of the pages: who may see what, headers of all responses, and error pages.

Access to data follows access to the DAG that produces it. A tape belongs to the DAG that captures
it, even if that DAG does not exist: then only users whom Airflow lets see a DAG of that name have
access. A replay and its runs belong both to the DAG that runs it (`capstan_replay` for runs of no
declared replay) and to the capture DAGs of its streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from starlette.exceptions import HTTPException as AnyHTTPException

from capstan.airflow.settings import dag_id
from capstan.core.config import ProjectConfig, Replay, check_name, split_streams
from capstan.errors import CapstanError, InvalidRequestError
from capstan.errors.translation import to_capstan_error
from capstan.reporting.html import inline_style, render, report_policy
from capstan.reporting.run_view import Owner, RunView
from capstan.storage.stored_log import remembering

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


def capture_dag(stream: str) -> str:
    """The id of the DAG that captures a stream."""
    return dag_id("capture", stream)


def replay_dag(replay: Replay) -> str:
    """The id of the DAG that runs a declared replay: its own if it follows or has a schedule."""
    if replay.follow is not None:
        return dag_id("follow", replay.name)
    return dag_id("replay") if replay.schedule is None else dag_id("backfill", replay.name)


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one user, from Airflow's auth manager."""

    user: BaseUser

    def streams(self, names: Iterable[str]) -> set[str]:
        """The streams, of those given, whose data the user may see."""
        dags = {capture_dag(name): name for name in names}
        return {dags[dag] for dag in _readable(dags, self.user)}

    def stream(self, name: str) -> bool:
        """Whether the user may see the data of a stream."""
        return bool(self.streams([name]))

    def replays(self, replays: Iterable[Replay]) -> list[Replay]:
        """The declared replays, of those given and in their order, that the user may see."""
        listed = list(replays)
        needed = {
            replay.name: {replay_dag(replay), *map(capture_dag, replay.inputs)} for replay in listed
        }
        readable = _readable({dag for dags in needed.values() for dag in dags}, self.user)
        return [replay for replay in listed if needed[replay.name] <= readable]

    def declared(self, config: ProjectConfig) -> ProjectConfig:
        """The declarations without streams and replays that the user may not see."""
        visible = self.streams(config.streams)
        replays = {replay.name: replay for replay in self.replays(config.replays.values())}
        streams = {name: s for name, s in config.streams.items() if name in visible}
        return replace(config, streams=streams, replays=replays)

    def runs(self, runs: Iterable[RunView], config: ProjectConfig) -> list[RunView]:
        """The runs, of those given and in their order, that the user may see."""
        listed = list(runs)
        visible = self.owners({run.owner for run in listed}, config)
        return [run for run in listed if run.owner in visible]

    def owners(self, owners: Iterable[Owner], config: ProjectConfig) -> set[Owner]:
        """The owners of runs, of those given, whose runs the user may see."""
        needed = {
            (streams, replay): {_run_dag(replay, config), *map(capture_dag, split_streams(streams))}
            for streams, replay in owners
            if all(map(_is_name, split_streams(streams)))
        }
        readable = _readable({dag for dags in needed.values() for dag in dags}, self.user)
        return {owner for owner, dags in needed.items() if dags <= readable}

    def may_trigger(self, kind: str) -> bool:
        """Whether this Airflow has Capstan's DAG of a kind, and the user may trigger it."""
        dag = dag_id(kind)
        # An Airflow may have left the DAG out; nobody could trigger it there.
        return dag in find_paused([dag]) and self._may("POST", dag, DagAccessEntity.RUN)

    def may_unpause(self, kind: str) -> bool:
        """Whether the user may unpause Capstan's DAG of a kind."""
        return self._may("PUT", dag_id(kind))

    def may_decide(self, dag: str) -> bool:
        """Whether the user may answer what runs of a DAG ask."""
        return self._may("PUT", dag, DagAccessEntity.HITL_DETAIL)

    def _may(self, method: ResourceMethod, dag: str, entity: DagAccessEntity | None = None) -> bool:
        return get_auth_manager().is_authorized_dag(
            method=method,
            access_entity=entity,
            details=DagDetails(id=dag, team_name=_teams([dag]).get(dag)),
            user=self.user,
        )


def find_paused(dags: Collection[str]) -> dict[str, bool]:
    """Whether each DAG is paused, so that its runs wait; of those given that Airflow has."""
    query = select(DagModel.dag_id, DagModel.is_paused).where(
        DagModel.dag_id.in_(dags), DagModel.is_stale.is_(False)
    )
    with create_session() as session:
        return {dag: bool(paused) for dag, paused in session.execute(query)}


def _run_dag(name: str | None, config: ProjectConfig) -> str:
    replay = None if name is None else config.replays.get(name)
    return dag_id("replay") if replay is None else replay_dag(replay)


def _is_name(stream: str) -> bool:
    """Whether a name from a ledger is a valid stream name; others are not looked up."""
    try:
        check_name("stream", stream)
    except InvalidRequestError:
        return False
    return True


def _readable(dags: Collection[str], user: BaseUser) -> set[str]:
    """The DAGs, of those given, that a user may read."""
    teams = _teams(dags)
    by_team: dict[str | None, set[str]] = defaultdict(set)
    for dag in dags:
        by_team[teams.get(dag)].add(dag)
    readable: set[str] = set()
    for team, ids in by_team.items():
        readable |= get_auth_manager().filter_authorized_dag_ids(
            dag_ids=ids, user=user, method="GET", team_name=team
        )
    return readable


def _teams(dags: Collection[str]) -> Mapping[str, str | None]:
    return DagModel.get_dag_id_to_team_name_mapping(list(dags))


def refuse() -> HTTPException:
    """The response to a logged-in user who lacks permission."""
    return HTTPException(403, "you may not see the DAGs that this data belongs to")


def guard(app: FastAPI) -> None:
    """Add headers to all responses of an application, and render errors as pages."""
    app.middleware("http")(_with_headers)
    app.add_exception_handler(AnyHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(CapstanError, _failed)
    app.add_exception_handler(Exception, _failed)


async def _with_headers(
    request: Request, respond: Callable[[Request], Awaitable[Response]]
) -> Response:
    # One page asks for the same ledgers once for each replay.
    with remembering():
        response = await respond(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


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
    airflow = str(request.scope.get("root_path", "")).rsplit("/", 1)[0]
    login = f"{airflow}/" if status == 401 else ""
    heading = _HEADINGS.get(status, "Error")
    values = {"heading": heading, "error": error, "login": login, "here": "", "lake": ""}
    page = rendered(request, "error.html", style=inline_style(), **values)
    response = HTMLResponse(page, status)
    if login:
        framed = "frame-ancestors 'self'"
        response.headers["Content-Security-Policy"] = f"{report_policy()}; {framed}"
    return response


def rendered(request: Request, template: str, **values: object) -> str:
    """The text of a page with the values that all pages need."""
    base = str(request.scope.get("root_path", ""))
    return render(template, base=base, airflow=base.rsplit("/", 1)[0], **values)
