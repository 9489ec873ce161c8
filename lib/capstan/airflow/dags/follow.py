"""DAGs `capstan_follow__<replay>`: a declared replay that plays what became complete since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from airflow.sdk import DAG, Context

from capstan.airflow.assets import table_asset
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.declaration_errors import sound
from capstan.airflow.dags.form import DIFFERENCES, peers_field, switch
from capstan.airflow.dags.replay import replay_tasks
from capstan.airflow.settings import Settings
from capstan.core.config import Replay

_OWN = ("adopt", "direct", "dry_run", "diff")


def follow_dags(setting: Settings) -> Iterator[DAG]:
    """A DAG for each declared replay that follows; without a schedule it is triggered by hand."""
    for replay in setting.declarations.replays.values():
        if replay.follow is not None:
            yield from sound(partial(_dag, setting, replay))


def _dag(setting: Settings, replay: Replay) -> DAG:
    about = docs.FOLLOW.format(
        stream=replay.stream, target=replay.target, description=replay.description
    )
    with DAG(
        f"capstan_follow__{replay.name}",
        description=f"Follow {replay.stream}: {replay.description or replay.target}",
        doc_md=about + docs.FAILURES,
        schedule=timetables.of_replay(setting, replay),
        start_date=timetables.BEGINNING,
        catchup=False,
        # Each run goes on from the one before.
        max_active_runs=1,
        params={
            "peers": peers_field(),
            "adopt": switch("Adopt", "Also replace rows that no replay has put there.", None),
            "direct": switch("Direct", "Write to the table at once, and audit it there.", None),
            "dry_run": switch("Dry run", "Stop after the plan.", None),
            "diff": switch("Differences", DIFFERENCES, None),
        },
        tags=["capstan", "follow"],
    ) as dag:
        replay_tasks(setting, _asked_of(replay), table_asset(replay.target), replay)
    return dag


def _asked_of(replay: Replay) -> Callable[[Context], Mapping[str, object]]:
    def asked(context: Context) -> Mapping[str, object]:
        """The request of a run: the declared replay, which says all but how many workers play."""
        params = context["params"]
        return {
            "stream": replay.stream,
            "into": replay.target,
            "mode": str(replay.mode),
            "follow": replay.follow,
            "replay": replay.name,
            "peers": params.get("peers"),
            **{name: bool(params.get(name)) for name in _OWN},
        }

    return asked
