"""Capstan under Airflow: operators, a sensor, a task group, and DAGs for all that is declared.

    from capstan.airflow import ReplayOperator, capstan_dags

`PlanOperator` and `ResultOperator` go before and after any operator that submits a job to Spark.

Importing this package imports neither Airflow nor Spark. Its modules import Airflow; only running
tasks import Spark or read a lake.
"""

from __future__ import annotations

from typing import Any

from capstan.core.public_names import names_of, public_name


def __getattr__(name: str) -> Any:
    try:
        return public_name(__name__, name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "airflow":
            raise
        needed = "capstan.airflow needs Airflow with its Spark provider"
        message = f"{error}: {needed} (pip install 'capstan-replay[airflow]')"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *names_of(__name__)})
