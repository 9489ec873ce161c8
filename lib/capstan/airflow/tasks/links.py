"""Links from a replay task to its results; the task pushes them, the web server shows them."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.types import TaskInstanceKey


def page(path: str) -> str:
    """The address of a page of this Airflow's UI."""
    base: str = conf.get("api", "base_url", fallback="/") or "/"
    return f"{base.rstrip('/')}/{path}"


class CertificateLink(BaseOperatorLink):
    """Link from a replay task to the certificate of its run."""

    name = "Certificate"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of the task that shows the certificate of the same run.

        It is the task itself, or else the task `certificate` of its task group.
        """
        task = ti_key.task_id
        if not getattr(operator, "shows_result", False):
            group = task.rpartition(".")[0]
            task = f"{group}.certificate" if group else "certificate"
        run = f"dags/{quote(ti_key.dag_id)}/runs/{quote(ti_key.run_id, safe='')}"
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        return page(f"{run}/tasks/{quote(task)}{mapped}/rendered_templates")


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
