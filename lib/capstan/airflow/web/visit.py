"""A request by a user: what of the lake and the declarations the user may see, and do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, Response

from capstan.airflow.lake_files import read_page_settings
from capstan.airflow.lake_queries import approving_replay
from capstan.airflow.settings import Settings
from capstan.airflow.web.actions import Action
from capstan.airflow.web.question import Question, ask
from capstan.airflow.web.security import Permissions, find_paused, rendered
from capstan.airflow.web.task_progress import informed
from capstan.core.config import ProjectConfig, Replay
from capstan.errors import CapstanError, InvalidRequestError
from capstan.replay.planning.target_places import target_path
from capstan.reporting.activity import Activity
from capstan.reporting.attention.gather import list_attention
from capstan.reporting.attention.items import AttentionList
from capstan.reporting.coverage_view import Coverage, NoCoverage, view_coverages
from capstan.reporting.lists.paging import ListPage
from capstan.reporting.lists.run_search import RunSearch
from capstan.reporting.run_heads import RunHeads, read_heads
from capstan.reporting.run_view import RunView, list_claimed, view_run
from capstan.reporting.stream_view import NoView, StreamHistory, stream_names, view_streams
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import now

FOLLOWS = "X-Capstan-Follows"
"""The header by which a page's script asks again, while something runs."""

_AGE = timedelta(seconds=30)
_LISTED: VersionedCache[AttentionList] = VersionedCache()


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

    def allowed(self, listed: Iterable[Action]) -> list[Action]:
        """The actions, of those given, whose DAG is here, and the user may trigger."""
        allowed = [each for each in listed if self.permissions.may_trigger(each.kind)]
        paused = find_paused({each.dag for each in allowed})
        return [
            replace(
                each,
                paused=paused.get(each.dag, False),
                may_unpause=self.permissions.may_unpause(each.kind),
            )
            for each in allowed
        ]

    def question(self, run: RunView) -> Question | None:
        """What Airflow asks about a run that waits, and what has come of it; None for nothing."""
        by = run.made_by if run.activity is Activity.WAITING else None
        if by is None or by.task == "":
            return None
        approving = approving_replay(self.settings, run.target)
        others = approving is not None and approving.approve == "others"
        mine = others and by.user == self.permissions.user.get_name()
        return replace(
            ask(by), may_answer=self.permissions.may_decide(by.dag), may_approve=not mine
        )

    def streams(self) -> list[StreamHistory | NoView]:
        """The streams that the user may see."""
        names = stream_names(self.lake, self.declared)
        visible = self.permissions.streams(names)
        return view_streams(self.lake, self.declared, [n for n in names if n in visible])

    def coverages(self) -> list[Coverage | NoCoverage]:
        """The coverage of the declared replays that the user may see."""
        replays = self.permissions.replays(self.declared.replays.values())
        names = [replay.name for replay in replays]
        return view_coverages(self.lake, self.declared, names, informed=informed)

    def runs(self) -> RunHeads:
        """The runs that the user may see, newest first."""
        self.lake.require()
        every = read_heads(self.lake)
        return every.owned_by(self.permissions.owners(every.owners, self.declared))

    def attention(
        self,
        streams: Sequence[StreamHistory | NoView],
        replays: Sequence[Coverage | NoCoverage],
        runs: RunHeads,
    ) -> AttentionList:
        """What needs a person of these, which the user may see.

        For a page that follows what runs, it may be half a minute old.
        """
        lake, declared, moment = self.lake, self.declared, now()
        names = tuple(view.name for view in streams), tuple(v.declared.name for v in replays)
        seen = (lake.root, *names, frozenset(runs.owners))
        state, listed = _LISTED.entry(seen) or (None, None)
        fresh = isinstance(state, datetime) and moment - state <= _AGE
        if listed is None or not fresh or FOLLOWS not in self.request.headers:
            listed = list_attention(lake, declared, streams, replays, runs, informed=informed)
            _LISTED.put(seen, moment, listed)
        return listed

    def found(self, runs: RunHeads, search: RunSearch, number: int, size: int) -> ListPage[RunView]:
        """A page of some runs as a search finds them, with what goes on with each."""
        page = runs.page(search, number, size)
        return replace(page, items=informed(page.items))

    def newest(self, search: RunSearch, number: int, size: int) -> ListPage[RunView]:
        """The same of all runs; those that have only a claim come first."""
        page = self.found(self.runs(), search, number, size)
        if number > 1 or search != RunSearch(stream=search.stream):
            return page
        claimed = self.permissions.runs(list_claimed(self.lake), self.declared)
        claimed = [run for run in claimed if not search.stream or search.stream in run.streams]
        return replace(page, items=[*informed(claimed), *page.items])

    def visible_runs(self) -> set[str]:
        """Names of runs that the user may see; a run with only a claim belongs to its streams."""
        claimed = list_claimed(self.lake)
        streams = self.permissions.streams({name for run in claimed for name in run.streams})
        visible = [run.run for run in claimed if streams.issuperset(run.streams)]
        return {*self.runs().names, *visible}

    def places(self, replays: Iterable[Replay]) -> dict[str, str]:
        """The paths of the tables of declared replays, by replay; without those that have none."""
        places: dict[str, str] = {}
        for replay in replays:
            with suppress(CapstanError):
                places[replay.name] = target_path(self.lake, self.declared, replay.target)[0]
        return places

    def run(self, name: str) -> RunView:
        """A run that the user may see."""
        self.lake.require()
        view = view_run(self.lake, name)
        if not self.permissions.runs([view], self.declared):
            # As if it did not exist: names of runs reveal names of tables.
            raise InvalidRequestError(
                "CAP-RUN", f"there is no run {name[:80]!r}", "see `capstan runs`", run=name
            )
        return informed([view])[0]


def visit_of(
    request: Request,
    settings: Annotated[Settings, Depends(current_settings)],
    user: Annotated[BaseUser, Depends(get_user)],
) -> Visit:
    """The visit of a request, for routes to depend on."""
    return Visit(request, settings, Permissions(user))
