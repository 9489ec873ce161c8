"""Who may see what of a lake: whoever may see the DAGs that the data belongs to.

What a tape holds belongs to the DAG that captures it, also where that DAG is not there: then it is
for those alone whom Airflow lets see a DAG of that name. A replay belongs to the DAG that runs it,
and to that of the stream that it plays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

from capstan.declare import Replay

REPLAY_DAG = "capstan_replay"
ROLLBACK_DAG = "capstan_rollback"


def capture_dag(stream: str) -> str:
    """The id of the DAG that captures a stream."""
    return f"capstan_capture__{stream}"


def backfill_dag(replay: Replay) -> str:
    """The id of the DAG that runs a declared replay: its own, if it has a schedule."""
    return REPLAY_DAG if replay.schedule is None else f"capstan_backfill__{replay.name}"


@dataclass(frozen=True, slots=True)
class Sight:
    """What one user may see, as Airflow's auth manager has it.

    Attributes:
        user: The user, who is logged in.
    """

    user: BaseUser

    def streams(self, names: Iterable[str]) -> set[str]:
        """Those of the streams whose data the user may see."""
        dags = {capture_dag(name): name for name in names}
        return {dags[dag] for dag in _readable(dags, self.user)}

    def stream(self, name: str) -> bool:
        """Whether the user may see the data of a stream."""
        return bool(self.streams([name]))

    def replays(self, replays: Iterable[Replay]) -> list[Replay]:
        """Those of the declared replays that the user may see, in their order."""
        listed = list(replays)
        needed = {
            replay.name: {backfill_dag(replay), capture_dag(replay.stream)} for replay in listed
        }
        seen = _readable({dag for dags in needed.values() for dag in dags}, self.user)
        return [replay for replay in listed if needed[replay.name] <= seen]

    def runs(self) -> bool:
        """Whether the user may see runs at all; of which streams is another question."""
        return bool(_readable([REPLAY_DAG], self.user))

    def may_replay(self) -> bool:
        """Whether the user may trigger `capstan_replay`."""
        return self._may_trigger(REPLAY_DAG)

    def may_roll_back(self) -> bool:
        """Whether the user may trigger `capstan_rollback`."""
        return self._may_trigger(ROLLBACK_DAG)

    def _may_trigger(self, dag: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="POST",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag, team_name=_teams([dag]).get(dag)),
            user=self.user,
        )


def _readable(dags: Collection[str], user: BaseUser) -> set[str]:
    """Those of the DAGs that a user may read."""
    teams = _teams(dags)
    by_team: dict[str | None, set[str]] = defaultdict(set)
    for dag in dags:
        by_team[teams.get(dag)].add(dag)
    found: set[str] = set()
    for team, ids in by_team.items():
        found |= get_auth_manager().filter_authorized_dag_ids(
            dag_ids=ids, user=user, method="GET", team_name=team
        )
    return found


def _teams(dags: Collection[str]) -> Mapping[str, str | None]:
    return DagModel.get_dag_id_to_team_name_mapping(list(dags))
