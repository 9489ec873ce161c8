"""The Airflow DAG `capstan_gaps`: finds and fills missing intervals of declared replays."""

from __future__ import annotations

from capstan.airflow.dags.gaps import gaps_dags
from capstan.airflow.settings import read_setting

for dag in gaps_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
