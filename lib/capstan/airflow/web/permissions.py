"""Authorization: access to data follows access to the DAG that produces it.

A tape belongs to the DAG that captures it, even if that DAG does not exist: then only users whom
Airflow lets see a DAG of that name have access. A replay and its runs belong both to the DAG that
runs it (`capstan_replay` for runs of no declared replay) and to the capture DAGs of its streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

from capstan.airflow.settings import dag_id
from capstan.core.config import ProjectConfig, Replay, check_name, split_streams
from capstan.errors import InvalidRequestError
from capstan.reporting.run_view import RunView


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
        needed = {
            run.run: {_run_dag(run, config), *map(capture_dag, split_streams(run.stream))}
            for run in runs
            if all(map(_is_name, split_streams(run.stream)))
        }
        readable = _readable({dag for dags in needed.values() for dag in dags}, self.user)
        return [run for run in runs if run.run in needed and needed[run.run] <= readable]

    def may_replay(self) -> bool:
        """Whether the user may trigger `capstan_replay`."""
        return self._may_trigger(dag_id("replay"))

    def may_roll_back(self) -> bool:
        """Whether the user may trigger `capstan_rollback`."""
        return self._may_trigger(dag_id("rollback"))

    def _may_trigger(self, dag: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="POST",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag, team_name=_teams([dag]).get(dag)),
            user=self.user,
        )


def _run_dag(run: RunView, config: ProjectConfig) -> str:
    name = run.request.get("replay")
    replay = config.replays.get(name) if isinstance(name, str) else None
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
