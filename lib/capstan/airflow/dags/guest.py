"""Capstan in an Airflow of your own: all of its DAGs by one call, or a replay as a task group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TaskGroup

from capstan.airflow.assets import REPLAYED
from capstan.airflow.dags.attention import attention_dags
from capstan.airflow.dags.audit import audit_dags
from capstan.airflow.dags.declaration_errors import require_none
from capstan.airflow.dags.declared import backfill_dags, capture_dags, follow_dags, partitions_dags
from capstan.airflow.dags.gaps import gaps_dags
from capstan.airflow.dags.maintain import maintain_dags
from capstan.airflow.dags.repair import repair_dags, rollback_dags
from capstan.airflow.dags.replay import replay_dags, replay_tasks
from capstan.airflow.settings import named_config, read_settings
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.request_fields import GivenFields
from capstan.errors import InvalidRequestError

_KINDS = {
    "attention": attention_dags,
    "audit": audit_dags,
    "backfill": backfill_dags,
    "capture": capture_dags,
    "follow": follow_dags,
    "gaps": gaps_dags,
    "maintain": maintain_dags,
    "partitions": partitions_dags,
    "repair": repair_dags,
    "replay": replay_dags,
    "rollback": rollback_dags,
}


def capstan_dags(
    dag_file: str | Path,
    *,
    kinds: Sequence[str] = tuple(_KINDS),
    lake: str | None = None,
    config: str | Path | None = None,
    streams: str | Path | None = None,
    prefix: str | None = None,
    tags: Sequence[str] = (),
    default_args: Mapping[str, Any] | None = None,
    pool: str | None = None,
    connection: str | None = None,
) -> dict[str, DAG]:
    """All DAGs of a declaration file, by id: `globals().update(capstan_dags(__file__))`.

    Faulty declarations have no DAG; `check_declarations` reports them.

    Args:
        dag_file: The DAG file; by default, `streams.yaml` is beside it.
        kinds: Which DAGs: `attention`, `audit`, `backfill`, `capture`, `follow`, `gaps`,
            `maintain`, `partitions`, `replay`, `rollback`, and `repair` for those that verify, put
            late records back, unlock, and pause backfills.
        lake: The lake; by default `CAPSTAN_LAKE`.
        config: The declaration file; by default `CAPSTAN_CONFIG`.
        streams: The former name of `config`.
        prefix: The prefix of DAG ids; by default `CAPSTAN_DAG_PREFIX`, or `capstan_`. The page in
            Airflow knows DAGs by that variable.
        tags: Tags of all DAGs, besides Capstan's own.
        default_args: Arguments of all tasks, such as `owner`, `queue` and `executor_config`.
        pool: The pool of tasks that start Spark; by default `CAPSTAN_POOL`, or that of
            `default_args`.
        connection: The Spark connection; by default `CAPSTAN_CONNECTION`, or `spark_default`.
    """
    settings = read_settings(dag_file, lake=lake, config=named_config(config, streams))
    settings = replace(
        settings,
        prefix=prefix or settings.prefix,
        tags=tuple(tags),
        default_args=dict(default_args or {}),
        pool=pool or settings.pool,
        connection=connection or settings.connection,
    )
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in chosen:
        if kind not in _KINDS:
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"Capstan has no DAGs of kind {kind!r}{did_you_mean(kind, _KINDS)}",
                f"kinds are {one_of(_KINDS)}",
            )
    dags = itertools.chain.from_iterable(_KINDS[kind](settings) for kind in chosen)
    return {dag.dag_id: dag for dag in dags}


def check_declarations(
    dag_file: str | Path,
    *,
    lake: str | None = None,
    config: str | Path | None = None,
    streams: str | Path | None = None,
) -> None:
    """Check the declaration file; called by a DAG file, its import error lists the mistakes.

    Args:
        dag_file: The DAG file; by default, `streams.yaml` is beside it.
        lake: The lake; by default `CAPSTAN_LAKE`.
        config: The declaration file; by default `CAPSTAN_CONFIG`.
        streams: The former name of `config`.
    """
    require_none(read_settings(dag_file, lake=lake, config=named_config(config, streams)))


class CapstanTaskGroup(TaskGroup):
    """The tasks of a replay in a DAG of your own: plan, replay, approve, publish, certificate.

    Without `approve`, or a declared replay that requires it, `approve` and `publish` are skipped.
    """

    def __init__(
        self,
        group_id: str,
        *,
        target: str,
        stream: str | None = None,
        replay: str | None = None,
        workers: Sequence[str] | str | None = None,
        since: str | None = None,
        until: str | None = None,
        fields: GivenFields | None = None,
        lake: str | None = None,
        config: str | None = None,
        streams: str | None = None,
        **rest: Any,
    ) -> None:
        """Create the group inside a DAG; its arguments are those of a `ReplayOperator`, and more.

        Args:
            fields: The other fields of a request, such as `transform` and `approve`; with `wait`,
                the plan waits until the range is complete. Templated.
            lake: The lake; by default `CAPSTAN_LAKE`. Templated.
            config: The declaration file; by default `CAPSTAN_CONFIG`. Templated.
            streams: The former name of `config`.
            rest: Other arguments of a `TaskGroup`.
        """
        super().__init__(group_id, **rest)
        given = {
            "stream": stream,
            "replay": replay,
            "workers": workers,
            "since": since,
            "until": until,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        with self:
            replay_tasks(
                {**asked, **(fields or {}), "into": target},
                REPLAYED,
                lake=lake,
                config=named_config(config, streams),
            )
