"""What a task does with the result of a job: its page, asset events, failure or waiting."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, timezone

from capstan.airflow.lake_declarations import remember_declarations
from capstan.airflow.tasks.asset_events import KINDS, JobKind, Render
from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import failure, reschedule
from capstan.core.json_object import Json

if TYPE_CHECKING:
    from capstan.airflow.tasks.lineage import Lineage

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

    def __init__(
        self, *, wait: timedelta, patience: timedelta, render: Render | None = None, **rest: Any
    ) -> None:
        """Create a task.

        Args:
            wait: The time between two checks.
            patience: The longest wait.
            render: Renders the result as markdown; by default as is usual for its job.
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

    def wait_for_more(self, context: Context, reason: object) -> None:
        """Reschedule the task until its patience ends; this uses up no try."""
        now = timezone.utcnow()
        since = context["ti"].get_first_reschedule_date(context) or now
        if now - since < self._patience:
            _log.info("not complete yet: %s", reason)
            raise reschedule(now + self._wait)

    def _show(self, result: Json) -> None:
        """Show the result on the task's page and in its log."""
        render = self._render_result or self.kind.render
        if render is not None and self.shows_result:
            self.shown = render(result)
            for line in self.shown.splitlines():
                _log.info("%s", line)
