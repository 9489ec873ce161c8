"""The Airflow DAGs `capstan_follow__<replay>`: one for each replay that follows its stream."""

from __future__ import annotations

from capstan.airflow.dags.follow import follow_dags
from capstan.airflow.settings import read_setting

for dag in follow_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
