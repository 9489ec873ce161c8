"""Capstan under Airflow: operators, a sensor, a task group, and DAGs for all that is declared.

    from capstan.airflow import ReplayOperator, capstan_dags

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
    from capstan.airflow.operators.replay import ReplayOperator

_LAZY = {
    "AuditOperator": "capstan.airflow.operators.audit",
    "BackfillOperator": "capstan.airflow.operators.backfill",
    "CapstanTaskGroup": "capstan.airflow.dags.guest",
    "CaptureOperator": "capstan.airflow.operators.capture",
    "FrontierSensor": "capstan.airflow.operators.frontier_sensor",
    "ReplayOperator": "capstan.airflow.operators.replay",
    "capstan_dags": "capstan.airflow.dags.guest",
    "check_declarations": "capstan.airflow.dags.guest",
}

__all__ = [
    "AuditOperator",
    "BackfillOperator",
    "CapstanTaskGroup",
    "CaptureOperator",
    "FrontierSensor",
    "ReplayOperator",
    "capstan_dags",
    "check_declarations",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'capstan.airflow' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
