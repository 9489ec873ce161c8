"""Airflow's `SparkSubmitOperator`, imported without OpenLineage's client unless lineage is on.

The operator imports Airflow's whole OpenLineage provider if it is installed, even if it is off:
about 0.6 seconds of CPU time and 18 MiB in each process that parses a DAG file, a fifth of its
start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROVIDERS = "airflow.providers.openlineage.utils.spark"
_THROUGH = "airflow.providers.common.compat.openlineage.utils.spark"


def _is_needed() -> bool:
    """Whether tasks send lineage, or configure Spark's own integration to do so.

    Also true if the provider is not installed: then there is nothing to avoid.
    """
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return True
    injects = conf.spark_inject_parent_job_info() or conf.spark_inject_transport_info()
    return injects or not conf.is_disabled()


@contextmanager
def _provider_hidden() -> Iterator[None]:
    """Hide the provider from imports in the `with` block; later imports find it."""
    if _is_needed() or _PROVIDERS in sys.modules or _THROUGH in sys.modules:
        yield
        return
    sys.modules[_PROVIDERS] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_PROVIDERS]
        if sys.modules.pop(_THROUGH, None) is not None:
            package, _, name = _THROUGH.rpartition(".")
            delattr(sys.modules[package], name)


with _provider_hidden():
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

__all__ = ["SparkSubmitOperator"]
