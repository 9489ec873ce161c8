"""The settings of a task: given by Capstan's own DAGs, or found when the task of a guest runs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from airflow.sdk import BaseOperator

from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import as_task


class Placed(Protocol):
    """An operator with the templated fields `lake` and `config`."""

    lake: str | None
    config: str | None


@as_task()
def task_settings(operator: Placed, given: Settings | None) -> Settings:
    """The settings that a DAG has given, or of the environment; the operator's own places win."""
    if given is not None and operator.lake is None and operator.config is None:
        return given
    dag = operator.get_dag() if isinstance(operator, BaseOperator) else None
    dag_file = Path("dag.py") if dag is None else dag.fileloc
    return read_settings(dag_file, lake=operator.lake, config=operator.config)
