"""The plan task: rejects invalid requests, shows the plan, and pins the cut.

It starts Spark only to show which rows of the target would change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import DownstreamTasksSkipped

from capstan.airflow.assets import table_asset
from capstan.airflow.documents import plan_document
from capstan.airflow.lake_files import portable_declarations
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.attempt_name import attempt_template
from capstan.airflow.tasks.failures import as_task, set_usual, skip_following
from capstan.airflow.tasks.job_operator import log_text
from capstan.airflow.tasks.links import CertificateLink, PlanLink, TargetLink
from capstan.airflow.tasks.maker import with_maker
from capstan.core.config.request_fields import GivenFields
from capstan.core.json_object import Json
from capstan.errors import IncompleteError

if TYPE_CHECKING:
    from capstan.replay.preview import Preview

Fields = Callable[[Context], GivenFields] | GivenFields

_PINNED = "capstan_request"


class ReplayArguments(BaseOperator):
    """An operator with the arguments of a replay."""

    template_fields: tuple[str, ...] = ("stream", "target", "workers", "since", "until")

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
        fields: GivenFields | None = None,
        **rest: Any,
    ) -> None:
        """Create a task.

        Args:
            target: A table of the lake or of a catalog, a declared target, or a Delta path.
                Templated.
            stream: The stream; by default that of `replay`. Templated.
            replay: The declared replay that this is a run of.
            workers: Labels or numbers; all by default. Templated.
            since: The first time; from the start by default. Templated.
            until: The first time no longer played; all complete times by default. Templated.
            wait_for_times: Whether to wait until all times of the range are complete.
            fields: The other fields of a request, such as `transform`, `mode` and `peers`.
                Templated.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        super().__init__(**rest)
        self.stream = stream
        self.target = target
        self.replay = replay
        self.workers = workers
        self.since = since
        self.until = until
        self.fields: GivenFields = dict(fields or {})
        self._wait_for_times = wait_for_times

    def replay_fields(self) -> dict[str, object]:
        """The fields of a request that the arguments are."""
        names = ("stream", "replay", "workers", "since", "until")
        given = {name: getattr(self, name) for name in names}
        return {"into": self.target, **given, **self.fields}


def preview_run(operator: CapstanSubmitOperator, context: Context, fields: GivenFields) -> Preview:
    """The preview of a run, at the cut that an earlier try has pinned if it still counts."""
    from capstan.airflow.lake_queries import interrupted_request, preview_request, resolve

    settings, store = operator.settings, context.get("task_state_store")
    request = resolve(settings, fields, bound=operator.named_by_run)
    attempt = operator.job_attempt(context)
    submitted = attempt.prepared()
    saved = None if store is None else store.get(_PINNED)
    pending = submitted is not None and attempt.is_pending(submitted)
    earlier = interrupted_request(settings, request, submitted or saved, pending=pending)
    if earlier is not None:
        operator.log.info("continuing an earlier try at commit %s", earlier.as_of)
    return preview_request(settings, earlier or request)


def require_complete(
    operator: CapstanSubmitOperator, context: Context, previewed: Preview, *, wait: bool
) -> None:
    """Check that the range is complete; if it is worth waiting for, reschedule the task."""
    try:
        previewed.plan.require_complete()
    except IncompleteError as error:
        if wait:
            operator.wait_for_more(context, error.message)
        raise


def pinned_request(previewed: Preview) -> dict[str, Any]:
    """The request of a preview with its cut pinned, of JSON types alone."""
    from capstan.replay.planning.plan import request_at_cuts

    request: dict[str, Any] = json.loads(json.dumps(request_at_cuts(previewed.plan).to_json()))
    return request


def remember_request(context: Context, request: dict[str, Any]) -> None:
    """Keep the pinned request for a retry, which is then the next attempt of the same run."""
    store = context.get("task_state_store")
    if store is not None:
        store.set(_PINNED, request)


class PlanReplayOperator(CapstanSubmitOperator):
    """Plans a replay from the index and the ledgers, without a JVM.

    With `diff`, it then submits the job `plan`, which compares with the target. This runs outside
    the pool of Spark tasks, where it would hold up plans that need no Spark.

    XComs: `request`, the job's request with the cut pinned; `records`, the number of records to
    replay; `plan`, what would be read and written; `others`, whether who has triggered the run may
    not approve it. The cut is pinned so that a retry of the job is the next attempt of the same
    run, even if more was captured since.
    """

    template_fields: tuple[str, ...] = ("plan", "fields", "lake", "config")
    ui_color = "#f3ecd2"

    operator_extra_links: tuple[BaseOperatorLink, ...] = (
        PlanLink(),
        CertificateLink(),
        TargetLink(),
    )

    job = "plan"
    shows_result = False
    shows_plan = True
    # Tasks to skip when the run needs no approval.
    without_approval: tuple[str, ...] = ()

    def __init__(
        self, *, fields: Fields | None = None, wait: timedelta = timedelta(minutes=1), **rest: Any
    ) -> None:
        """Create a plan task.

        Args:
            fields: The fields of a run's request, templated, or a function that gives them.
                `dry_run` stops after the plan, `wait` waits until the range is complete, `diff`
                compares with the target.
            wait: The time between two checks for completeness.
            rest: Other arguments of an operator.
        """
        set_usual(rest, multiple_outputs=True, pool="default_pool")
        super().__init__(wait=wait, **rest)
        self.plan = ""
        self.fields: GivenFields = {} if fields is None or callable(fields) else fields
        self._fields_of = fields if callable(fields) else None
        self.named_by_run = self._fields_of is not None

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan, and return the XComs for the next tasks."""
        from capstan.airflow.lake_queries import approving_replay

        with as_task():
            fields = self._asked(context)
            dry = bool(fields.get("dry_run"))
            previewed = preview_run(self, context, fields)
            plan = previewed.to_json()
            self._show_plan(plan)
            self.asset_name = table_asset(str(plan["target"]), self.settings.declarations).name
            if not dry:
                require_complete(self, context, previewed, wait=bool(fields.get("wait")))
        pinned = pinned_request(previewed)
        if fields.get("diff"):
            plan = self._compared(context, pinned, previewed.records)
        asked = approving_replay(self.settings, pinned["into"])
        others = asked is not None and asked.approve == "others"
        result = {"request": pinned, "records": previewed.records, "plan": plan, "others": others}
        if dry:
            self.log.info("dry run: nothing is replayed")
            raise skip_following(context, result)
        remember_request(context, pinned)
        if self.without_approval and not pinned["approve"]:
            self._skip(context, result)
        return result

    def _asked(self, context: Context) -> GivenFields:
        """The fields of the run's request."""
        return self.fields if self._fields_of is None else self._fields_of(context)

    def _compared(self, context: Context, request: Json, records: int) -> dict[str, object]:
        """The plan with changes to the target, from a Spark job that writes nothing."""
        self.request, self.records = request, records
        plan = super().execute(context)
        self._show_plan(plan)
        return plan

    def _show_plan(self, plan: Json) -> None:
        self.plan = log_text(plan_document(plan))

    def _skip(self, context: Context, result: Json) -> None:
        """Skip the approval tasks without starting them."""
        for key, value in {**result, "return_value": dict(result)}.items():
            context["ti"].xcom_push(key=key, value=value)
        raise DownstreamTasksSkipped(tasks=list(self.without_approval))  # type: ignore[no-untyped-call]


class PlanOperator(ReplayArguments, PlanReplayOperator):
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
        *ReplayArguments.template_fields,
        "attempt",
        *PlanReplayOperator.template_fields,
    )
    # The task that shows the certificate has a name of its own.
    operator_extra_links = (PlanLink(), TargetLink())

    def __init__(self, *, attempt: str | None = None, **rest: Any) -> None:
        """Create a plan task.

        Args:
            attempt: The name of the attempt; by default made of the ids of DAG, task and run.
                Templated.
            rest: The arguments of a `ReplayOperator`. With `dry_run` among the `fields`, all
                downstream tasks are skipped.
        """
        super().__init__(**rest)
        self.attempt = attempt or attempt_template(self.task_id)

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan, put the request into the lake, and return the XComs."""
        from capstan.storage.job_attempts import JobAttempt
        from capstan.storage.lake import Lake

        with as_task():
            attempt = JobAttempt(Lake.at(self.settings.lake), self.attempt)
        result = super().execute(context)
        with as_task():
            pinned = dict(result["request"])  # type: ignore[call-overload]
            request = with_maker(context, pinned, submits=False)
            attempt.prepare(request, portable_declarations(self.settings))
        self.log.info("attempt %s: its request is in %s", attempt.name, attempt.lake.root)
        return {**result, "attempt": attempt.name}

    def _asked(self, _: Context) -> GivenFields:
        """The fields of the run's request."""
        return {"wait": self._wait_for_times, **self.replay_fields()}
