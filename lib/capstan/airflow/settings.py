"""Where Capstan works under this Airflow, and what is declared: all that the parse of a DAG needs.

| variable | meaning | without it |
| --- | --- | --- |
| `CAPSTAN_LAKE` | the lake: a folder or a URI | `lake` in the project's folder |
| `CAPSTAN_STREAMS` | the declaration file | `streams.yaml` beside the DAG files |
| `CAPSTAN_WORK` | requests and results of tries | `capstan` in `AIRFLOW_HOME` |
| `CAPSTAN_POOL` | the pool of tasks that start Spark | Airflow's default pool |
| `CAPSTAN_CONNECTION` | the connection that says where Spark is | `spark_default` |
| `CAPSTAN_KEEP` | how long what was staged and not published is kept | `30 days` |
| `CAPSTAN_NOTIFY` | who is told of failed tasks: `package.module:name`, by commas | nobody |
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capstan.core.config import ProjectConfig, load_sound
from capstan.core.config.yaml_document import read_document
from capstan.errors import InvalidRequestError
from capstan.spark.project_home import project_home

KEEP = "30 days"
"""Without a variable that says otherwise."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where Capstan works, and what is declared.

    Attributes:
        lake: The lake's folder or URI.
        streams: The declaration file.
        declarations: What it declares.
        work: A folder of this machine for requests, results, and lists for the form.
        pool: The pool of tasks that start Spark.
        connection: The Airflow connection that says where Spark is.
        notify: Notifiers, or other callbacks, that are told of every task that fails.
        keep: How long what was staged and nobody can publish any more is kept.
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
        """The folder of the apps that are submitted."""
        return project_home() / "spark_apps"

    def misdeclared(self, place: Sequence[str], problem: str) -> InvalidRequestError:
        """The error for a declaration that Airflow cannot carry out: file, line and key."""
        return read_document(self.streams).error(tuple(place), problem, "mend the declaration")


def read_setting(dag_file: str | Path) -> Settings:
    """Read the environment and the declaration file; no lake is opened.

    Args:
        dag_file: The DAG file that asks; declarations lie beside it unless another file is named.

    What is wrong in a declaration leaves out its own DAGs alone, and is told by
    `capstan.airflow.dags.declaration_errors`.
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
