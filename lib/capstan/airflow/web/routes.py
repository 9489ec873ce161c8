"""Routes of the plugin's pages: behind Airflow's login, and only for users who may see the DAGs.

Names in a request are checked before any lookup, and permission is checked before existence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user, requires_authenticated
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from capstan.airflow.dags.declaration_errors import mistakes
from capstan.airflow.lake_files import read_page_settings
from capstan.airflow.settings import Settings
from capstan.airflow.web.prefilled_form import fields_of, hide_runs, plan_of, streams_in
from capstan.airflow.web.security import (
    Permissions,
    capture_dag,
    guard,
    refuse,
    rendered,
    replay_dag,
)
from capstan.core.config import ProjectConfig, check_name
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.target_places import target_path
from capstan.reporting.attention.gather import list_attention
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.coverage_view import (
    Coverage,
    NoCoverage,
    require_tape,
    view_coverage,
    view_coverages,
)
from capstan.reporting.html import STATIC, report_policy, run_report, static
from capstan.reporting.run_heads import RunHeads, read_heads
from capstan.reporting.run_view import (
    RunView,
    list_claimed,
    list_runs_of_stream,
    view_run,
    view_tables,
)
from capstan.reporting.stream_view import (
    NoView,
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
_PER_TABLE = 200

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


def current_settings() -> Settings:
    """The settings, read at each request because the declaration file may change."""
    return read_page_settings(Path(conf.get_mandatory_value("core", "dags_folder")))


@dataclass(frozen=True, slots=True)
class Visit:
    """A request by a user, with the lake and the declarations as they are now."""

    request: Request
    settings: Settings
    permissions: Permissions

    @property
    def lake(self) -> Lake:
        """The lake, which may not exist."""
        return Lake.at(self.settings.lake)

    @property
    def declared(self) -> ProjectConfig:
        """What is declared."""
        return self.settings.declarations

    def page(self, template: str, here: str = "", **values: object) -> Response:
        """A page; `here` is its path, if it is in the navigation."""
        text = rendered(self.request, template, here=here, lake=self.lake.root, **values)
        return HTMLResponse(text)

    def streams(self) -> list[StreamHistory | NoView]:
        """The streams that the user may see."""
        names = stream_names(self.lake, self.declared)
        visible = self.permissions.streams(names)
        return view_streams(self.lake, self.declared, [n for n in names if n in visible])

    def coverages(self) -> list[Coverage | NoCoverage]:
        """The coverage of the declared replays that the user may see."""
        replays = self.permissions.replays(self.declared.replays.values())
        return view_coverages(self.lake, self.declared, [replay.name for replay in replays])

    def runs(self) -> RunHeads:
        """The runs that the user may see, newest first."""
        every = read_heads(self.lake)
        return every.owned_by(self.permissions.owners(every.owners, self.declared))

    def visible_runs(self) -> set[str]:
        """Names of runs that the user may see; a run with only a claim belongs to its streams."""
        claimed = list_claimed(self.lake)
        streams = self.permissions.streams({name for run in claimed for name in run.streams})
        visible = [run.run for run in claimed if streams.issuperset(run.streams)]
        return {*self.runs().names, *visible}

    def run(self, name: str) -> RunView:
        """A run that the user may see."""
        view = view_run(self.lake, name)
        if not self.permissions.runs([view], self.declared):
            # As if it did not exist: names of runs reveal names of tables.
            raise InvalidRequestError(
                "CAP-RUN", f"there is no run {name[:80]!r}", "see `capstan runs`", run=name
            )
        return view


def _visit(
    request: Request,
    settings: Annotated[Settings, Depends(current_settings)],
    user: Annotated[BaseUser, Depends(get_user)],
) -> Visit:
    return Visit(request, settings, Permissions(user))


Visited = Annotated[Visit, Depends(_visit)]


@router.get("/")
def overview(visit: Visited) -> Response:
    """What needs attention, streams, replays with their coverage, and the newest runs."""
    lake, declared, permissions = visit.lake, visit.declared, visit.permissions
    problems: list[dict[str, object]] = []
    try:
        lake.require()
    except CapstanError as error:
        problems.append(error.summary())
    streams, replays = visit.streams(), visit.coverages()
    runs = visit.runs() if not problems else None
    # Without a lake, nobody knows.
    listed = None if runs is None else list_attention(lake, declared, streams, replays, runs)
    problems += [error.summary() for error in mistakes(visit.settings)]
    return visit.page(
        "overview.html",
        "/",
        problems=problems,
        attention=listed,
        may_fill=permissions.may_replay(),
        streams=streams,
        replays=replays,
        runs=runs.views(0, _NEWEST) if runs else [],
        more=len(runs) if runs and len(runs) > _NEWEST else 0,
    )


@router.get("/attention.json")
def attention(visit: Visited) -> Response:
    """What needs a person, of what the user may see."""
    visit.lake.require()
    streams, replays = visit.streams(), visit.coverages()
    listed = list_attention(visit.lake, visit.declared, streams, replays, visit.runs())
    return JSONResponse(listed.to_json())


@router.get("/streams/{name}")
def stream(visit: Visited, name: str) -> Response:
    """One stream: frontiers, late records, tape, replays."""
    check_name("stream", name)
    if not visit.permissions.stream(name):
        raise refuse()
    lake, declared = visit.lake, visit.declared
    if name not in stream_names(lake, declared):
        raise InvalidRequestError("CAP-STREAM", f"there is no stream {name}", "see the overview")
    view = view_stream(lake, declared, name)
    coordinates = view.tape.time_type.coordinates if isinstance(view, StreamHistory) else ()
    return visit.page(
        "stream.html",
        view=view,
        payload=view_payload(lake, name) if isinstance(view, StreamHistory) else None,
        course=read_commit_times(lake, view) if isinstance(view, StreamHistory) else None,
        runs=visit.permissions.runs(list_runs_of_stream(lake, name), declared),
        times=", ".join(f"{part.name} {part.kind.value}" for part in coordinates),
        dag=capture_dag(name),
    )


@router.get("/replays/{name}")
def replay(
    visit: Visited, name: str, year: Annotated[int | None, Query(ge=1, le=9999)] = None
) -> Response:
    """One declared replay: its coverage as a calendar, with gaps to fill."""
    check_name("replay", name)
    configured = visit.declared.replays.get(name)
    if configured is None or not visit.permissions.replays([configured]):
        # A replay that is not declared has no DAG to check permission for.
        raise refuse()
    return visit.page(
        "replay.html",
        view=view_coverage(visit.lake, visit.declared, name, year=year),
        seen=visit.visible_runs(),
        may_fill=visit.permissions.may_replay(),
        dag=replay_dag(configured),
    )


@router.get("/tables")
def tables(
    visit: Visited, target: Annotated[str | None, Query(min_length=1, max_length=2000)] = None
) -> Response:
    """Tables that replays have written, or one of them with its published runs."""
    replays: dict[str, list[str]] = {}
    for replay in visit.permissions.replays(visit.declared.replays.values()):
        path, _ = target_path(visit.lake, visit.declared, replay.target)
        replays.setdefault(path, []).append(replay.name)
    return visit.page(
        "tables.html",
        "" if target else "/tables",
        # Compared with paths of the ledger; never opened as a path.
        tables=view_tables(visit.lake, visit.visible_runs(), target),
        target=target,
        replays=replays,
        shown=_PER_TABLE,
    )


@router.get("/runs")
def runs(visit: Visited, page: Annotated[int, Query(ge=1, le=100_000)] = 1) -> Response:
    """All runs, newest first."""
    rows = visit.runs()
    begin = (page - 1) * _PER_PAGE
    return visit.page(
        "runs.html",
        "/runs",
        runs=rows.views(begin, _PER_PAGE),
        total=len(rows),
        page=page,
        more=len(rows) > begin + _PER_PAGE,
    )


@router.get("/runs/{name}")
def run(visit: Visited, name: str) -> Response:
    """One run: certificate, uncovered parts, audits."""
    view = visit.run(name)
    may_roll_back = view.state == "published" and visit.permissions.may_roll_back()
    return visit.page("run.html", view=view, may_roll_back=may_roll_back)


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


@router.get("/fill")
def fill(visit: Visited) -> Response:
    """The prefilled form of `capstan_replay`, with its plan."""
    query, permissions = visit.request.query_params, visit.permissions
    given = {name: query.getlist(name) for name in query}
    # The form and its messages list only what the user may see.
    visible = replace(visit.settings, declarations=permissions.declared(visit.declared))
    if not permissions.may_replay() or not visible.declarations.streams:
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
        plan = hide_runs(plan_of(visible, fields), visit.visible_runs())
    except CapstanError as error:
        problem = error.summary()
    return visit.page(
        "fill.html",
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
