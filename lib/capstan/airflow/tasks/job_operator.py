"""What a task does with the result of a job: its page, asset events, failure or waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context, timezone

from capstan.airflow.assets import (
    captured,
    certified,
    plain,
    stream_asset,
    table_asset,
    tell_through_aliases,
)
from capstan.airflow.documents import (
    audits_document,
    backfills_document,
    certificate_document,
    maintained_document,
    plan_document,
    rollback_document,
    runs_of,
)
from capstan.airflow.lake_files import remember_declarations, remember_labels
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task, failure, reschedule
from capstan.airflow.tasks.partitions import tell_partitions
from capstan.core.json_object import Json
from capstan.replay.result import ReplayResult, RollbackResult

if TYPE_CHECKING:
    from capstan.airflow.tasks.lake_triggers import LakeTrigger
    from capstan.airflow.tasks.lineage import Lineage

Render = Callable[[Json], object]
"""Makes of a result what tasks show as text: a `TextDocument`, or text."""

# How far the clocks of the scheduler and of a worker may be apart.
_CLOCKS = timedelta(minutes=1)
_PUBLISHED = "capstan_published"
_log = logging.getLogger(__name__)


class JobOperator(CapstanOperator):
    """An operator that submits a job, or takes the result of one that another has submitted."""

    # The task's page then shows the result, and what was really submitted.
    overwrite_rtif_after_execution = True
    job = ""
    # Whether it shows the result on its page; otherwise another task does.
    shows_result = True
    run_name: str | None = None
    asset_name: str | None = None
    # Whether a person has to decide about its run.
    needs_decision = False

    def __init__(
        self, *, wait: timedelta, patience: timedelta, render: Render | None = None, **rest: Any
    ) -> None:
        """Create a task.

        Args:
            wait: The time between two checks.
            patience: The longest wait.
            render: Makes text of the result; by default as is usual for its job.
            rest: Arguments of a `CapstanOperator`.
        """
        super().__init__(**rest)
        self.shown = ""
        self._result: Json | None = None
        self._render_result = render
        self._wait = wait
        self._patience = patience

    def take(self, context: Context, result: Json) -> None:
        """Show a result, and tell it to the assets."""
        self._result = result
        self._show(result)
        self.kind.tell(self, context, result)
        if self._given is not None:
            remember_declarations(self._given)

    def take_failure(
        self, context: Context, code: int, result: Json, *, shown: bool = True
    ) -> Exception:
        """Push the error of a job as XCom, show its result, and return the exception to raise."""
        self._result = result
        self.run_name = named_run(result) or self.run_name
        if shown and self.kind.partly:
            self._show(result)
        context["ti"].xcom_push(key="return_value", value=result)
        return failure(code, result)

    @property
    def kind(self) -> JobKind:
        """What tasks do with the result of its job."""
        return KINDS.get(self.job, JobKind())

    def get_openlineage_facets_on_complete(self, _: object) -> Lineage:
        """The tables that the task read and wrote; for a failed task, up to the failure.

        Only Airflow's OpenLineage provider calls this, if installed and given a transport. It logs
        errors, and fails no task for them.
        """
        # Not at the top: parsing a DAG file should not import OpenLineage's client.
        from capstan.airflow.tasks.lineage import lineage

        return lineage(self.job, self.settings.lake, self._result, self.settings.declarations)

    def wait_for_more(
        self,
        context: Context,
        reason: object,
        trigger: Callable[..., LakeTrigger] | None = None,
        *,
        held: bool = False,
    ) -> None:
        """Leave the slot until the task's patience ends, if it is not held; this uses up no try.

        The task looks again after its time between two checks, or once the trigger fires.
        """
        since, now = self.waits_since(context), timezone.utcnow()
        if held or now - since < self._patience:
            _log.info("waiting: %s", reason)
            if trigger is not None:
                self.defer_to(trigger, since, self._wait, self._patience)
            raise reschedule(now + self._wait)

    def _show(self, result: Json) -> None:
        """Show the result on the task's page and in its log."""
        render = self._render_result or self.kind.render
        if render is not None and self.shows_result:
            self.shown = log_text(render(result))


def log_text(shown: object) -> str:
    """A document, or other text, as text that was logged line by line."""
    text = str(shown)
    for line in text.splitlines():
        _log.info("%s", line)
    return text


def named_run(result: Json) -> str | None:
    """The run that a result is of, or the facts of an error; None if it names none."""
    run = result.get("run")
    return run if isinstance(run, str) else None


def tell_outlets(task: JobOperator, context: Context, extra: Json) -> None:
    """Set the `extra` of the events of the assets among a task's outlets."""
    for outlet in task.outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = plain(extra)


def tell_capture(task: JobOperator, context: Context, result: Json) -> None:
    """Emit the event of the stream's asset, or those of its partitions; save the worker labels."""
    extra, stream = captured(result), str(result.get("stream"))
    declared = task.settings.declarations.streams.get(stream)
    if declared is not None and declared.partitions is not None:
        with as_task():
            tell_partitions(task, context, task.settings, declared, extra)
    else:
        tell_outlets(task, context, extra)
        tell_through_aliases(context, task.outlets, stream_asset(stream), extra)
    try:
        from capstan.airflow.lake_queries import worker_labels
    except ModuleNotFoundError:
        return  # Reading a tape needs the package pyspark; forms offer the declared labels then.
    remember_labels(task.settings, stream, worker_labels(task.settings, stream))


def tell_replay(task: JobOperator, context: Context, result: Json) -> None:
    """Emit the event of the target's asset, if this DAG run has changed the table."""
    replayed = ReplayResult.from_json(result)
    certificate, task.run_name = replayed.certificate, replayed.name
    if certificate is not None and certificate.published:
        asset = table_asset(certificate.target, task.settings.declarations)
        task.asset_name = asset.name
        if not replayed.unchanged or _published_in(task, context):
            extra = certified(certificate, unchanged=replayed.unchanged)
            tell_outlets(task, context, extra)
            tell_through_aliases(context, task.outlets, asset, extra)
            return
    else:
        task.needs_decision = certificate is not None
    # Airflow emits an event for every outlet of a task that succeeds.
    task.outlets = []


def _published_in(task: JobOperator, context: Context) -> bool:
    """Whether the run was published since the DAG run began: by a try that told nobody of it."""
    begun = getattr(context.get("dag_run"), "start_date", None)
    if begun is None or not task.run_name:
        return False
    from capstan.storage.lake import Lake
    from capstan.storage.ledger.runs import Step, read_history

    history = read_history(Lake.at(task.settings.lake), task.run_name)
    published = [row.at for row in history.rows if row.step is Step.DONE]
    return bool(published) and published[-1] >= begun - _CLOCKS


def tell_backfill(task: JobOperator, context: Context, result: Json) -> None:
    """Emit events of the targets' assets, with their certificates: of the jobs before, too."""
    for run in [*_kept(context), *_published(result)]:
        certificate = ReplayResult.from_json(run).certificate
        assert certificate is not None
        asset = table_asset(certificate.target, task.settings.declarations)
        extra = certified(certificate, unchanged=False)
        tell_through_aliases(context, task.outlets, asset, extra)


def keep_published(context: Context, result: Json) -> None:
    """Keep the published runs of a backfill whose task goes on with another job later."""
    store, published = context.get("task_state_store"), _published(result)
    # Airflow before 3.3 has no place for them.
    if store is not None and published:
        store.set(_PUBLISHED, [*_kept(context), *published])


def _kept(context: Context) -> list[dict[str, Any]]:
    store = context.get("task_state_store")
    kept: Any = None if store is None else store.get(_PUBLISHED)
    return list(kept or ())


def _published(result: Json) -> list[dict[str, Any]]:
    """The runs among a backfill's that have changed their tables."""
    found = []
    for run in map(plain, runs_of(result)):
        replayed = ReplayResult.from_json(run)
        certificate = replayed.certificate
        if certificate is not None and certificate.published and not replayed.unchanged:
            found.append(run)
    return found


def tell_rollback(task: JobOperator, context: Context, result: Json) -> None:
    """Emit the event of the table's asset; none if the run was already rolled back."""
    rolled_back = RollbackResult.from_json(result)
    if rolled_back.unchanged:
        task.outlets = []
        return
    asset = table_asset(rolled_back.target, task.settings.declarations)
    task.asset_name = asset.name
    tell_through_aliases(context, task.outlets, asset, result)


@dataclass(frozen=True, slots=True)
class JobKind:
    """What tasks do with the result of a kind of job."""

    tell: Callable[[JobOperator, Context, Json], None] = tell_outlets
    render: Render | None = None
    partly: bool = True  # whether a job that has failed may have a result


KINDS: Mapping[str, JobKind] = {
    "audit": JobKind(render=audits_document),
    "backfill": JobKind(tell_backfill, backfills_document),
    "capture": JobKind(tell_capture),
    "maintain": JobKind(render=maintained_document),
    "plan": JobKind(render=plan_document, partly=False),
    "publish": JobKind(tell_replay, certificate_document, partly=False),
    "replay": JobKind(tell_replay, certificate_document, partly=False),
    "rollback": JobKind(tell_rollback, rollback_document, partly=False),
}
"""By job; the others have asset events of their outlets alone."""
