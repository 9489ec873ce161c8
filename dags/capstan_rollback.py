"""The Airflow DAG `capstan_rollback`: rolls back a run, by hand."""

from __future__ import annotations

from capstan.airflow.dags.rollback import rollback_dags
from capstan.airflow.settings import read_setting

for dag in rollback_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
