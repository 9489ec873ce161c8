"""The Airflow DAGs of Capstan, for the `streams.yaml` beside this file."""

from __future__ import annotations

from capstan.airflow.dags.audit import audit_dags
from capstan.airflow.dags.backfill import backfill_dags
from capstan.airflow.dags.capture import capture_dags
from capstan.airflow.dags.follow import follow_dags
from capstan.airflow.dags.gaps import gaps_dags
from capstan.airflow.dags.maintain import maintain_dags
from capstan.airflow.dags.replay import replay_dags
from capstan.airflow.dags.rollback import rollback_dags
from capstan.airflow.settings import read_setting

setting = read_setting(__file__)
for dags in (
    audit_dags, backfill_dags, capture_dags, follow_dags, gaps_dags, maintain_dags, replay_dags,
    rollback_dags,
):  # fmt: skip
    for dag in dags(setting):
        globals()[dag.dag_id] = dag
