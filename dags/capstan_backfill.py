"""The Airflow DAGs `capstan_backfill__<replay>`: one for each replay with a schedule."""

from __future__ import annotations

from capstan.airflow.dags.backfill import backfill_dags
from capstan.airflow.settings import read_setting

for dag in backfill_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
