"""Errors in streams.yaml, shown as the import error of this file, which has no DAG of its own.

A mistake removes only the DAGs of its own declaration. Airflow parses this file because it contains
the words DAG and Airflow.
"""

from __future__ import annotations

from capstan.airflow.dags.declaration_errors import require_none
from capstan.airflow.settings import read_setting

require_none(read_setting(__file__))
