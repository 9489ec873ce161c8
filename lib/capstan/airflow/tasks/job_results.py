"""What a task does with the result of a job: its page, asset events, failure or waiting."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, timezone

from capstan.airflow.lake_declarations import remember_declarations
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.asset_events import KINDS, JobKind, Render
from capstan.airflow.tasks.failures import failure, reschedule
from capstan.airflow.tasks.task_settings import task_settings
from capstan.core.json_object import Json

if TYPE_CHECKING:
    from capstan.airflow.tasks.lineage import Lineage

_log = logging.getLogger(__name__)


class JobResults:
    """A part of operators that submit a job, and of the one that takes the result of another's.

    Attributes:
        config: The declaration file, if not that of the settings.
    """

    outlets: list[Any]
    lake: str | None
    config: str | None
    shown: str
    run_name: str | None = None
    asset_name: str | None = None
    _job: str
    _result: Json | None
    _given: Settings | None
    _render_result: Render | None
    _wait: timedelta
    _patience: timedelta

    @property
    def settings(self) -> Settings:
        """The settings: those that were given, or of the environment as the task finds it."""
        return task_settings(self, self._given)

    def take(self, context: Context, result: Json) -> None:
        """Show a result, and tell it to the assets."""
        self._result = result
        self._show(result)
        self.kind.tell(self, context, result)
        if self._given is not None:
            remember_declarations(self._given)

    def take_failure(self, context: Context, code: int, result: Json) -> Exception:
        """Push the error of a job as XCom, show its result, and return the exception to raise."""
        self._result = result
        if self.kind.partly:
            self._show(result)
        context["ti"].xcom_push(key="return_value", value=result)
        return failure(code, result)

    @property
    def kind(self) -> JobKind:
        """What tasks do with the result of its job."""
        return KINDS.get(self._job, JobKind())

    def get_openlineage_facets_on_complete(self, _: object) -> Lineage:
        """The tables that the task read and wrote; for a failed task, up to the failure.

        Only Airflow's OpenLineage provider calls this, if installed and given a transport. It logs
        errors, and fails no task for them.
        """
        # Not at the top: parsing a DAG file should not import OpenLineage's client.
        from capstan.airflow.tasks.lineage import lineage

        return lineage(self._job, self.settings.lake, self._result, self.settings.declarations)

    def wait_for_more(self, context: Context, reason: object) -> None:
        """Reschedule the task until its patience ends; this uses up no try."""
        now = timezone.utcnow()
        since = context["ti"].get_first_reschedule_date(context) or now
        if now - since < self._patience:
            _log.info("not complete yet: %s", reason)
            raise reschedule(now + self._wait)

    def _show(self, result: Json) -> None:
        """Show the result on the task's page and in its log."""
        if self._render_result is not None:
            self.shown = self._render_result(result)
            for line in self.shown.splitlines():
                _log.info("%s", line)
