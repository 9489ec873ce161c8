"""DAGs `capstan_follow__<replay>`: declared replays that follow their stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from airflow.sdk import DAG, Context

from capstan.airflow.assets import table_asset
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.declaration_errors import sound
from capstan.airflow.dags.form import DIFFERENCES, peers_field, switch
from capstan.airflow.dags.new_dag import new_dag
from capstan.airflow.dags.replay import declared_fields, replay_tasks
from capstan.airflow.settings import Settings
from capstan.core.config import Replay


def follow_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared replay with `follow`; without a schedule, it is triggered by hand."""
    for replay in settings.declarations.replays.values():
        if replay.follow is not None:
            yield from sound(partial(_dag, settings, replay))


def _dag(settings: Settings, replay: Replay) -> DAG:
    about = docs.FOLLOW.format(
        stream=replay.stream, target=replay.target, description=replay.description
    )
    with new_dag(
        settings,
        "follow",
        replay.name,
        description=f"Follow {replay.stream}: {replay.description or replay.target}",
        doc_md=about + docs.FAILURES,
        schedule=timetables.of_replay(settings, replay),
        # Each run continues from the previous one.
        max_active_runs=1,
        params={
            "peers": peers_field(),
            "adopt": switch("Adopt", "Also replace rows that no replay wrote.", None),
            "direct": switch(
                "Direct", "Write to the table without staging, and audit it there.", None
            ),
            "dry_run": switch("Dry run", "Stop after the plan.", None),
            "diff": switch("Differences", DIFFERENCES, None),
        },
        tag="follow",
    ) as dag:
        outlet = table_asset(replay.target, settings.declarations)
        replay_tasks(partial(_fields, replay), outlet, settings=settings, replay=replay)
    return dag


def _fields(replay: Replay, context: Context) -> Mapping[str, object]:
    """The fields of a run's request: the declared replay, with the form's peers and switches."""
    peers = context["params"].get("peers")
    return {**declared_fields(replay, context), "follow": replay.follow, "peers": peers}
