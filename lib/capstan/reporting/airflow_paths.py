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


def task_beside(by: MadeBy, name: str) -> str:
    """The id of another task in the group of the one that has made something."""
    group, _, _ = by.task.rpartition(".")
    return f"{group}.{name}" if group else name


def decision_path(by: MadeBy) -> str:
    """Where the API takes the decision about a run that a task has left waiting."""
    run = f"dags/{quote(by.dag, safe='')}/dagRuns/{quote(by.dag_run, safe='')}"
    task = quote(task_beside(by, "approve"), safe="")
    return f"api/v2/{run}/taskInstances/{task}/{by.map_index}/hitlDetails"
