"""The DAG `capstan_replay`, triggered by hand; the tasks of all replays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, Context, TriggerRule, XComArg

from capstan.airflow.assets import REPLAYED
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.defaults import new_dag, task_defaults
from capstan.airflow.dags.form import filled, replay_form
from capstan.airflow.dags.notifications import of_chosen
from capstan.airflow.operators.approve import ApproveOperator
from capstan.airflow.operators.plan import Fields, PlanReplayOperator
from capstan.airflow.operators.replay import (
    CertificateOperator,
    PublishOperator,
    SubmitReplayOperator,
)
from capstan.airflow.settings import Settings
from capstan.core.config import Replay
from capstan.core.config.request_fields import GivenFields


def replay_tasks(
    fields: Fields,
    outlet: Asset | AssetAlias,
    *,
    settings: Settings | None = None,
    replay: Replay | None = None,
    by_interval: bool = False,
    **place: str | None,
) -> PlanReplayOperator:
    """Create the tasks of a replay: plan, replay, approve, publish, certificate.

    If a run needs no approval, `replay` publishes, and `approve` and `publish` are skipped.

    Args:
        fields: The fields of a run's request, templated, or a function that gives them.
        settings: The settings; None in a DAG of somebody else, whose `default_args` then count.
        replay: The declared replay, which names notifiers.
        by_interval: Whether the run is one of the replay's backfills, which have a policy.

    Returns:
        The first task.
    """
    usual: dict[str, Any] = {}
    if settings is not None:
        # The run's replay may be known at run time only.
        usual = task_defaults(settings, replay, of_chosen(settings) if replay is None else None)
    shared: dict[str, Any] = {"settings": settings, **place, **usual}
    held = replay if by_interval else None
    at_most = None if held is None else held.backfill.at_most
    limits: dict[str, Any] = {} if at_most is None else {"max_active_tis_per_dag": at_most}
    plan = PlanReplayOperator(task_id="plan", fields=fields, doc_md=docs.TASKS["plan"], **shared)
    replayed = SubmitReplayOperator(
        task_id="replay",
        request=XComArg(plan, "request"),
        records=XComArg(plan, "records"),
        outlets=[outlet],
        doc_md=docs.TASKS["replay"],
        **limits,
        **shared,
    )
    replayed.backfills = None if held is None else held.name
    approve = ApproveOperator(
        task_id="approve",
        result=replayed.output,
        others=XComArg(plan, "others"),
        doc_md=docs.TASKS["approve"],
        **usual,
    )
    published = PublishOperator(
        task_id="publish",
        request=approve.output,
        records=XComArg(plan, "records"),
        outlets=[outlet],
        doc_md=docs.TASKS["publish"],
        **shared,
    )
    certificate = CertificateOperator(
        task_id="certificate",
        result=[published.output, replayed.output],
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
        doc_md=docs.TASKS["certificate"],
        **usual,
    )
    plan.without_approval = (approve.task_id, published.task_id)
    plan >> replayed >> approve >> published >> certificate
    return plan


def declared_fields(replay: Replay, context: Context) -> dict[str, object]:
    """The request fields of a run of a declared replay; `lake_queries.resolve` adds the others."""
    switches = ("adopt", "dry_run", "diff")
    several = {"streams": replay.keyed, "pipeline": replay.pipeline, "sink": replay.sink}
    return {
        "stream": replay.stream,
        **(several if replay.streams else {}),
        "into": replay.target,
        "mode": str(replay.mode),
        "replay": replay.name,
        **{name: bool(context["params"].get(name)) for name in switches},
    }


def replay_dags(settings: Settings) -> Iterator[DAG]:
    """The DAG that replays what its form requests; none if no stream is declared."""
    if not settings.declarations.streams:
        return
    with new_dag(
        settings,
        "replay",
        description="Replay chosen workers and times of a stream into a table",
        doc_md=docs.REPLAY,
        schedule=timetables.by_hand_or_key(),
        # Runs that wait for a person, or for times, count too.
        max_active_runs=32,
        # Only a person starts it, and should not have to unpause it first.
        is_paused_upon_creation=False,
        params=replay_form(settings),
        tag="replay",
    ) as dag:
        replay_tasks(partial(_asked, settings), REPLAYED, settings=settings)
    yield dag


def _asked(settings: Settings, context: Context) -> GivenFields:
    """The fields of a run's request: those of its form; else, its partition key names a range."""
    given, key = filled(context["params"]), context.get("partition_key")
    if key is None:
        return given
    # Not at the top: parsing a DAG file should not import table readers.
    from capstan.backfill.passed_intervals import key_fields

    declared = settings.declarations
    replay = declared.replays.get(str(given.get("replay")))
    name = given.get("stream") or (replay.inputs[0] if replay is not None else None)
    stream = declared.streams.get(str(name))
    partitions = None if stream is None else stream.partitions
    every = None if partitions is None else partitions.every
    named = key_fields(str(key), every)
    if "since" in given or "until" in given:
        # A range is that of the key, or that of the form, and not half of each.
        del named["since"], named["until"]
    return {**named, **given}
