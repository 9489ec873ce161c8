"""What Airflow is told, and what the jobs that it submits inherit."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capstan.airflow.local.database import check_url
from capstan.airflow.local.home import Home
from capstan.airflow.local.settings import (
    CONNECTION,
    Setup,
    environment,
    free_port,
    jobs_at_once,
    settings,
)
from capstan.errors import InvalidRequestError


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """An Airflow, as it was asked for."""
    home = Home(tmp_path.resolve() / "home")
    with home.held():
        pass
    return Setup(home, 8123, tmp_path / "dags", "/data/lake")


def test_airflow_reads_what_is_set_and_keeps_its_keys(setup: Setup) -> None:
    code = (
        "from airflow.configuration import write_default_airflow_configuration_if_needed as begin; "
        "conf = begin(); print(conf.get('core', 'executor'), conf.get('api', 'port'), "
        "conf.get('database', 'sql_alchemy_conn'))"
    )
    setup.home.database.write_text("postgresql+psycopg2://u:p%40ss@127.0.0.1/x", encoding="utf-8")
    given = {**os.environ, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:///none"}
    known = environment(setup, given)
    done = subprocess.run(
        [sys.executable, "-c", code], env=known, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1].split() == [
        "LocalExecutor", "8123", "postgresql+psycopg2://u:p%40ss@127.0.0.1/x"
    ], done.stderr  # fmt: skip
    kept = setup.home.folder / "airflow.cfg"
    assert kept.stat().st_mode & 0o777 == 0o600
    parser = configparser.RawConfigParser()
    parser.read(kept)
    names = (("core", "fernet_key"), ("api_auth", "jwt_secret"), ("api", "secret_key"))
    keys = {parser[section][name] for section, name in names}
    assert len(keys) == 3
    assert min(map(len, keys)) > 15
    # Jobs inherit none of them.
    inherited = "\n".join(known.values())
    assert not any(secret in inherited for secret in [*keys, "p%40ss"])


def test_everything_is_on_loopback_with_logins(setup: Setup) -> None:
    reported = settings(setup)
    assert reported["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert reported["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8123/execution/"
    assert reported["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin"
    assert not any("ALL_ADMINS" in name for name in reported)


def test_settings_of_the_launcher_win_and_others_stay(setup: Setup) -> None:
    given = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "elsewhere",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "cat elsewhere",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "4",
        "AIRFLOW_VAR_SEASON": "winter",
        "AIRFLOW_HOME": "/elsewhere",
        "CAPSTAN_LAKE": "/elsewhere",
        "CAPSTAN_CONFIG": "/streams.yaml",
    }
    actual = environment(setup, given)
    kept = {name for name in given if actual.get(name) == given[name]}
    assert kept == {"AIRFLOW__CORE__DEFAULT_TASK_RETRIES", "AIRFLOW_VAR_SEASON", "CAPSTAN_CONFIG"}
    assert actual["AIRFLOW_HOME"] == str(setup.home.folder)
    assert actual["CAPSTAN_LAKE"] == "/data/lake"
    reported = [name for name in actual if name.startswith("AIRFLOW__DATABASE")]
    assert reported == ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"]


def test_spark_is_local_unless_a_connection_was_given(setup: Setup) -> None:
    assert json.loads(environment(setup, {})[CONNECTION]) == {
        "conn_type": "spark",
        "host": "local[*]",
    }
    given = {CONNECTION: "spark://127.0.0.1:7077"}
    assert environment(setup, given)[CONNECTION] == given[CONNECTION]


def test_jobs_take_turns_in_a_pool_unless_another_was_named(setup: Setup) -> None:
    assert environment(setup, {})["CAPSTAN_POOL"] == "spark"
    assert environment(setup, {"CAPSTAN_POOL": "mine"})["CAPSTAN_POOL"] == "mine"
    assert 2 <= jobs_at_once() <= int(settings(setup)["AIRFLOW__CORE__PARALLELISM"])


def test_programs_of_this_interpreter_come_first(setup: Setup) -> None:
    actual = environment(setup, {"PATH": "/usr/bin"})
    first, rest = actual["PATH"].split(os.pathsep)
    assert (Path(first), rest) == (Path(sys.executable).parent, "/usr/bin")
    assert (Path(first) / "spark-submit").is_file()
    assert (Path(actual["JAVA_HOME"]) / "bin" / "java").is_file()


def test_no_proxy_comes_between_the_components(setup: Setup) -> None:
    assert environment(setup, {})["NO_PROXY"] == "127.0.0.1,localhost"
    actual = environment(setup, {"no_proxy": "intra"})
    assert actual["no_proxy"] == actual["NO_PROXY"] == "intra,127.0.0.1,localhost"


def test_a_port_that_is_taken_is_refused() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidRequestError, match=f"CAP-PORT: port {port} of 127.0.0.1 is not available"
        ):
            free_port(port)
    assert free_port(port) == port
    assert free_port(0) > 0


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-PORT"):
        free_port(port)


@pytest.mark.parametrize(
    "url", ["sqlite:////tmp/x.db", "mysql://u@h/x", "postgres", "", "postgresql:/x"]
)
def test_a_database_that_is_not_postgresql_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-DATABASE"):
        check_url(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_a_database_is_named_as_sqlalchemy_needs_it(scheme: str) -> None:
    assert check_url(f"{scheme}://u:p@h:5432/x?a=b") == "postgresql+psycopg2://u:p@h:5432/x?a=b"


@pytest.mark.parametrize(
    ("given", "lake"), [("./lake", "{here}/lake"), ("s3a://bucket/lake", "s3a://bucket/lake")]
)
def test_a_lake_means_the_same_in_every_folder(
    setup: Setup, given: str, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    actual = environment(replace(setup, lake=given), {})["CAPSTAN_LAKE"]
    assert actual == lake.format(here=tmp_path)
