"""Errors in streams.yaml, shown as the import error of this file, which has no DAG of its own.

A mistake removes only the DAGs of its own declaration. Airflow parses this file because it contains
the words DAG and Airflow.
"""

from __future__ import annotations

from capstan.airflow import check_declarations

check_declarations(__file__)
