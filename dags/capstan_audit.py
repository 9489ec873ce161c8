"""The Airflow DAG `capstan_audit`: audits published tables again."""

from __future__ import annotations

from capstan.airflow.dags.audit import audit_dags
from capstan.airflow.settings import read_setting

for dag in audit_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
