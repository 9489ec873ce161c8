"""Operators of replays: one that also plans, and those that follow a plan or an approval.

The last one shows the certificate.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk import BaseOperator, BaseOperatorLink, Context

from capstan.airflow.assets import REPLAYED
from capstan.airflow.documents import certificate_document
from capstan.airflow.operators.plan import (
    ReplayArguments,
    pinned_request,
    preview_run,
    remember_request,
    require_complete,
)
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.failures import as_task, no_result, set_usual
from capstan.airflow.tasks.job_operator import Render, log_text, named_run
from capstan.airflow.tasks.links import ApprovalLink, CertificateLink, PlanLink, RunLink, TargetLink
from capstan.airflow.tasks.maker import maker
from capstan.core.json_object import Json
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.storage.ledger.made_by import making


class SubmitReplayOperator(CapstanSubmitOperator):
    """Submits a replay; the event of its target's asset carries the certificate."""

    job = "replay"
    shows_result = False
    # The declared replay whose backfills its run belongs to: while they are paused, it waits.
    backfills: str | None = None
    operator_extra_links: tuple[BaseOperatorLink, ...] = (
        RunLink(),
        PlanLink(),
        ApprovalLink(),
        CertificateLink(),
        TargetLink(),
    )

    def why_not_now(self, request: Json) -> CapstanError | None:
        """Why the replay may not be submitted at this moment; None if it may."""
        return None if self.backfills is None else self.why_held(self.backfills)


class PublishOperator(SubmitReplayOperator):
    """Submits the publish of an approved run, or records its rejection, which needs no Spark.

    Its request is the output of an `ApproveOperator`. A rejected run fails the task with
    `CAP-REJECTED`, without a retry.
    """

    job = "publish"
    needs_decision = True

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Publish the run, and return its certificate, or reject it."""
        with as_task():
            request = self._read_request()
            if request.get("approved", True):
                return super().execute(context)
            # Not at the top: parsing a DAG file should not import table readers.
            from capstan.api.context import Context as Lakeside
            from capstan.jobs.handlers import publish

            with making(maker(context)):
                rejection = publish(request, Lakeside(self.settings.lake))
        error = {} if rejection.refusal is None else rejection.refusal.summary()
        result = {**rejection.value, **error}
        raise self.take_failure(context, CheckFailedError.exit_code, result)


class ReplayOperator(ReplayArguments, SubmitReplayOperator):
    """Plans a replay, submits it, and shows its certificate: one task, for any DAG.

    The plan pins the cut, so that a retry of the task is the next attempt of the same run. Times
    that are not complete yet are waited for, without holding a slot.

    The XCom is the certificate. It is under *Rendered Templates*, too, where the link *Certificate*
    leads. A table that requires approval is refused: use a `CapstanTaskGroup` for it.
    """

    template_fields = (
        *ReplayArguments.template_fields,
        "fields",
        *SubmitReplayOperator.template_fields,
    )
    operator_extra_links = (RunLink(), CertificateLink(), TargetLink())
    shows_result = True
    # The declarations, which may name the asset, are read when the task runs.
    usual_outlets = (REPLAYED,)

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Plan, submit the job at the pinned cut, and return the certificate."""
        with as_task():
            for name in ("dry_run", "diff", "wait"):
                if name in self.fields:
                    raise InvalidRequestError(
                        "CAP-REQUEST",
                        f"a ReplayOperator has no field {name!r}",
                        "use a CapstanTaskGroup, or wait_for_times",
                        key=name,
                    )
            previewed = preview_run(self, context, self.replay_fields())
            if previewed.plan.request.approve:
                raise InvalidRequestError(
                    "CAP-REQUEST",
                    f"a run into {self.target} needs approval, which this task cannot ask for",
                    "use a CapstanTaskGroup",
                )
            require_complete(self, context, previewed, wait=self._wait_for_times)
        self.request = pinned_request(previewed)
        self.records = previewed.records
        remember_request(context, self.request)
        return super().execute(context)


class CertificateOperator(BaseOperator):
    """Shows the result of another task as text, which is its XCom.

    The text is on the task's page under Rendered Templates, where links of other tasks lead.
    """

    template_fields = ("certificate", "result")
    template_fields_renderers = {"result": "json"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    operator_extra_links = (RunLink(), PlanLink())
    ui_color = "#dcefd6"

    def __init__(
        self, *, result: object, render: Render = certificate_document, **rest: object
    ) -> None:
        """Create a task that shows another task's output.

        Args:
            result: The output; from a list, the first one that exists.
            render: Makes text of it.
            rest: Other arguments of an operator.
        """
        set_usual(rest)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result
        self.certificate = ""
        self.run_name: str | None = None
        self._render_result = render

    def execute(self, context: Context) -> str:
        """Show the result, and return its text."""
        outputs = self.result if isinstance(self.result, list) else [self.result]
        result = next((output for output in outputs if isinstance(output, Mapping)), None)
        if result is None:
            raise no_result()
        self.run_name = named_run(result)
        self.certificate = log_text(self._render_result(result))
        return self.certificate
