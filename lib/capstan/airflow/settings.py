"""Settings of Capstan under Airflow: environment and declarations, all that DAG parsing needs.

| variable | meaning | default |
| --- | --- | --- |
| `CAPSTAN_LAKE` | the lake: a folder or a URI | `lake` in the project, else in `AIRFLOW_HOME` |
| `CAPSTAN_CONFIG` | the declaration file | `streams.yaml` beside the DAG files |
| `CAPSTAN_WORK` | requests and results of task tries | `capstan` in `AIRFLOW_HOME` |
| `CAPSTAN_POOL` | the pool of tasks that start Spark | Airflow's default pool |
| `CAPSTAN_CONNECTION` | the Spark connection | `spark_default` |
| `CAPSTAN_AWS_CONNECTION` | the Airflow connection with the credentials of S3 | `AWS_*` variables |
| `CAPSTAN_DAG_PREFIX` | the prefix of DAG ids, for the API server as well | `capstan_` |
| `CAPSTAN_KEEP` | how long to keep staged output that was not published | `30 days` |
| `CAPSTAN_NOTIFY` | notifiers of failed tasks: `package.module:name`, comma-separated | none |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from capstan.airflow import connections
from capstan.core.config import ProjectConfig, Replay, Stream, load_sound
from capstan.core.config.loading.yaml_document import read_document
from capstan.core.environment import config_file, named_by
from capstan.errors import InvalidRequestError
from capstan.spark.project_home import checkout, project_home

connections.use()

KEEP = "30 days"
"""Default of `CAPSTAN_KEEP`."""

PREFIX = "capstan_"
"""Default of `CAPSTAN_DAG_PREFIX`."""
_File = TypeVar("_File", bound=str | Path)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of Capstan under Airflow."""

    lake: str  # a folder or URI
    config: Path  # the declaration file
    declarations: ProjectConfig  # the contents of `config`
    work: Path  # for requests and results of running tasks
    pool: str | None  # of tasks that start Spark; None for the DAG's own, or Airflow's default
    connection: str  # the Airflow connection of Spark
    notify: tuple[str, ...] = ()  # notifiers, or other callbacks, of every failed task
    keep: str = KEEP  # how long to keep staged output that can no longer be published
    prefix: str = PREFIX  # what the ids of all DAGs begin with
    tags: tuple[str, ...] = ()  # of all DAGs, besides Capstan's own
    default_args: Mapping[str, Any] = field(default_factory=dict)  # of all tasks

    def misdeclared(self, declared: Stream | Replay, key: str, problem: str) -> InvalidRequestError:
        """The error for a declaration that Airflow cannot run, with file, line and keys."""
        kind = "streams" if isinstance(declared, Stream) else "replays"
        place = (kind, declared.name, key)
        return read_document(self.config).error(place, problem, "fix the declaration")

    def dag_id(self, kind: str, name: str | None = None) -> str:
        """The id of a DAG: of one kind, or of one kind and a declaration."""
        return dag_id(kind, name, self.prefix)


def read_settings(
    dag_file: str | Path, *, lake: str | None = None, config: str | Path | None = None
) -> Settings:
    """Read the environment and the declaration file, without opening the lake.

    A faulty declaration removes only its own DAGs; `capstan.airflow.dags.declaration_errors`
    reports it.

    Args:
        dag_file: The calling DAG file; by default, the declaration file is beside it.
        lake: The lake, in place of that of the environment.
        config: The declaration file, in place of that of the environment. A relative path begins
            at the folder of the DAG file.
    """
    named = config_file()
    beside = Path(dag_file).absolute().parent / (config or "streams.yaml")
    path = Path(named) if named and not config else beside
    place = named_by("CAPSTAN_LAKE") or _usual_lake() if lake is None else lake
    for name, value in (("lake", place), ("config", config)):
        if value is not None and not str(value).strip():
            raise InvalidRequestError(
                "CAP-REQUEST", f"{name} is empty", f"name it, or leave {name} out", key=name
            )
    place = place.rstrip("/") if "://" in place else str(Path(place).absolute())
    return Settings(
        place,
        path,
        load_sound(path, lake=place),
        Path(os.environ.get("CAPSTAN_WORK") or _airflow_home() / "capstan").absolute(),
        environment_pool(),
        connection_id(),
        tuple(filter(None, map(str.strip, os.environ.get("CAPSTAN_NOTIFY", "").split(",")))),
        os.environ.get("CAPSTAN_KEEP") or KEEP,
        os.environ.get("CAPSTAN_DAG_PREFIX") or PREFIX,
    )


def named_config(config: _File | None, streams: _File | None) -> _File | None:
    """The declaration file by either name of the argument; an empty one is left to be refused."""
    return streams if config is None else config


def dag_id(kind: str, name: str | None = None, prefix: str | None = None) -> str:
    """The id of a DAG, by default with the prefix that the environment names."""
    before = prefix or os.environ.get("CAPSTAN_DAG_PREFIX") or PREFIX
    return f"{before}{kind}" + ("" if name is None else f"__{name}")


def environment_pool() -> str | None:
    """The pool of tasks that start Spark, if the environment names one."""
    return os.environ.get("CAPSTAN_POOL") or None


def connection_id() -> str:
    """The Airflow connection of Spark."""
    return os.environ.get("CAPSTAN_CONNECTION") or "spark_default"


def _usual_lake() -> str:
    """The lake of the project, if there is one, or else one in Airflow's home."""
    in_project = "CAPSTAN_HOME" in os.environ or checkout() is not None
    return str((project_home() if in_project else _airflow_home()) / "lake")


def _airflow_home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
