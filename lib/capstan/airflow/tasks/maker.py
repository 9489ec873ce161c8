"""What a task tells its job of itself, for the steps of runs to keep."""

from __future__ import annotations

from dataclasses import replace

from airflow.sdk import Context

from capstan.core.json_object import Json
from capstan.storage.ledger.made_by import KEY, MadeBy


def with_maker(context: Context, request: Json, *, submits: bool = True) -> dict[str, object]:
    """A job's request that also says which DAG run makes it, and for whom.

    It names the task only if that is the one which submits the job, and waits for its end.
    """
    return {**request, KEY: maker(context, submits=submits).to_json()}


def maker(context: Context, *, submits: bool = True) -> MadeBy:
    """The DAG run of a task, its user, and the task if it does the work, or waits for it."""
    ti, run = context["ti"], context.get("dag_run")
    # Airflow before 3.1 does not know its users.
    user = getattr(run, "triggering_user_name", None) or ""
    by = MadeBy(dag=ti.dag_id, dag_run=ti.run_id, user=user)
    if submits:
        index = -1 if ti.map_index is None else ti.map_index
        by = replace(by, task=ti.task_id, try_number=ti.try_number, map_index=index)
    return by
