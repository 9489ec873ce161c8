"""Capstan under Airflow: operators, a sensor, a task group, and DAGs for all that is declared.

    from capstan.airflow import ReplayOperator, capstan_dags

`PlanOperator` and `ResultOperator` go before and after any operator that submits a job to Spark.

Importing this package imports neither Airflow nor Spark. Its modules import Airflow; only running
tasks import Spark or read a lake.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capstan.airflow.dags.guest import CapstanTaskGroup, capstan_dags, check_declarations
    from capstan.airflow.operators.audit import AuditOperator
    from capstan.airflow.operators.backfill import BackfillOperator
    from capstan.airflow.operators.capture import CaptureOperator
    from capstan.airflow.operators.frontier_sensor import FrontierSensor
    from capstan.airflow.operators.plan_job import PlanOperator
    from capstan.airflow.operators.replay import ReplayOperator
    from capstan.airflow.operators.result import ResultOperator
    from capstan.airflow.tasks.attempt_name import attempt_template

_LAZY = {
    "AuditOperator": "capstan.airflow.operators.audit",
    "BackfillOperator": "capstan.airflow.operators.backfill",
    "CapstanTaskGroup": "capstan.airflow.dags.guest",
    "CaptureOperator": "capstan.airflow.operators.capture",
    "FrontierSensor": "capstan.airflow.operators.frontier_sensor",
    "PlanOperator": "capstan.airflow.operators.plan_job",
    "ReplayOperator": "capstan.airflow.operators.replay",
    "ResultOperator": "capstan.airflow.operators.result",
    "attempt_template": "capstan.airflow.tasks.attempt_name",
    "capstan_dags": "capstan.airflow.dags.guest",
    "check_declarations": "capstan.airflow.dags.guest",
}

__all__ = [
    "AuditOperator",
    "BackfillOperator",
    "CapstanTaskGroup",
    "CaptureOperator",
    "FrontierSensor",
    "PlanOperator",
    "ReplayOperator",
    "ResultOperator",
    "attempt_template",
    "capstan_dags",
    "check_declarations",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'capstan.airflow' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "airflow":
            raise
        needed = "capstan.airflow needs Airflow with its Spark provider"
        message = f"{error}: {needed} (pip install 'capstan-replay[airflow]')"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
