"""The Airflow DAG `capstan_maintain`: compacts and cleans up tapes and ledgers."""

from __future__ import annotations

from capstan.airflow.dags.maintain import maintain_dags
from capstan.airflow.settings import read_setting

for dag in maintain_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
