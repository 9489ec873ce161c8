"""Partition keys of a stream's asset: the intervals that its frontier has passed.

Events are written in the transaction in which their task succeeds. So an event of a second asset,
written with them, is the record of what was told: a task that is killed before has told nothing,
and the next one begins where the last one ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias, BaseOperator, Context
from airflow.sdk.execution_time.context import InletEventsAccessor, OutletEventAccessor

from capstan.airflow.assets import plain, stream_asset
from capstan.core.config import Stream
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.airflow.settings import Settings
    from capstan.backfill.passed_intervals import ToldIntervals

HAS_PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")
"""Whether this Airflow takes partition keys from a running task."""
NEEDED = "needs Airflow 3.3 or later, in which a task can name the partitions of an asset's events"
# The alias makes an asset known to Airflow when a task first emits an event of it.
_TOLD = AssetAlias("capstan/told")


def told_asset(stream: str) -> Asset:
    """The asset whose newest event says how far a stream's intervals are told.

    It is not the stream's: while a run that an event has scheduled is queued, Airflow cannot list
    the events of its asset.
    """
    return Asset(f"capstan/streams/{stream}/told", f"capstan://streams/{stream}/told")


def require_partitions(task: BaseOperator, stream: Stream) -> None:
    """Check that a task can tell the partitions of a stream."""
    problem, hint = None, ""
    if not HAS_PARTITIONS:
        problem, hint = NEEDED, "leave `partitions` out, or update Airflow"
    elif stream_asset(stream.name) not in task.outlets:
        problem = f"needs the stream's asset as an outlet of task {task.task_id}"
        hint = "name the stream without a template, or give the task the outlet "
        hint += f'Asset("capstan/streams/{stream.name}", "capstan://streams/{stream.name}")'
    if problem is not None:
        raise InvalidRequestError(
            "CAP-PARTITIONS",
            f"`partitions` of stream {stream.name} {problem}",
            hint,
            stream=stream.name,
        )


def tell_partitions(
    task: BaseOperator, context: Context, settings: Settings, stream: Stream, extra: Json
) -> None:
    """Emit the next batch of intervals that a stream has passed, as partition keys of its asset."""
    # Not at the top: parsing a DAG file should not import table readers.
    from capstan.backfill.passed_intervals import next_passed
    from capstan.storage.lake import Lake

    require_partitions(task, stream)
    asset = stream_asset(stream.name)
    passed = next_passed(Lake.at(settings.lake), stream, newest_told(stream.name))
    if passed is None:
        # Airflow emits an event for every outlet of a task that succeeds.
        task.outlets = [outlet for outlet in task.outlets if outlet != asset]
        return
    events = context["outlet_events"]
    events[asset].extra = plain(extra)
    events[asset].add_partitions(list(passed.keys))
    events[_TOLD].add(told_asset(stream.name), extra=plain(passed.told.to_json()))
    task.outlets = [*task.outlets, _TOLD]
    task.log.info(
        "%d intervals are complete, from %s to that of %s; %d more are to be told",
        len(passed.keys), passed.keys[0], passed.keys[-1], passed.told.left,
    )  # fmt: skip


def newest_told(stream: str) -> ToldIntervals | None:
    """How far a stream's intervals are told; None if none is."""
    from capstan.backfill.passed_intervals import ToldIntervals

    asset = told_asset(stream)
    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    # Events that somebody else has made of it are no records.
    told = (ToldIntervals.from_json(event.extra) for event in events.ascending(False).limit(100))
    return next((each for each in told if each is not None), None)
