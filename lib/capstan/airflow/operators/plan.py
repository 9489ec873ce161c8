"""The task that plans a replay: refuses what cannot be meant, shows the rest, and pins the cut.

Only where it is asked which rows of the target would change it starts Spark.
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

Asked = Callable[[Context], Mapping[str, object]]

_PINNED = "capstan_request"


class PlanReplayOperator(CapstanSubmitOperator):
    """Plans a replay from the index and the ledgers alone, without a JVM.

    Where `diff` is asked for it then submits the app `plan`, which compares with the target; not in
    the pool of Spark's tasks, as it would keep plans waiting that need no Spark.

    It leaves XComs: `request`, with the cut pinned, for the app; `records`, how many it plays; and
    `plan`, what it would read and write. The cut is pinned so that a retry of the app is the next
    attempt of the same run, also when more was captured since.
    """

    template_fields = ("plan",)
    template_fields_renderers = {"plan": "md"}  # noqa: RUF012
    ui_color = "#f3ecd2"

    # Tasks for which there is nothing to do unless a person's approval is asked for.
    without_approval: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        setting: Settings,
        asked: Asked,
        wait: timedelta = timedelta(minutes=1),
        **rest: object,
    ) -> None:
        """Prepare a task that plans.

        Args:
            setting: Where Capstan works.
            asked: Gives the request's fields of a run; `dry_run` stops after the plan, `wait` has
                the task wait until the range is complete, `diff` has it compare with the target.
            wait: How long it waits before it asks again.
            rest: Anything that an operator takes.
        """
        rest.setdefault("multiple_outputs", True)
        rest.setdefault("pool", "default_pool")
        super().__init__(app="plan", setting=setting, request={}, wait=wait, **rest)  # type: ignore[arg-type]
        self.plan = ""
        self._fields = asked

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan; what the next tasks need."""
        from capstan.airflow.lake_queries import begun, foresee, pinned, resolve

        store = context.get("task_state_store")
        with as_task():
            fields = self._fields(context)
            dry, wait = bool(fields.get("dry_run")), bool(fields.get("wait"))
            request = resolve(self._setting, fields)
            earlier = None if store is None else begun(self._setting, request, store.get(_PINNED))
            if earlier is not None:
                self.log.info("an earlier try has begun at commit %s: going on", earlier.as_of)
            found = foresee(self._setting, earlier or request)
            shown = found.to_json()
            self._tell(shown)
            if not dry:
                self._require_complete(context, found, wait=wait)
        # What a task keeps has to be JSON, and a tuple is none.
        asked = json.loads(json.dumps(pinned(found).to_json()))
        if fields.get("diff"):
            shown = self._compared(context, asked, found.played.records)
        result = {"request": asked, "records": found.played.records, "plan": shown}
        if dry:
            self._stop(context, result)
        if store is not None:
            store.set(_PINNED, asked)
        if self.without_approval and not asked["approve"]:
            self._skip(context, result)
        return result

    def _compared(
        self, context: Context, asked: Mapping[str, object], records: int
    ) -> dict[str, object]:
        """The plan with what would change in the target: one Spark app, which writes nothing."""
        self.request, self.records = asked, records
        shown = super().execute(context)
        self._tell(shown)
        return shown

    def _tell(self, plan: Mapping[str, object]) -> None:
        self.plan = plan_markdown(plan)
        for line in self.plan.splitlines():
            self.log.info("%s", line)

    def _require_complete(self, context: Context, found: Preview, *, wait: bool) -> None:
        try:
            found.plan.require_complete()
        except IncompleteError as error:
            if wait:
                self._wait_for_more(context, error.message)
            raise

    def _skip(self, context: Context, result: Mapping[str, object]) -> None:
        """Skip the tasks of an approval that nobody asked for: they cost not even a start."""
        for key, value in {**result, "return_value": dict(result)}.items():
            context["ti"].xcom_push(key=key, value=value)
        raise DownstreamTasksSkipped(tasks=list(self.without_approval))  # type: ignore[no-untyped-call]

    def _stop(self, context: Context, result: Mapping[str, object]) -> None:
        """Skip all that follows, with the plan as the result."""
        self.log.info("dry run: nothing is replayed")
        context["ti"].xcom_push(key="return_value", value=dict(result))
        following = context["task"].get_flat_relative_ids(upstream=False)
        raise DownstreamTasksSkipped(tasks=sorted(following))  # type: ignore[no-untyped-call]
