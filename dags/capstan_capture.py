"""The Airflow DAGs `capstan_capture__<stream>`: one for each stream in streams.yaml."""

from __future__ import annotations

from capstan.airflow.dags.capture import capture_dags
from capstan.airflow.settings import read_setting

for dag in capture_dags(read_setting(__file__)):
    globals()[dag.dag_id] = dag
