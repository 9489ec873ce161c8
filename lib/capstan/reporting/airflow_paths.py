"""Paths of pages of Airflow's UI and of its API, below its address."""

from __future__ import annotations

from urllib.parse import quote

from capstan.storage.ledger.made_by import MadeBy


def run_path(dag: str, run: str) -> str:
    """The page of a DAG run."""
    return f"dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}"


def task_path(dag: str, run: str, task: str, map_index: int = -1) -> str:
    """The page of a task in a DAG run, which begins with its log."""
    mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
    return f"{run_path(dag, run)}/tasks/{quote(task, safe='')}{mapped}"


def log_path(by: MadeBy) -> str:
    """The log of the try that has made something."""
    return f"{task_path(by.dag, by.dag_run, by.task, by.map_index)}?try_number={by.try_number}"


def decision_path(by: MadeBy) -> str:
    """Where the API takes the decision about a run that a task has left waiting.

    The task `approve` is in the same task group.
    """
    group, _, _ = by.task.rpartition(".")
    run = f"dags/{quote(by.dag, safe='')}/dagRuns/{quote(by.dag_run, safe='')}"
    task = quote(f"{group}.approve" if group else "approve", safe="")
    return f"api/v2/{run}/taskInstances/{task}/{by.map_index}/hitlDetails"
