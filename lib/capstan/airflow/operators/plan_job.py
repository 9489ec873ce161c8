"""The operator that plans a replay which another operator submits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from capstan.airflow.lake_declarations import portable_declarations
from capstan.airflow.operators.plan import PlanReplayOperator, replay_fields
from capstan.airflow.tasks.attempt_name import attempt_template
from capstan.airflow.tasks.failures import as_task
from capstan.core.config.request_fields import GivenFields


class PlanOperator(PlanReplayOperator):
    """Plans a replay that another operator submits, and puts its request into the lake.

    The job `python -m capstan.jobs replay --lake LAKE --attempt NAME` finds request and
    declarations there, under the name that is the attribute `attempt`; a `ResultOperator` with the
    same name takes its result:

        plan = PlanOperator(task_id="plan", stream="orders", target="oslo")
        job = BashOperator(task_id="job", bash_command=f"... --attempt {plan.attempt}")
        plan >> job >> ResultOperator(task_id="result", attempt=plan.attempt)

    XComs: `attempt`, the rendered name; `request`, the request with the cut pinned; `records`, the
    number of records to replay; `plan`, what would be read and written.
    """

    template_fields = (
        "stream",
        "target",
        "workers",
        "since",
        "until",
        "attempt",
        *PlanReplayOperator.template_fields,
    )

    def __init__(
        self,
        *,
        target: str,
        stream: str | None = None,
        replay: str | None = None,
        workers: Sequence[str] | str | None = None,
        since: str | None = None,
        until: str | None = None,
        wait_for_times: bool = True,
        attempt: str | None = None,
        fields: GivenFields | None = None,
        **rest: Any,
    ) -> None:
        """Create a plan task; its arguments are those of a `ReplayOperator`, and more.

        Args:
            attempt: The name of the attempt; by default made of the ids of DAG, task and run.
                Templated.
            fields: The other fields of a request, such as `transform`, `mode` and `peers`; with
                `dry_run`, all downstream tasks are skipped. Templated.
            rest: Other arguments of an operator, and `lake` and `config`.
        """
        super().__init__(fields=dict(fields or {}), **rest)
        self.stream = stream
        self.target = target
        self.replay = replay
        self.workers = workers
        self.since = since
        self.until = until
        self.attempt = attempt or attempt_template(self.task_id)
        self._wait_for_times = wait_for_times

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan, put the request into the lake, and return the XComs."""
        from capstan.storage.job_attempts import JobAttempt
        from capstan.storage.lake import Lake

        with as_task():
            attempt = JobAttempt(Lake.at(self.settings.lake), self.attempt)
        result = super().execute(context)
        with as_task():
            attempt.prepare(dict(result["request"]), portable_declarations(self.settings))  # type: ignore[call-overload]
        self.log.info("attempt %s: its request is in %s", attempt.name, attempt.lake.root)
        return {**result, "attempt": attempt.name}

    def _asked(self, _: Context) -> GivenFields:
        """The fields of the run's request."""
        return {"wait": self._wait_for_times, **replay_fields(self)}
