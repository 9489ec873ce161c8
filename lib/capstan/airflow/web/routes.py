"""Routes of the plugin's pages: behind Airflow's login, and only for users who may see the DAGs.

Names in a request are checked before any lookup, and permission is checked before existence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from threading import Thread
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse, JSONResponse, Response

from capstan.airflow.dags.declaration_errors import mistakes
from capstan.airflow.settings import Settings, dag_id
from capstan.airflow.web import actions
from capstan.airflow.web.prefilled_form import fields_of, plan_of, streams_in
from capstan.airflow.web.run_query import Asked
from capstan.airflow.web.security import capture_dag, guard, refuse, replay_dag
from capstan.airflow.web.task_progress import informed
from capstan.airflow.web.visit import Visit, visit_of
from capstan.core.config import check_name
from capstan.core.json_object import printed_json
from capstan.errors import CapstanError, InvalidRequestError
from capstan.reporting.activity import refresh_after
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.coverage_view import Coverage, require_tape, view_coverage, view_coverages
from capstan.reporting.html import STATIC, report_policy, run_report, static
from capstan.reporting.listings import report_facts
from capstan.reporting.lists.paging import ListPage, part_of
from capstan.reporting.lists.run_search import RunSearch
from capstan.reporting.lists.table_view import list_tables, view_written
from capstan.reporting.run_heads import read_heads
from capstan.reporting.stream_view import (
    StreamHistory,
    stream_names,
    view_payload,
    view_stream,
    view_streams,
)
from capstan.spark.project_home import cache_folder
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake

_NEWEST = 10
_PER_PAGE = 50
_MOST_CHOICES = 100
_activity = attrgetter("activity")

PageNumber = Annotated[int, Query(ge=1, le=100_000)]

router = APIRouter()


def make_app() -> FastAPI:
    """The application; every route requires a login."""
    table_cache.enable(cache_folder() / "read")
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_authenticated())],
    )
    app.include_router(router)
    guard(app)
    return app


def read_ahead(settings: Settings) -> Thread:
    """Start a thread that reads the overview's tables into the cache."""
    # A new server process has opened no table yet, and a hundred streams have some three hundred.
    # Any page of Airflow requests the plugin's icon for its navigation, which leaves time to read
    # before the user follows the link. Requests that arrive meanwhile wait for the tables being
    # read. Nothing is shown to anybody.
    thread = Thread(target=_read_overview, args=(settings,), name="capstan-ahead")
    thread.start()
    return thread


def _read_overview(settings: Settings) -> None:
    lake, declared = Lake.at(settings.lake), settings.declarations
    # The page reads again, and reports an error to its user.
    with suppress(CapstanError):
        lake.require()
        read_heads(lake).views(0, _NEWEST)
        view_streams(lake, declared, stream_names(lake, declared))
        view_coverages(lake, declared, list(declared.replays))


Visited = Annotated[Visit, Depends(visit_of)]


@router.get("/")
def overview(visit: Visited) -> Response:
    """What needs attention, streams, replays with their coverage, and the newest runs."""
    lake, permissions = visit.lake, visit.permissions
    problems: list[dict[str, object]] = []
    try:
        lake.require()
    except CapstanError as error:
        problems.append(error.summary())
    streams, covered = visit.streams(), visit.coverages()
    runs = visit.runs() if not problems else None
    newest = [] if runs is None else visit.newest(RunSearch(), 1, _NEWEST).items
    # Without a lake, nobody knows.
    listed = None if runs is None else visit.attention(streams, covered, runs)
    problems += [error.summary() for error in mistakes(visit.settings)]
    return visit.page(
        "overview.html",
        "/",
        problems=problems,
        attention=listed,
        may_fill=permissions.may_trigger("replay"),
        streams=streams,
        replays=covered,
        places=visit.places(view.declared for view in covered),
        runs=newest,
        more=len(runs) if runs and len(runs) > _NEWEST else 0,
        refresh=refresh_after(
            [
                *(run.activity for run in newest),
                *(state for view in covered for state in view.states),
            ]
        ),
    )


@router.get("/attention.json")
def attention(visit: Visited) -> Response:
    """What needs a person, of what the user may see."""
    visit.lake.require()
    streams = visit.streams()
    if not streams and stream_names(visit.lake, visit.declared):
        # To a program, an empty list would say that all is well.
        raise refuse()
    listed = visit.attention(streams, visit.coverages(), visit.runs())
    return JSONResponse(listed.to_json())


@router.get("/streams/{name}")
def stream(visit: Visited, name: str) -> Response:
    """One stream: frontiers, late records, tape, replays."""
    check_name("stream", name)
    if not visit.permissions.stream(name):
        raise refuse()
    lake, declared = visit.lake, visit.declared
    lake.require()
    if name not in stream_names(lake, declared):
        raise InvalidRequestError("CAP-STREAM", f"there is no stream {name}", "see the overview")
    view = view_stream(lake, declared, name)
    coordinates = view.tape.time_type.coordinates if isinstance(view, StreamHistory) else ()
    runs = visit.newest(RunSearch(stream=name), 1, _NEWEST)
    return visit.page(
        "stream.html",
        view=view,
        payload=view_payload(lake, name) if isinstance(view, StreamHistory) else None,
        course=read_commit_times(lake, view) if isinstance(view, StreamHistory) else None,
        runs=runs,
        refresh=refresh_after(map(_activity, runs.items)),
        times=", ".join(f"{part.name} {part.kind.value}" for part in coordinates),
        actions=visit.allowed(actions.of_stream(view)) if isinstance(view, StreamHistory) else [],
        dag=capture_dag(name),
    )


@router.get("/replays/{name}")
def replay(
    visit: Visited,
    name: str,
    year: Annotated[int | None, Query(ge=1, le=9999)] = None,
    at: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """One declared replay: its coverage as a calendar, with gaps to fill, and a cell's runs."""
    check_name("replay", name)
    configured = visit.declared.replays.get(name)
    if configured is None or not visit.permissions.replays([configured]):
        # A replay that is not declared has no DAG to check permission for.
        raise refuse()
    visible = visit.visible_runs()
    view = view_coverage(visit.lake, visit.declared, name, year=year, informed=informed)
    cell = view.cell(at) if isinstance(view, Coverage) else None
    named = visit.runs().named(cell.runs if cell is not None else ())
    return visit.page(
        "replay.html",
        view=view,
        refresh=refresh_after(view.states),
        actions=visit.allowed(actions.of_replay(view)) if isinstance(view, Coverage) else [],
        seen=visible,
        cell=cell,
        runs=visit.found(named, RunSearch(), 1, _PER_PAGE),
        places=visit.places([configured]),
        may_fill=visit.permissions.may_trigger("replay"),
        dag=replay_dag(configured),
    )


@router.get("/tables")
def tables(
    visit: Visited,
    target: Annotated[str | None, Query(min_length=1, max_length=2000)] = None,
    page: PageNumber = 1,
) -> Response:
    """Tables that replays have written, or one of them with its published runs."""
    visible = visit.visible_runs()
    if target is not None:
        # Compared with paths of the ledger; never opened as a path.
        written, total = view_written(visit.lake, visible, target, page, _PER_PAGE)
        fields = {"target": target}
        return visit.page(
            "table.html", target=target, written=ListPage(written, page, _PER_PAGE, total, fields)
        )
    replays: dict[str, list[str]] = {}
    for name, path in visit.places(
        visit.permissions.replays(visit.declared.replays.values())
    ).items():
        replays.setdefault(path, []).append(name)
    listed = list_tables(visit.lake, visible)
    return visit.page(
        "tables.html", "/tables", replays=replays, tables=part_of(listed, page, _PER_PAGE)
    )


@router.get("/runs")
def runs(visit: Visited, asked: Asked) -> Response:
    """Runs as a search finds them, by default all, newest first."""
    known, search = visit.runs(), asked.search
    choices = [
        (name, title, values[:_MOST_CHOICES])
        for name, title, values in (
            ("stream", "Stream", known.streams),
            ("table", "Table", known.tables),
            ("state", "State", known.states),
        )
    ]
    shown = visit.newest(search, asked.page, _PER_PAGE)
    return visit.page(
        "runs.html",
        "/runs",
        known=len(known) or len(shown.items),
        search=search,
        choices=choices,
        runs=shown,
        refresh=refresh_after(map(_activity, shown.items)),
    )


@router.get("/runs/{name}")
def run(visit: Visited, name: str) -> Response:
    """One run: certificate, uncovered parts, audits."""
    view = visit.run(name)
    may_replay = visit.permissions.may_trigger("replay")
    question = visit.question(view)
    return visit.page(
        "run.html",
        view=view,
        refresh=refresh_after([view.activity if question is None else question.activity]),
        question=question,
        again=actions.again(view) if may_replay else "",
        actions=visit.allowed(actions.of_run(view)),
    )


@router.get("/runs/{name}/report.html")
def report(visit: Visited, name: str) -> Response:
    """The report of a run as one file."""
    view = visit.run(name)
    return HTMLResponse(
        run_report(visit.lake, visit.declared, view.run),
        headers={
            "Content-Disposition": f'attachment; filename="{view.run}.html"',
            "Content-Security-Policy": report_policy(),
        },
    )


@router.get("/runs/{name}/report.json")
def report_json(visit: Visited, name: str) -> Response:
    """The report of a run as JSON: its certificate with its steps, audits and findings."""
    view = visit.run(name)
    return Response(
        printed_json(report_facts(view)),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{view.run}.json"'},
    )


@router.get("/fill")
def fill(visit: Visited) -> Response:
    """The prefilled form of `capstan_replay`, with its plan."""
    query, permissions = visit.request.query_params, visit.permissions
    given = {name: query.getlist(name) for name in query}
    # The form and its messages list only what the user may see.
    visible = replace(visit.settings, declarations=permissions.declared(visit.declared))
    if not permissions.may_trigger("replay") or not visible.declarations.streams:
        raise refuse()
    fields = fields_of(visible, given)
    streams = [check_name("stream", name) for name in streams_in(fields)]
    if not all(map(permissions.stream, streams)):
        raise refuse()
    plan: dict[str, object] = {}
    problem: dict[str, object] = {}
    try:
        for stream in streams:
            require_tape(visit.lake, stream)
        form = plan_of(visible, fields, visit.visible_runs())
        plan, problem = form.plan, {} if form.refusal is None else form.refusal.summary()
    except CapstanError as error:
        problem = error.summary()
    return visit.page(
        "fill.html",
        dag=dag_id("replay"),
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
