"""The pages of the plugin: every one behind Airflow's login, and for those who may see its DAGs.

A name that comes with a request is checked before anything is looked up by it, and whether the
user may see it is asked before whether it is there.
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
from capstan.airflow.settings import Settings, read_setting
from capstan.airflow.web.permissions import Permissions, capture_dag, replay_dag
from capstan.airflow.web.prefilled_form import disclosed, fields_of, foreseen
from capstan.airflow.web.security import guard, refuse
from capstan.core.config import check_name
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.plan import target_path
from capstan.reporting.commit_history import view_course
from capstan.reporting.coverage_view import require_tape, view_coverage, view_coverages
from capstan.reporting.html import STATIC, render, static
from capstan.reporting.html_report import report_policy, run_report
from capstan.reporting.run_view import RunView, list_runs, view_run
from capstan.reporting.stream_view import (
    StreamView,
    stream_names,
    view_payload,
    view_stream,
    view_streams,
)
from capstan.reporting.svg_plots import KINDS
from capstan.reporting.table_view import view_tables
from capstan.storage import table_cache
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims

_NEWEST = 10
_PER_PAGE = 50
_PER_TABLE = 200

router = APIRouter()


def make_app() -> FastAPI:
    """The application: no route of it answers anybody who is not logged in."""
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


def setting() -> Settings:
    """Where Capstan works; read at each request, as the declaration file may change."""
    folder = Path(conf.get_mandatory_value("core", "dags_folder"))
    return read_setting(folder / "any.py")


def _sight(user: Annotated[BaseUser, Depends(get_user)]) -> Permissions:
    return Permissions(user)


Where = Annotated[Settings, Depends(setting)]
Who = Annotated[Permissions, Depends(_sight)]


def _page(
    request: Request, template: str, lake: Lake, here: str = "", **values: object
) -> Response:
    """A page with what all pages need."""
    base = str(request.scope.get("root_path", ""))
    text = render(
        template,
        base=base,
        airflow=base.rsplit("/", 1)[0],
        here=here,
        lake=lake.root,
        **values,
    )
    return HTMLResponse(text)


@router.get("/")
def overview(request: Request, where: Where, who: Who) -> Response:
    """Streams, replays with their coverage, and the newest runs."""
    lake, declared = Lake.at(where.lake), where.declarations
    problems: list[dict[str, object]] = []
    try:
        lake.require()
    except CapstanError as error:
        problems.append(error.summary())
    names = stream_names(lake, declared)
    seen = who.streams(names)
    runs = _runs(lake, who, where) if not problems else []
    problems += [each.summary() for each in mistakes(where)]
    return _page(
        request,
        "overview.html",
        lake,
        "/",
        problems=problems,
        streams=view_streams(lake, declared, [name for name in names if name in seen]),
        replays=view_coverages(
            lake, declared, [each.name for each in who.replays(declared.replays.values())]
        ),
        runs=runs[:_NEWEST],
        more=len(runs) if len(runs) > _NEWEST else 0,
    )


@router.get("/streams/{name}")
def stream(request: Request, name: str, where: Where, who: Who) -> Response:
    """One stream: its frontiers, what came late, its tape, what was replayed from it."""
    check_name("stream", name)
    if not who.stream(name):
        raise refuse()
    lake, declared = Lake.at(where.lake), where.declarations
    if name not in stream_names(lake, declared):
        raise InvalidRequestError("CAP-STREAM", f"there is no stream {name}", "see the overview")
    view = view_stream(lake, declared, name)
    coordinates = view.coordinates if isinstance(view, StreamView) else ()
    return _page(
        request,
        "stream.html",
        lake,
        view=view,
        payload=view_payload(lake, name) if isinstance(view, StreamView) else None,
        course=view_course(lake, view) if isinstance(view, StreamView) else None,
        runs=_runs(lake, who, where, stream=name),
        times=", ".join(f"{each.name} {each.kind.value}" for each in coordinates),
        shown_lines=KINDS,
        dag=capture_dag(name),
    )


@router.get("/replays/{name}")
def replay(
    request: Request,
    name: str,
    where: Where,
    who: Who,
    year: Annotated[int | None, Query(ge=1, le=9999)] = None,
) -> Response:
    """One declared replay: its coverage as a calendar, and what can be filled."""
    check_name("replay", name)
    declared = where.declarations
    found = declared.replay(name) if name in declared.replays else None
    if found is None or not who.replays([found]):
        # Of a replay that is not declared no DAG can be asked about.
        raise refuse()
    lake = Lake.at(where.lake)
    view = view_coverage(lake, declared, name, year=year)
    return _page(
        request,
        "replay.html",
        lake,
        view=view,
        seen=_seen_runs(lake, who, where),
        may_fill=who.may_replay(),
        dag=replay_dag(found),
    )


@router.get("/tables")
def tables(
    request: Request,
    where: Where,
    who: Who,
    target: Annotated[str | None, Query(min_length=1, max_length=2000)] = None,
) -> Response:
    """Tables that replays have written, or one of them with what stands in it."""
    lake = Lake.at(where.lake)
    replays: dict[str, list[str]] = {}
    for each in who.replays(where.declarations.replays.values()):
        path, _ = target_path(lake, where.declarations, each.target)
        replays.setdefault(path, []).append(each.name)
    return _page(
        request,
        "tables.html",
        lake,
        "" if target else "/tables",
        # Looked for among paths of the ledger; as a path it is used nowhere.
        tables=view_tables(lake, _seen_runs(lake, who, where), target),
        target=target,
        replays=replays,
        shown=_PER_TABLE,
    )


@router.get("/runs")
def runs(
    request: Request, where: Where, who: Who, page: Annotated[int, Query(ge=1, le=100_000)] = 1
) -> Response:
    """All runs, the newest first."""
    lake = Lake.at(where.lake)
    found = _runs(lake, who, where)
    begin = (page - 1) * _PER_PAGE
    return _page(
        request,
        "runs.html",
        lake,
        "/runs",
        runs=found[begin : begin + _PER_PAGE],
        total=len(found),
        page=page,
        more=len(found) > begin + _PER_PAGE,
    )


@router.get("/runs/{name}")
def run(request: Request, name: str, where: Where, who: Who) -> Response:
    """One run: its certificate, what it does not cover, its audits."""
    lake = Lake.at(where.lake)
    view = _run(lake, who, where, name)
    may_roll_back = view.state == "published" and who.may_roll_back()
    return _page(request, "run.html", lake, view=view, may_roll_back=may_roll_back)


@router.get("/runs/{name}/report.html")
def report(name: str, where: Where, who: Who) -> Response:
    """The report of a run as one file."""
    lake = Lake.at(where.lake)
    view = _run(lake, who, where, name)
    return HTMLResponse(
        run_report(lake, where.declarations, view.run),
        headers={
            "Content-Disposition": f'attachment; filename="{view.run}.html"',
            "Content-Security-Policy": report_policy(),
        },
    )


@router.get("/fill")
def fill(request: Request, where: Where, who: Who) -> Response:
    """The form of `capstan_replay`, filled in, with the plan of what stands in it."""
    given = {name: request.query_params.getlist(name) for name in request.query_params}
    # What the form offers, and what a message lists, is what the user may see.
    seen = replace(where, declarations=who.declared(where.declarations))
    if not who.may_replay() or not seen.declarations.streams:
        raise refuse()
    fields = fields_of(seen, given)
    asked = next(str(field.value) for field in fields if field.name == "stream")
    if not who.stream(check_name("stream", asked)):
        raise refuse()
    lake = Lake.at(where.lake)
    plan: dict[str, object] = {}
    problem: dict[str, object] = {}
    try:
        require_tape(lake, asked)
        plan = disclosed(foreseen(seen, fields), _seen_runs(lake, who, where))
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
    """The style sheet, the script and the icons; of anything else there is nothing."""
    if rest not in STATIC:
        raise HTTPException(404, "there is no such page")
    headers = {"Cache-Control": "private, max-age=300"}
    return Response(static(rest), media_type=STATIC[rest], headers=headers)


def _runs(lake: Lake, who: Permissions, where: Settings, **equal: object) -> list[RunView]:
    """The runs that the user may see, the newest first."""
    return who.runs(list_runs(lake, **equal), where.declarations)


def _seen_runs(lake: Lake, who: Permissions, where: Settings) -> set[str]:
    """Names of runs that the user may see; one that only holds a range yet is its stream's."""
    listed = list_runs(lake)
    known = {each.run for each in listed}
    holding = [each for each in claims.active(lake) if each.run not in known]
    streams = who.streams({each.stream for each in holding})
    seen = {each.run for each in who.runs(listed, where.declarations)}
    return seen | {each.run for each in holding if each.stream in streams}


def _run(lake: Lake, who: Permissions, where: Settings, name: str) -> RunView:
    found = view_run(lake, name)
    if not who.runs([found], where.declarations):
        # As if it were not there: names of runs are those of tables.
        raise InvalidRequestError(
            "CAP-RUN", f"there is no run {name[:80]!r}", "see `capstan runs`", run=name
        )
    return found
