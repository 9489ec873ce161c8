"""Airflow's operator for Spark, without OpenLineage's client where nothing is told to it.

The operator imports all of Airflow's OpenLineage provider wherever that is installed, switched on
or not: a fifth to half a second of processor time, in each process that reads a DAG file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROVIDERS = "airflow.providers.openlineage.utils.spark"
_THROUGH = "airflow.providers.common.compat.openlineage.utils.spark"


def _is_wanted() -> bool:
    """Whether tasks tell of lineage, or have Spark's own integration tell of it.

    Where the provider is not installed there is nothing to be spared.
    """
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return True
    injects = conf.spark_inject_parent_job_info() or conf.spark_inject_transport_info()
    return injects or not conf.is_disabled()


@contextmanager
def _spared() -> Iterator[None]:
    """Import as where the provider is not installed; whoever imports later gets it all the same."""
    if _is_wanted() or _PROVIDERS in sys.modules or _THROUGH in sys.modules:
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


with _spared():
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

__all__ = ["SparkSubmitOperator"]
