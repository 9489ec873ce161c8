"""One way to create Capstan's DAGs: ids, tags and default arguments as the settings have them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

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
    """Create a DAG.

    Args:
        kind: What its id has after the prefix, such as `replay`.
        name: The stream or replay that it belongs to, if it belongs to one.
        tag: Its tag, besides `capstan` and those of the settings.
        schedule: Its schedule; None for runs by hand only.
        arguments: Other arguments of a `DAG`.
    """
    return DAG(
        settings.dag_id(kind, name),
        schedule=schedule,
        tags=list(dict.fromkeys(("capstan", tag, *settings.tags))),
        default_args=dict(settings.default_args),
        **arguments,
    )
