"""Asset events and markdown of each job's result, for all operators that take one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow.sdk import Asset, Context

from capstan.airflow.assets import (
    captured,
    certified,
    plain,
    stream_asset,
    table_asset,
    tell_through_aliases,
)
from capstan.airflow.markdown import (
    audits_markdown,
    backfills_markdown,
    certificate_markdown,
    maintained_markdown,
    plan_markdown,
    rollback_markdown,
    runs_of,
)
from capstan.airflow.settings import Settings
from capstan.airflow.worker_labels import remember_labels
from capstan.core.json_object import Json
from capstan.replay.result import ReplayResult, RollbackResult

Render = Callable[[Json], str]


class Teller(Protocol):
    """A running task that has the result of a job."""

    outlets: list[Any]
    run_name: str | None
    asset_name: str | None

    @property
    def settings(self) -> Settings:
        """Its settings."""


def tell_outlets(task: Teller, context: Context, extra: Json) -> None:
    """Set the `extra` of the events of the assets among a task's outlets."""
    for outlet in task.outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = plain(extra)


def tell_capture(task: Teller, context: Context, result: Json) -> None:
    """Emit the event of the stream's asset, with the new frontier, and save the worker labels."""
    extra, stream = captured(result), str(result.get("stream"))
    tell_outlets(task, context, extra)
    tell_through_aliases(context, task.outlets, stream_asset(stream), extra)
    try:
        from capstan.airflow.lake_queries import worker_labels
    except ModuleNotFoundError:
        return  # Reading a tape needs the package pyspark; forms offer the declared labels then.
    remember_labels(task.settings, stream, worker_labels(task.settings, stream))


def tell_replay(task: Teller, context: Context, result: Json) -> None:
    """Emit the event of the target's asset; none while the run waits for approval."""
    replayed = ReplayResult.from_json(result)
    certificate, task.run_name = replayed.certificate, replayed.name
    if certificate is None or not certificate.published:
        # Airflow emits an event for every outlet of a task that succeeds.
        task.outlets = []
        return
    extra = certified(certificate, unchanged=replayed.unchanged)
    tell_outlets(task, context, extra)
    asset = table_asset(certificate.target, task.settings.declarations)
    tell_through_aliases(context, task.outlets, asset, extra)
    task.asset_name = asset.name


def tell_backfill(task: Teller, context: Context, result: Json) -> None:
    """Emit events of the targets' assets, with their certificates."""
    for replayed in map(ReplayResult.from_json, runs_of(result)):
        certificate = replayed.certificate
        if certificate is not None and certificate.published and not replayed.unchanged:
            asset = table_asset(certificate.target, task.settings.declarations)
            extra = certified(certificate, unchanged=False)
            tell_through_aliases(context, task.outlets, asset, extra)


def tell_rollback(task: Teller, context: Context, result: Json) -> None:
    """Emit the event of the table's asset; none if the run was already rolled back."""
    rolled_back = RollbackResult.from_json(result)
    if rolled_back.unchanged:
        task.outlets = []
        return
    asset = table_asset(rolled_back.target, task.settings.declarations)
    tell_through_aliases(context, task.outlets, asset, result)


@dataclass(frozen=True, slots=True)
class JobKind:
    """What tasks do with the result of a kind of job."""

    tell: Callable[[Teller, Context, Json], None] = tell_outlets
    render: Render | None = None
    partly: bool = True  # whether a job that has failed may have a result


KINDS: Mapping[str, JobKind] = {
    "audit": JobKind(render=audits_markdown),
    "backfill": JobKind(tell_backfill, backfills_markdown),
    "capture": JobKind(tell_capture),
    "maintain": JobKind(render=maintained_markdown),
    "plan": JobKind(render=plan_markdown, partly=False),
    "publish": JobKind(tell_replay, certificate_markdown, partly=False),
    "replay": JobKind(tell_replay, certificate_markdown, partly=False),
    "rollback": JobKind(tell_rollback, rollback_markdown, partly=False),
}
"""By job; the others have asset events of their outlets alone."""
