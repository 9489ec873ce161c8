"""The Airflow DAG `capstan_replay`: a replay by hand, with a form."""

from __future__ import annotations

from capstan.airflow.dags.replay import replay_dags
from capstan.airflow.settings import read_setting

for dag in replay_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
