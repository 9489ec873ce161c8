"""Routes of the plugin's pages: behind Airflow's login, and only for users who may see the DAGs.

Names in a request are checked before any lookup, and permission is checked before existence.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user, requires_authenticated
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response

from capstan.airflow.dags.declaration_errors import mistakes
from capstan.airflow.lake_declarations import read_page_settings
from capstan.airflow.settings import Settings
from capstan.airflow.web.prefilled_form import fields_of, hide_runs, plan_of, streams_in
from capstan.airflow.web.security import Permissions, capture_dag, guard, refuse, replay_dag
from capstan.core.config import check_name
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.target_places import target_path
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.coverage_view import require_tape, view_coverage, view_coverages
from capstan.reporting.html import STATIC, render, report_policy, run_report, static
from capstan.reporting.run_view import (
    CLAIMED,
    RunView,
    list_runs,
    list_runs_of_stream,
    view_run,
    view_tables,
)
from capstan.reporting.stream_view import (
    StreamHistory,
    stream_names,
    view_payload,
    view_stream,
    view_streams,
)
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake

_NEWEST = 10
_PER_PAGE = 50
_PER_TABLE = 200

router = APIRouter()


def make_app() -> FastAPI:
    """The application; every route requires a login."""
    table_cache.enable()
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_authenticated())],
    )
    app.include_router(router)
    guard(app)
    return app


def current_settings() -> Settings:
    """The settings, read at each request because the declaration file may change."""
    return read_page_settings(Path(conf.get_mandatory_value("core", "dags_folder")))


def _permissions(user: Annotated[BaseUser, Depends(get_user)]) -> Permissions:
    return Permissions(user)


Configured = Annotated[Settings, Depends(current_settings)]
Allowed = Annotated[Permissions, Depends(_permissions)]


def _page(
    request: Request, template: str, lake: Lake, here: str = "", **values: object
) -> Response:
    """Render a page with the values that all pages need."""
    base = str(request.scope.get("root_path", ""))
    text = render(
        template, base=base, airflow=base.rsplit("/", 1)[0], here=here, lake=lake.root, **values
    )
    return HTMLResponse(text)


@router.get("/")
def overview(request: Request, settings: Configured, permissions: Allowed) -> Response:
    """Streams, replays with their coverage, and the newest runs."""
    lake, declared = Lake.at(settings.lake), settings.declarations
    problems: list[dict[str, object]] = []
    try:
        lake.require()
    except CapstanError as error:
        problems.append(error.summary())
    names = stream_names(lake, declared)
    visible = permissions.streams(names)
    runs = _runs(lake, permissions, settings) if not problems else []
    problems += [error.summary() for error in mistakes(settings)]
    return _page(
        request,
        "overview.html",
        lake,
        "/",
        problems=problems,
        streams=view_streams(lake, declared, [name for name in names if name in visible]),
        replays=view_coverages(
            lake,
            declared,
            [replay.name for replay in permissions.replays(declared.replays.values())],
        ),
        runs=runs[:_NEWEST],
        more=len(runs) if len(runs) > _NEWEST else 0,
    )


@router.get("/streams/{name}")
def stream(request: Request, name: str, settings: Configured, permissions: Allowed) -> Response:
    """One stream: frontiers, late records, tape, replays."""
    check_name("stream", name)
    if not permissions.stream(name):
        raise refuse()
    lake, declared = Lake.at(settings.lake), settings.declarations
    if name not in stream_names(lake, declared):
        raise InvalidRequestError("CAP-STREAM", f"there is no stream {name}", "see the overview")
    view = view_stream(lake, declared, name)
    coordinates = view.tape.time_type.coordinates if isinstance(view, StreamHistory) else ()
    return _page(
        request,
        "stream.html",
        lake,
        view=view,
        payload=view_payload(lake, name) if isinstance(view, StreamHistory) else None,
        course=read_commit_times(lake, view) if isinstance(view, StreamHistory) else None,
        runs=permissions.runs(list_runs_of_stream(lake, name), settings.declarations),
        times=", ".join(f"{part.name} {part.kind.value}" for part in coordinates),
        dag=capture_dag(name),
    )


@router.get("/replays/{name}")
def replay(
    request: Request,
    name: str,
    settings: Configured,
    permissions: Allowed,
    year: Annotated[int | None, Query(ge=1, le=9999)] = None,
) -> Response:
    """One declared replay: its coverage as a calendar, with gaps to fill."""
    check_name("replay", name)
    declared = settings.declarations
    configured = declared.replay(name) if name in declared.replays else None
    if configured is None or not permissions.replays([configured]):
        # A replay that is not declared has no DAG to check permission for.
        raise refuse()
    lake = Lake.at(settings.lake)
    view = view_coverage(lake, declared, name, year=year)
    return _page(
        request,
        "replay.html",
        lake,
        view=view,
        seen=_visible_runs(lake, permissions, settings),
        may_fill=permissions.may_replay(),
        dag=replay_dag(configured),
    )


@router.get("/tables")
def tables(
    request: Request,
    settings: Configured,
    permissions: Allowed,
    target: Annotated[str | None, Query(min_length=1, max_length=2000)] = None,
) -> Response:
    """Tables that replays have written, or one of them with its published runs."""
    lake = Lake.at(settings.lake)
    replays: dict[str, list[str]] = {}
    for replay in permissions.replays(settings.declarations.replays.values()):
        path, _ = target_path(lake, settings.declarations, replay.target)
        replays.setdefault(path, []).append(replay.name)
    return _page(
        request,
        "tables.html",
        lake,
        "" if target else "/tables",
        # Compared with paths of the ledger; never opened as a path.
        tables=view_tables(lake, _visible_runs(lake, permissions, settings), target),
        target=target,
        replays=replays,
        shown=_PER_TABLE,
    )


@router.get("/runs")
def runs(
    request: Request,
    settings: Configured,
    permissions: Allowed,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """All runs, newest first."""
    lake = Lake.at(settings.lake)
    rows = _runs(lake, permissions, settings)
    begin = (page - 1) * _PER_PAGE
    return _page(
        request,
        "runs.html",
        lake,
        "/runs",
        runs=rows[begin : begin + _PER_PAGE],
        total=len(rows),
        page=page,
        more=len(rows) > begin + _PER_PAGE,
    )


@router.get("/runs/{name}")
def run(request: Request, name: str, settings: Configured, permissions: Allowed) -> Response:
    """One run: certificate, uncovered parts, audits."""
    lake = Lake.at(settings.lake)
    view = _run(lake, permissions, settings, name)
    may_roll_back = view.state == "published" and permissions.may_roll_back()
    return _page(request, "run.html", lake, view=view, may_roll_back=may_roll_back)


@router.get("/runs/{name}/report.html")
def report(name: str, settings: Configured, permissions: Allowed) -> Response:
    """The report of a run as one file."""
    lake = Lake.at(settings.lake)
    view = _run(lake, permissions, settings, name)
    return HTMLResponse(
        run_report(lake, settings.declarations, view.run),
        headers={
            "Content-Disposition": f'attachment; filename="{view.run}.html"',
            "Content-Security-Policy": report_policy(),
        },
    )


@router.get("/fill")
def fill(request: Request, settings: Configured, permissions: Allowed) -> Response:
    """The prefilled form of `capstan_replay`, with its plan."""
    given = {name: request.query_params.getlist(name) for name in request.query_params}
    # The form and its messages list only what the user may see.
    visible = replace(settings, declarations=permissions.declared(settings.declarations))
    if not permissions.may_replay() or not visible.declarations.streams:
        raise refuse()
    fields = fields_of(visible, given)
    streams = [check_name("stream", name) for name in streams_in(fields)]
    if not all(map(permissions.stream, streams)):
        raise refuse()
    lake = Lake.at(settings.lake)
    plan: dict[str, object] = {}
    problem: dict[str, object] = {}
    try:
        for stream in streams:
            require_tape(lake, stream)
        plan = hide_runs(plan_of(visible, fields), _visible_runs(lake, permissions, settings))
    except CapstanError as error:
        problem = error.summary()
    return _page(
        request,
        "fill.html",
        lake,
        fields=fields,
        plan=plan,
        problem=problem,
        replay=(given.get("replay") or [""])[-1][:64],
    )


@router.get("/{rest:path}")
def other(rest: str) -> Response:
    """The style sheet, the script and the icons; 404 for anything else."""
    if rest not in STATIC:
        raise HTTPException(404, "there is no such page")
    headers = {"Cache-Control": "private, max-age=300"}
    return Response(static(rest), media_type=STATIC[rest], headers=headers)


def _runs(lake: Lake, permissions: Permissions, settings: Settings) -> list[RunView]:
    """The runs that the user may see, newest first."""
    return permissions.runs(list_runs(lake), settings.declarations)


def _visible_runs(lake: Lake, permissions: Permissions, settings: Settings) -> set[str]:
    """Names of runs that the user may see; a run with only a claim belongs to its streams."""
    listed = list_runs(lake, claimed=True)
    claimed = [run for run in listed if run.state == CLAIMED]
    streams = permissions.streams({name for run in claimed for name in run.streams})
    stepped = [run for run in listed if run.state != CLAIMED]
    visible = permissions.runs(stepped, settings.declarations)
    return {
        run.run for run in [*visible, *(one for one in claimed if streams.issuperset(one.streams))]
    }


def _run(lake: Lake, permissions: Permissions, settings: Settings, name: str) -> RunView:
    view = view_run(lake, name)
    if not permissions.runs([view], settings.declarations):
        # As if it did not exist: names of runs reveal names of tables.
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {name[:80]!r}", "see `capstan runs`", run=name
        )
    return view
