"""DAGs of what is declared: captures of streams, replays, and what their tables cover.

`capstan_capture__<stream>`, `capstan_follow__<replay>`, `capstan_backfill__<replay>`, which has one
run per complete data interval, and `capstan_partitions__<replay>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from airflow.sdk import DAG, Asset, Context, Param

from capstan.airflow.assets import gone_asset, stream_asset, table_asset
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.declaration_errors import require_keys, sound
from capstan.airflow.dags.defaults import new_dag, task_arguments, task_defaults
from capstan.airflow.dags.form import DIFFERENCES, peers_field, switch, workers_field
from capstan.airflow.dags.replay import declared_fields, replay_tasks
from capstan.airflow.lake_files import labels_by_stream
from capstan.airflow.operators.frontier_sensor import FrontierSensor
from capstan.airflow.operators.jobs import CaptureOperator
from capstan.airflow.operators.partitions import CountPartitionsOperator, TellPartitionsOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Replay, Stream
from capstan.core.config.request_fields import GivenFields
from capstan.errors import InvalidRequestError

# Waiting runs count too; the pool limits the number of Spark jobs.
_MAX_ACTIVE_RUNS = 16
_RESOLUTION = timedelta(microseconds=1)


def capture_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared stream; without a schedule, it is triggered by hand."""
    for stream in settings.declarations.streams.values():
        yield from sound(partial(_capture_dag, settings, stream))


def _capture_dag(settings: Settings, stream: Stream) -> DAG:
    require_keys(settings, stream)
    about = docs.CAPTURE.format(stream=stream.name, description=stream.description)
    with new_dag(
        settings,
        "capture",
        stream.name,
        description=f"Capture {stream.name}: {stream.description}".rstrip(": "),
        doc_md=about,
        schedule=timetables.of_declared(settings, stream),
        # Only one capture of a stream can run at a time.
        max_active_runs=1,
        tag="capture",
    ) as dag:
        capture = CaptureOperator(stream=stream.name, **task_arguments(settings, "capture", stream))
        if stream.partitions is not None:
            # Those beyond the batch that the capture has told.
            capture >> _tell_tasks(settings, stream, stream_asset(stream.name))
    return dag


def _tell_tasks(
    settings: Settings, declared: Stream | Replay, *outlets: Asset
) -> CountPartitionsOperator:
    """Create the tasks that tell all partitions which are still to be told; the first of them."""
    name = {"stream" if isinstance(declared, Stream) else "replay": declared.name}
    count = CountPartitionsOperator(**name, **task_arguments(settings, "count", declared))
    usual = task_arguments(settings, "partitions", declared)
    # Airflow stores the arguments of a mapped task: a place, but no settings.
    place = {"lake": settings.lake, "config": str(settings.config)}
    del usual["settings"]
    told = TellPartitionsOperator.partial(
        outlets=list(outlets), max_active_tis_per_dag=1, **name, **place, **usual
    ).expand(batch=count.output)
    count >> told
    return count


def partitions_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared replay with `partitions`, after changes of its table and daily."""
    for replay in settings.declarations.replays.values():
        if replay.partitions:
            yield from sound(partial(_partitions_dag, settings, replay))


def _partitions_dag(settings: Settings, replay: Replay) -> DAG:
    require_keys(settings, replay)
    table = table_asset(replay.target, settings.declarations)
    with new_dag(
        settings,
        "partitions",
        replay.name,
        description=f"Tell which intervals {replay.target} covers, and which it has lost",
        doc_md=docs.PARTITIONS.format(replay=replay.name, target=replay.target),
        schedule=timetables.daily_or(table),
        # What was told is read, and written with what is told.
        max_active_runs=1,
        tag="backfill",
    ) as dag:
        _tell_tasks(settings, replay, table, gone_asset(replay.target))
    return dag


def follow_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared replay with `follow`; without a schedule, it is triggered by hand."""
    for replay in settings.declarations.replays.values():
        if replay.follow is not None:
            yield from sound(partial(_follow_dag, settings, replay))


def _follow_dag(settings: Settings, replay: Replay) -> DAG:
    about = docs.FOLLOW.format(
        stream=replay.stream, target=replay.target, description=replay.description
    )
    with new_dag(
        settings,
        "follow",
        replay.name,
        description=f"Follow {replay.stream}: {replay.description or replay.target}",
        doc_md=about,
        schedule=timetables.of_declared(settings, replay),
        # Each run continues from the previous one.
        max_active_runs=1,
        params={"peers": peers_field(), **_switches("Also replace rows that no replay wrote.")},
        tag="follow",
    ) as dag:
        outlet = table_asset(replay.target, settings.declarations)
        replay_tasks(partial(_follow_fields, replay), outlet, settings=settings, replay=replay)
    return dag


def _follow_fields(replay: Replay, context: Context) -> GivenFields:
    """The fields of a run's request: the declared replay, with the form's peers and switches."""
    peers = context["params"].get("peers")
    return {**declared_fields(replay, context), "follow": replay.follow, "peers": peers}


def _switches(adopt: str) -> dict[str, Param]:
    """The switches that `declared_fields` reads, in the order of the form."""
    return {
        "adopt": switch("Adopt", adopt, None),
        "dry_run": switch("Dry run", "Stop after the plan.", None),
        "diff": switch("Differences", DIFFERENCES, None),
    }


def backfill_dags(settings: Settings) -> Iterator[DAG]:
    """A DAG for each declared replay that has a schedule and does not follow.

    A bounded replay is backfilled between its bounds; once they are past, it no longer starts on
    its own.
    """
    for replay in settings.declarations.replays.values():
        if replay.schedule is not None and replay.follow is None:
            yield from sound(partial(_backfill_dag, settings, replay))


def _backfill_dag(settings: Settings, replay: Replay) -> DAG:
    bounds = f"{replay.since or 'the start'} to {replay.until or 'no end'}"
    about = {"stream": replay.stream, "target": replay.target, "bounds": bounds}
    labels = labels_by_stream(settings)
    with new_dag(
        settings,
        "backfill",
        replay.name,
        description=f"Replay intervals: {replay.description or replay.target}",
        doc_md=docs.BACKFILL.format(**about, description=replay.description),
        schedule=timetables.of_declared(settings, replay),
        start_date=replay.since if isinstance(replay.since, datetime) else timetables.BEGINNING,
        # Applies to interval starts: the interval that starts at the bound is outside.
        end_date=replay.until - _RESOLUTION if isinstance(replay.until, datetime) else None,
        # For scheduled runs; a backfill has its own limit.
        max_active_runs=_MAX_ACTIVE_RUNS,
        params={
            # Others than the declared ones are refused.
            "workers": workers_field({n: replay.workers or labels[n] for n in replay.inputs}),
            **_switches("Also replace rows of the interval that no replay wrote."),
        },
        tag="backfill",
    ) as dag:
        fields = partial(_backfill_fields, replay)
        usual = task_defaults(settings, replay)
        complete = FrontierSensor(
            task_id="complete",
            settings=settings,
            fields=fields,
            on_failure_callback=usual["on_failure_callback"],
            doc_md=docs.TASKS["complete"],
        )
        outlet = table_asset(replay.target, settings.declarations)
        complete >> replay_tasks(fields, outlet, settings=settings, replay=replay, by_interval=True)
    return dag


def _backfill_fields(replay: Replay, context: Context) -> GivenFields:
    """The fields of a run's request: the declared replay over the run's data interval."""
    since, until = _backfill_bounds(replay, context)
    return {
        **declared_fields(replay, context),
        "workers": context["params"].get("workers") or None,  # A form's blank field.
        "since": since.isoformat(),
        "until": until.isoformat(),
    }


def _backfill_bounds(replay: Replay, context: Context) -> tuple[datetime, datetime]:
    """The part of the run's data interval inside the replay's bounds."""
    since, until = context.get("data_interval_start"), context.get("data_interval_end")
    if since is None or until is None or since >= until:
        raise InvalidRequestError(
            "CAP-INTERVAL",
            "this run has no data interval",
            "backfill the DAG, or trigger it with a logical date",
        )
    # A schedule's first and last interval can cross them: `capstan gaps` cuts those too.
    low = max(since, replay.since) if isinstance(replay.since, datetime) else since
    high = min(until, replay.until) if isinstance(replay.until, datetime) else until
    if low >= high:
        raise InvalidRequestError(
            "CAP-INTERVAL",
            f"the interval {since.isoformat()} to {until.isoformat()} is outside the bounds of "
            f"replay {replay.name}: {replay.since or 'the start'} to {replay.until or 'the end'}",
            "backfill a range of dates between them",
        )
    return low.astimezone(UTC), high.astimezone(UTC)
