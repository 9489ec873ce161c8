"""The task in which a person decides between audit and publish: in Airflow's UI, or by REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.markdown import approval_markdown
from capstan.airflow.operators.failures import TaskRefusedError, say_last

_NOBODY = "nobody, in time"


class ApproveOperator(ApprovalOperator):
    """Asks a person whether a run that waits after its audit is to be published.

    It shows the certificate as far as it goes, the audit with its checks, and what publishing would
    change. While it waits it holds no slot, and needs no triggerer. Its XCom is the request of the
    app `publish`: what was decided, by whom and when. What was rejected has to be written down as
    well, so nothing that follows is skipped. Where nothing waits it is skipped itself.
    """

    template_fields = ("result", *ApprovalOperator.template_fields)
    template_fields_renderers = {"result": "json", "body": "md"}  # noqa: RUF012
    overwrite_rtif_after_execution = True
    ui_color = "#fbe3c0"

    def __init__(self, *, result: object, **rest: object) -> None:
        """Prepare a task that asks.

        Args:
            result: The result of the replay: another task's output.
            rest: Anything that an `ApprovalOperator` takes: `assigned_users`, `notifiers`, and with
                `response_timeout` also `defaults`, what is decided when nobody answers.
        """
        # In a DAG with parameters those are given here as well; only the task's own are asked for.
        given = rest.get("params")
        params = given if isinstance(given, ParamsDict) else ParamsDict(given or {})  # type: ignore[arg-type]
        if "reason" not in params:
            about: dict[str, Any] = {"title": "Reason", "description": "Why; may be empty"}
            params["reason"] = Param("", type=["string", "null"], source="task", **about)
        rest["params"] = params
        rest.setdefault("subject", "Publish what was replayed?")
        rest.setdefault("body", "")
        rest.setdefault("on_failure_callback", say_last)
        super().__init__(**rest)  # type: ignore[arg-type]
        self.result = result

    def execute(self, context: Context) -> object:
        """Ask; `execute_complete` goes on once it was decided."""
        result = self._waiting()
        self.subject = f"Publish {result.get('run')} into {result.get('target')}?"
        self.body = approval_markdown(result)
        for line in self.body.splitlines():
            self.log.info("%s", line)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Take the decision; the request of the app `publish`."""
        # Not the parent's own, which skips what follows a rejection.
        decided = super(ApprovalOperator, self).execute_complete(context=context, event=event)
        approved = decided["chosen_options"] == [self.APPROVE]
        user = decided["responded_by_user"] or {}
        found: dict[str, object] = {
            "run": str(self._waiting()["run"]),
            "approved": approved,
            "by": user.get("name") or user.get("id") or _NOBODY,
            "at": decided["responded_at"].isoformat(timespec="seconds"),
            "reason": str(decided["params_input"].get("reason") or ""),
        }
        said = "approved" if approved else "rejected"
        self.log.info("%s by %s at %s: %s", said, found["by"], found["at"], found["reason"])
        return found

    def _waiting(self) -> Mapping[str, object]:
        if not isinstance(self.result, Mapping):
            raise TaskRefusedError("CAP-RESULT: the task before has left no result (run it again)")
        if self.result.get("stood") or self.result.get("published") is not False:
            raise AirflowSkipException("nothing waits to be approved")
        return self.result
