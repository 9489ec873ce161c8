"""Defaults of Capstan's DAGs and of their tasks: ids, tags, texts, retries, failure callbacks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from capstan.airflow.dags import docs
from capstan.airflow.dags.notifications import Callback, of_concerned, on_failure
from capstan.airflow.dags.timetables import BEGINNING
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import callbacks_of
from capstan.core.config import Replay, Stream

RETRIES = 2
RETRY_DELAY = timedelta(seconds=30)


def new_dag(
    settings: Settings,
    kind: str,
    name: str | None = None,
    *,
    tag: str,
    schedule: Any,
    doc_md: str,
    **arguments: Any,
) -> DAG:
    """Create a DAG with the id `PREFIX<kind>`, or `PREFIX<kind>__<name>`, and the usual tags."""
    return DAG(
        settings.dag_id(kind, name),
        schedule=schedule,
        doc_md=doc_md + docs.FAILURES,
        tags=list(dict.fromkeys(("capstan", tag, *settings.tags))),
        default_args=dict(settings.default_args),
        catchup=False,
        **{"start_date": BEGINNING, **arguments},
    )


def task_defaults(
    settings: Settings, declared: Stream | Replay | None = None, also: Callback | None = None
) -> dict[str, Any]:
    """Retries and failure callbacks, as keyword arguments of an operator.

    Args:
        settings: The settings.
        declared: The declaration whose notifiers a failure is told to.
        also: Another callback, such as one that finds the declarations that a failure is about.
    """
    callbacks = on_failure(settings, declared)
    if also is not None:
        # The error's own line stays last.
        callbacks.insert(-1, also)
    given = settings.default_args
    return {
        "retries": given.get("retries", RETRIES),
        "retry_delay": given.get("retry_delay", RETRY_DELAY),
        "on_failure_callback": [*callbacks_of(given.get("on_failure_callback")), *callbacks],
    }


def task_arguments(
    settings: Settings, task_id: str, declared: Stream | Replay | None = None, text: str = ""
) -> dict[str, Any]:
    """The usual keyword arguments of an operator; by default, its id names its text.

    Failures of a task over all declarations also reach the notifiers of those that they name.
    """
    also = of_concerned(settings) if declared is None else None
    usual = task_defaults(settings, declared, also)
    doc_md = docs.TASKS[text or task_id]
    return {"task_id": task_id, "settings": settings, "doc_md": doc_md, **usual}
