"""One way to create Capstan's DAGs: ids, tags and default arguments as the settings have them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from capstan.airflow.dags.timetables import BEGINNING
from capstan.airflow.settings import Settings


def new_dag(
    settings: Settings,
    kind: str,
    name: str | None = None,
    *,
    tag: str,
    schedule: Any,
    **arguments: Any,
) -> DAG:
    """Create a DAG with the id `PREFIX<kind>`, or `PREFIX<kind>__<name>`, and the usual tags."""
    return DAG(
        settings.dag_id(kind, name),
        schedule=schedule,
        tags=list(dict.fromkeys(("capstan", tag, *settings.tags))),
        default_args=dict(settings.default_args),
        catchup=False,
        **{"start_date": BEGINNING, **arguments},
    )
