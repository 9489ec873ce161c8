"""Settings of Capstan under Airflow: environment and declarations, all that DAG parsing needs.

| variable | meaning | default |
| --- | --- | --- |
| `CAPSTAN_LAKE` | the lake: a folder or a URI | `lake` in the project's folder |
| `CAPSTAN_STREAMS` | the declaration file | `streams.yaml` beside the DAG files |
| `CAPSTAN_WORK` | requests and results of task tries | `capstan` in `AIRFLOW_HOME` |
| `CAPSTAN_POOL` | the pool of tasks that start Spark | Airflow's default pool |
| `CAPSTAN_CONNECTION` | the Spark connection | `spark_default` |
| `CAPSTAN_KEEP` | how long to keep staged output that was not published | `30 days` |
| `CAPSTAN_NOTIFY` | notifiers of failed tasks: `package.module:name`, comma-separated | none |
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capstan import jobs
from capstan.core.config import ProjectConfig, load_sound
from capstan.core.config.yaml_document import read_document
from capstan.errors import InvalidRequestError
from capstan.spark.project_home import project_home

KEEP = "30 days"
"""Default of `CAPSTAN_KEEP`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of Capstan under Airflow.

    Attributes:
        lake: The lake's folder or URI.
        streams: The declaration file.
        declarations: Its contents.
        work: A local folder for requests, results, and choices of forms.
        pool: The pool of tasks that start Spark.
        connection: The Airflow connection of Spark.
        notify: Notifiers, or other callbacks, of every failed task.
        keep: How long to keep staged output that can no longer be published.
    """

    lake: str
    streams: Path
    declarations: ProjectConfig
    work: Path
    pool: str
    connection: str
    notify: tuple[str, ...] = ()
    keep: str = KEEP

    @property
    def apps(self) -> Path:
        """The folder of the Spark apps."""
        return Path(jobs.__file__).parent

    def misdeclared(self, keys: Sequence[str], problem: str) -> InvalidRequestError:
        """The error for a declaration that Airflow cannot run, with file, line and keys."""
        return read_document(self.streams).error(tuple(keys), problem, "fix the declaration")


def read_setting(dag_file: str | Path) -> Settings:
    """Read the environment and the declaration file, without opening the lake.

    A faulty declaration removes only its own DAGs; `capstan.airflow.dags.declaration_errors`
    reports it.

    Args:
        dag_file: The calling DAG file; by default, the declaration file is beside it.
    """
    named = os.environ.get("CAPSTAN_STREAMS")
    streams = Path(named) if named else Path(dag_file).absolute().with_name("streams.yaml")
    lake = os.environ.get("CAPSTAN_LAKE") or str(project_home() / "lake")
    lake = lake.rstrip("/") if "://" in lake else str(Path(lake).absolute())
    home = os.environ.get("AIRFLOW_HOME") or str(Path.home() / "airflow")
    work = Path(os.environ.get("CAPSTAN_WORK") or Path(home) / "capstan").absolute()
    return Settings(
        lake,
        streams,
        load_sound(streams, lake=lake),
        work,
        os.environ.get("CAPSTAN_POOL") or "default_pool",
        os.environ.get("CAPSTAN_CONNECTION") or "spark_default",
        tuple(filter(None, map(str.strip, os.environ.get("CAPSTAN_NOTIFY", "").split(",")))),
        os.environ.get("CAPSTAN_KEEP") or KEEP,
    )
