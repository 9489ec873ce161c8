"""Links from tasks of a replay to its results; tasks push them, and the web server shows them.

A link is empty, and then not shown, while there is nothing that it could lead to.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.types import TaskInstanceKey

from capstan.reporting.airflow_paths import task_path


def page(path: str) -> str:
    """The address of a page of this Airflow's UI."""
    base: str = conf.get("api", "base_url", fallback="/") or "/"
    return f"{base.rstrip('/')}/{path}"


def _task_page(key: TaskInstanceKey, beside: str | None, part: str) -> str:
    """A part of the page of a task, or of another one in its task group."""
    task = key.task_id
    if beside is not None:
        group = task.rpartition(".")[0]
        task = f"{group}.{beside}" if group else beside
    return page(f"{task_path(key.dag_id, key.run_id, task, key.map_index)}/{part}")


class PlanLink(BaseOperatorLink):
    """Link to the plan of a replay: what would be read and written."""

    name = "Plan"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of the task that shows the plan: the task itself, or `plan` of its group."""
        own = getattr(operator, "shows_plan", False)
        return _task_page(ti_key, None if own else "plan", "rendered_templates")


class ApprovalLink(BaseOperatorLink):
    """Link to the decision about a run that waits for one, or has waited."""

    name = "Approval"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The required action of the task `approve` of the same group."""
        asks = getattr(operator, "needs_decision", False)
        return _task_page(ti_key, "approve", "required_actions") if asks else ""


class CertificateLink(BaseOperatorLink):
    """Link from a replay task to the certificate of its run."""

    name = "Certificate"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of the task that shows the certificate of the same run.

        It is the task itself, or else the task `certificate` of its task group.
        """
        own = getattr(operator, "shows_result", False)
        return _task_page(ti_key, None if own else "certificate", "rendered_templates")


class RunLink(BaseOperatorLink):
    """Link from a replay task to its run on Capstan's page: audit, findings, steps."""

    name = "Run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Capstan's page of the run; the list of runs if the task has none."""
        run = getattr(operator, "run_name", None)
        return page("plugin/capstan/capstan/runs" + (f"/{quote(run, safe='')}" if run else ""))


class TargetLink(BaseOperatorLink):
    """Link from a replay task to its target's asset: its events and consumers."""

    name = "Target"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of assets that match the target's name; of all assets while it is unknown."""
        asset = getattr(operator, "asset_name", None)
        return page("assets" + (f"?{urlencode({'name_pattern': asset})}" if asset else ""))
