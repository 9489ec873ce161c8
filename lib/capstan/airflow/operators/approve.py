"""The approval task: a person decides between audit and publish, in Airflow's UI or by REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.documents import approval_document
from capstan.airflow.tasks.failures import as_task, no_result, set_usual
from capstan.airflow.tasks.job_operator import log_text
from capstan.airflow.tasks.links import CertificateLink, PlanLink, RunLink
from capstan.errors import InvalidRequestError
from capstan.replay.result import ReplayResult
from capstan.storage.ledger.certificate import Certificate

_NOBODY = "nobody, in time"


class ApproveOperator(ApprovalOperator):
    """Asks a person whether to publish a run that waits after its audit.

    It shows the certificate so far, the audit with its checks, and what publishing would change.
    While waiting it holds no slot; Airflow 3.2 needs a triggerer for it. Its XCom is the request of
    the job `publish`: the decision, by whom and when. A rejection has to be recorded too, so
    downstream tasks are not skipped. The task itself is skipped if no run waits.

    If others have to approve, the approval of who has triggered the DAG run fails the task with
    `CAP-APPROVER`; clear it to ask again. A rejection counts from anybody.
    """

    template_fields = ("result", "others", *ApprovalOperator.template_fields)
    template_fields_renderers = {"result": "json", "body": "md"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    operator_extra_links = (RunLink(), PlanLink(), CertificateLink())
    ui_color = "#fbe3c0"

    def __init__(self, *, result: object, others: object = False, **rest: object) -> None:
        """Create an approval task.

        Args:
            result: The result of the replay: another task's output.
            others: Whether who has triggered the DAG run may not approve. Templated.
            rest: Other arguments of an `ApprovalOperator`: `assigned_users`, `notifiers`, and with
                `response_timeout` also `defaults`, the decision if nobody answers.
        """
        # Includes the DAG's parameters; the form asks only for those of the task itself.
        given = rest.get("params")
        params = given if isinstance(given, ParamsDict) else ParamsDict(given or {})  # type: ignore[arg-type]
        if "reason" not in params:
            about: dict[str, Any] = {"title": "Reason", "description": "Optional"}
            params["reason"] = Param("", type=["string", "null"], source="task", **about)
        rest["params"] = params
        set_usual(rest, subject="Publish the replayed rows?", body="")
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result
        self.run_name: str | None = None
        self.others = others

    def execute(self, context: Context) -> object:
        """Ask; `execute_complete` continues after the decision."""
        certificate = self._waiting()
        self.subject = f"Publish {certificate.run} into {certificate.target}?"
        by = context["dag_run"].triggering_user_name if self.others else None
        document = approval_document(certificate, by)
        log_text(document)
        self.body = document.markdown
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Convert the decision to the request of the job `publish`."""
        # Not the parent's method, which skips downstream tasks on rejection.
        response = super(ApprovalOperator, self).execute_complete(context=context, event=event)
        approved = response["chosen_options"] == [self.APPROVE]
        user = response["responded_by_user"] or {}
        if approved and self.others:
            with as_task():
                _require_other(context, user)
        request: dict[str, object] = {
            "run": self._waiting().run,
            "approved": approved,
            "by": user.get("name") or user.get("id") or _NOBODY,
            "at": response["responded_at"].isoformat(timespec="seconds"),
            "reason": str(response["params_input"].get("reason") or ""),
        }
        decision = "approved" if approved else "rejected"
        by, at, reason = request["by"], request["at"], request["reason"]
        self.log.info("%s by %s at %s: %s", decision, by, at, reason)
        return request

    def _waiting(self) -> Certificate:
        if not isinstance(self.result, Mapping):
            raise no_result()
        replayed = ReplayResult.from_json(self.result)
        certificate = replayed.certificate
        if replayed.unchanged or certificate is None or certificate.published:
            raise AirflowSkipException("no run waits for approval")
        self.run_name = certificate.run
        return certificate


def _require_other(context: Context, user: Mapping[str, str]) -> None:
    """Check that a decision is not of the person who has triggered the DAG run."""
    by = context["dag_run"].triggering_user_name
    if by is not None and by in (user.get("name"), user.get("id")):
        raise InvalidRequestError(
            "CAP-APPROVER",
            f"{by} triggered this run, and a declared replay into its table has approve: others",
            "clear this task, and let somebody else approve; nothing was published",
        )
