"""The Airflow DAGs `capstan_follow__<replay>`: one for each replay that follows its stream."""

from __future__ import annotations

from capstan.airflow.follow import follow_dags
from capstan.airflow.setting import read_setting

for dag in follow_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
