"""The plan task: rejects invalid requests, shows the plan, and pins the cut.

It starts Spark only to show which rows of the target would change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Context
from airflow.sdk.exceptions import DownstreamTasksSkipped

from capstan.airflow.markdown import plan_markdown
from capstan.airflow.operators.failures import as_task
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.errors import IncompleteError

if TYPE_CHECKING:
    from capstan.replay.preview import Preview

Fields = Callable[[Context], Mapping[str, object]]

_PINNED = "capstan_request"


class PlanReplayOperator(CapstanSubmitOperator):
    """Plans a replay from the index and the ledgers, without a JVM.

    With `diff`, it then submits the app `plan`, which compares with the target. This runs outside
    the pool of Spark tasks, where it would hold up plans that need no Spark.

    XComs: `request`, the app's request with the cut pinned; `records`, the number of records to
    replay; `plan`, what would be read and written. The cut is pinned so that a retry of the app is
    the next attempt of the same run, even if more was captured since.
    """

    template_fields = ("plan",)
    template_fields_renderers = {"plan": "md"}  # noqa: RUF012
    ui_color = "#f3ecd2"

    # Tasks to skip when the run needs no approval.
    without_approval: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        setting: Settings,
        fields: Fields,
        wait: timedelta = timedelta(minutes=1),
        **rest: object,
    ) -> None:
        """Create a plan task.

        Args:
            setting: The settings.
            fields: Gives the fields of a run's request. `dry_run` stops after the plan, `wait`
                waits until the range is complete, `diff` compares with the target.
            wait: The time between two checks for completeness.
            rest: Other arguments of an operator.
        """
        rest.setdefault("multiple_outputs", True)
        rest.setdefault("pool", "default_pool")
        super().__init__(app="plan", setting=setting, request={}, wait=wait, **rest)  # type: ignore[arg-type]
        self.plan = ""
        self._fields = fields

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan, and return the XComs for the next tasks."""
        from capstan.airflow.lake_queries import (
            interrupted_request,
            pin_cut,
            preview_request,
            resolve,
        )

        store = context.get("task_state_store")
        with as_task():
            fields = self._fields(context)
            dry, wait = bool(fields.get("dry_run")), bool(fields.get("wait"))
            request = resolve(self._setting, fields)
            saved = None if store is None else store.get(_PINNED)
            earlier = interrupted_request(self._setting, request, saved)
            if earlier is not None:
                self.log.info("continuing an earlier try at commit %s", earlier.as_of)
            previewed = preview_request(self._setting, earlier or request)
            plan = previewed.to_json()
            self._show_plan(plan)
            if not dry:
                self._require_complete(context, previewed, wait=wait)
        # The task state store takes JSON types only, not tuples.
        pinned = json.loads(json.dumps(pin_cut(previewed).to_json()))
        if fields.get("diff"):
            plan = self._compared(context, pinned, previewed.content.records)
        result = {"request": pinned, "records": previewed.content.records, "plan": plan}
        if dry:
            self._stop(context, result)
        if store is not None:
            store.set(_PINNED, pinned)
        if self.without_approval and not pinned["approve"]:
            self._skip(context, result)
        return result

    def _compared(
        self, context: Context, request: Mapping[str, object], records: int
    ) -> dict[str, object]:
        """The plan with changes to the target, from a Spark app that writes nothing."""
        self.request, self.records = request, records
        plan = super().execute(context)
        self._show_plan(plan)
        return plan

    def _show_plan(self, plan: Mapping[str, object]) -> None:
        self.plan = plan_markdown(plan)
        for line in self.plan.splitlines():
            self.log.info("%s", line)

    def _require_complete(self, context: Context, previewed: Preview, *, wait: bool) -> None:
        try:
            previewed.plan.require_complete()
        except IncompleteError as error:
            if wait:
                self._wait_for_more(context, error.message)
            raise

    def _skip(self, context: Context, result: Mapping[str, object]) -> None:
        """Skip the approval tasks without starting them."""
        for key, value in {**result, "return_value": dict(result)}.items():
            context["ti"].xcom_push(key=key, value=value)
        raise DownstreamTasksSkipped(tasks=list(self.without_approval))  # type: ignore[no-untyped-call]

    def _stop(self, context: Context, result: Mapping[str, object]) -> None:
        """Skip all downstream tasks, with the plan as the result."""
        self.log.info("dry run: nothing is replayed")
        context["ti"].xcom_push(key="return_value", value=dict(result))
        following = context["task"].get_flat_relative_ids(upstream=False)
        raise DownstreamTasksSkipped(tasks=sorted(following))  # type: ignore[no-untyped-call]
