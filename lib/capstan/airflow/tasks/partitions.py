"""Partition keys of assets: intervals that a stream has passed, and that a table covers.

Events are written in the transaction in which their task succeeds. So an event of another asset,
written with them, is the record of what was told: a task that is killed before has told nothing,
and the next one begins where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk import Asset, AssetAlias, BaseOperator, Context
from airflow.sdk.execution_time.context import InletEventsAccessor, OutletEventAccessor

from capstan.airflow.assets import gone_asset, plain, stream_asset, table_asset
from capstan.core.config import Stream
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.airflow.settings import Settings
    from capstan.backfill.passed_intervals import ToldIntervals
    from capstan.backfill.told_coverage import CoverageBatch

HAS_PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")
"""Whether this Airflow takes partition keys from a running task."""
NEEDED = "needs Airflow 3.3 or later, in which a task can name the partitions of an asset's events"
# The alias makes an asset known to Airflow when a task first emits an event of it.
_TOLD = AssetAlias("capstan/told")
_Told = TypeVar("_Told")
# After that, what was told is written again: `airflow db clean` keeps no last event of an asset.
_OLD = timedelta(weeks=1)


def told_asset(kind: str, name: str) -> Asset:
    """The asset whose newest event says what was told of one of the `streams` or `replays`.

    It is not that of the partitions: while a run that an event has scheduled is queued, Airflow
    cannot list the events of its asset.
    """
    return Asset(f"capstan/{kind}/{name}/told", f"capstan://{kind}/{name}/told")


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
    passed = next_passed(Lake.at(settings.lake), stream, newest_told(stream.name))
    keys = () if passed is None else passed.keys
    _emit(task, context, {stream_asset(stream.name): (keys, extra)})
    if passed is not None:
        _record(task, context, told_asset("streams", stream.name), passed.told.to_json())
        task.log.info(
            "%d intervals are complete, from %s to that of %s; %d more are to be told",
            len(keys), keys[0], keys[-1], passed.told.left,
        )  # fmt: skip


def tell_coverage(task: BaseOperator, context: Context, settings: Settings, name: str) -> None:
    """Emit the next batch of intervals of a declared replay that its table covers, or has lost."""
    declared = settings.declarations
    replay, batch = declared.replay(name), untold_coverage(settings, name)
    table, lost = table_asset(replay.target, declared), gone_asset(replay.target)
    extra = {"replay": name, "stream": replay.stream, "target": replay.target}
    told: dict[Asset, tuple[Collection[str], Json]] = {table: ((), {}), lost: ((), {})}
    if batch is not None:
        if batch.loss is not None:
            extra |= asdict(batch.loss)
        told[table if batch.loss is None else lost] = batch.keys, extra
        _record(task, context, told_asset("replays", name), batch.told.to_json())
    if batch is not None and batch.keys:
        task.log.info(
            "%d intervals are %s, from %s to that of %s; %d more batches are to be told",
            len(batch.keys), extra.get("state", "covered"), batch.keys[0], batch.keys[-1],
            batch.left,
        )  # fmt: skip
    _emit(task, context, told)


def newest_told(stream: str) -> ToldIntervals | None:
    """How far a stream's intervals are told; None if none is."""
    from capstan.backfill.passed_intervals import ToldIntervals

    newest = _newest(told_asset("streams", stream), ToldIntervals.from_json)
    return None if newest is None else newest[0]


def untold_coverage(settings: Settings, replay: str) -> CoverageBatch | None:
    """The next intervals of a declared replay to tell; None when all are told.

    There are none in it, if only the record of what was told is old, and to be written again.
    """
    from capstan.airflow.lake_queries import captured_streams
    from capstan.backfill.passed_intervals import BATCH
    from capstan.backfill.told_coverage import CoverageBatch, ToldCoverage, next_changes
    from capstan.storage.lake import Lake

    declared = settings.declarations
    inputs = declared.replay(replay).inputs
    if len(captured_streams(settings, inputs)) < len(inputs):
        return None
    newest = _newest(told_asset("replays", replay), ToldCoverage.from_json)
    told = ToldCoverage() if newest is None else newest[0]
    batch = next_changes(Lake.at(settings.lake), declared, replay, told, BATCH)
    if batch is None and newest is not None and datetime.now(UTC) - newest[1] > _OLD:
        return CoverageBatch((), None, told, 0)
    return batch


def _emit(
    task: BaseOperator, context: Context, told: Mapping[Asset, tuple[Collection[str], Json]]
) -> None:
    """Emit the keys of some of a task's outlets, with their `extra`."""
    for asset, (keys, extra) in told.items():
        if keys:
            event = context["outlet_events"][asset]
            event.extra = plain(extra)
            event.add_partitions(list(keys))
        else:
            # Airflow emits an event for every outlet of a task that succeeds.
            task.outlets = [outlet for outlet in task.outlets if outlet != asset]


def _record(task: BaseOperator, context: Context, asset: Asset, told: Json) -> None:
    """Emit the event that says what is told then."""
    context["outlet_events"][_TOLD].add(asset, extra=plain(told))
    task.outlets = [*task.outlets, _TOLD]


def _newest(asset: Asset, read: Callable[[object], _Told | None]) -> tuple[_Told, datetime] | None:
    """What the newest event of an asset says was told, and when; None if none does."""
    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    # Events that somebody else has made of it are no records.
    newest = events.ascending(False).limit(100)
    told = ((read(event.extra), event.timestamp) for event in newest)
    return next(((each, at) for each, at in told if each is not None), None)
