"""What Airflow is told, and what the apps that it submits inherit."""

from __future__ import annotations

import configparser
import json
import os
import sys
from pathlib import Path

import pytest

from capstan.airflow.local.database import check_url
from capstan.airflow.local.home import Home
from capstan.airflow.local.settings import (
    CONNECTION,
    Setup,
    apps_at_once,
    config_text,
    environment,
    free_port,
    is_there,
    sections,
    whole_lake,
)
from capstan.errors import InvalidRequestError


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """An Airflow, as it was asked for; a percent sign is in its database's password."""
    home = Home(tmp_path.resolve() / "home")
    with home.held():
        pass
    database = "postgresql+psycopg2://u:p%40ss@127.0.0.1/x"
    return Setup(home, 8123, tmp_path / "dags", "/data/lake", database)


def test_airflow_reads_back_what_was_written(setup: Setup) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(config_text(setup))
    assert {name: dict(parser[name]) for name in parser.sections()} == sections(setup)
    assert parser["database"]["sql_alchemy_conn"] == setup.database


def test_everything_is_on_loopback_with_logins(setup: Setup) -> None:
    told = sections(setup)
    assert told["api"]["host"] == "127.0.0.1"
    assert told["core"]["execution_api_server_url"] == "http://127.0.0.1:8123/execution/"
    assert told["core"]["simple_auth_manager_users"] == "admin:admin"
    assert "simple_auth_manager_all_admins" not in told["core"]


def test_apps_inherit_no_secret(setup: Setup) -> None:
    secrets = setup.home.secrets()
    inherited = "\n".join(environment(setup, {}).values())
    for secret in (secrets.fernet_key, secrets.jwt_secret, secrets.secret_key, "p%40ss"):
        assert secret in config_text(setup).replace("%%", "%")
        assert secret not in inherited


def test_settings_of_the_launcher_win_and_others_stay(setup: Setup) -> None:
    given = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "cat elsewhere",
        "AIRFLOW__API__SECRET_KEY_SECRET": "vault",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "4",
        "AIRFLOW_VAR_SEASON": "winter",
        "AIRFLOW_HOME": "/elsewhere",
        "CAPSTAN_LAKE": "/elsewhere",
        "CAPSTAN_STREAMS": "/streams.yaml",
    }
    found = environment(setup, given)
    kept = {name for name in given if found.get(name) == given[name]}
    assert kept == {"AIRFLOW__CORE__DEFAULT_TASK_RETRIES", "AIRFLOW_VAR_SEASON", "CAPSTAN_STREAMS"}
    assert found["AIRFLOW_HOME"] == str(setup.home.folder)
    assert found["CAPSTAN_LAKE"] == "/data/lake"
    assert not any(name.startswith("AIRFLOW__DATABASE") for name in found)


def test_spark_is_local_unless_a_connection_was_given(setup: Setup) -> None:
    assert json.loads(environment(setup, {})[CONNECTION]) == {
        "conn_type": "spark",
        "host": "local[*]",
    }
    given = {CONNECTION: "spark://127.0.0.1:7077"}
    assert environment(setup, given)[CONNECTION] == given[CONNECTION]


def test_apps_take_turns_in_a_pool_unless_another_was_named(setup: Setup) -> None:
    assert environment(setup, {})["CAPSTAN_POOL"] == "spark"
    assert environment(setup, {"CAPSTAN_POOL": "mine"})["CAPSTAN_POOL"] == "mine"
    assert 2 <= apps_at_once() <= int(sections(setup)["core"]["parallelism"])


def test_programs_of_this_interpreter_come_first(setup: Setup) -> None:
    found = environment(setup, {"PATH": "/usr/bin"})
    first, rest = found["PATH"].split(os.pathsep)
    assert (Path(first), rest) == (Path(sys.executable).parent, "/usr/bin")
    assert (Path(first) / "spark-submit").is_file()
    assert (Path(found["JAVA_HOME"]) / "bin" / "java").is_file()


def test_no_proxy_comes_between_the_components(setup: Setup) -> None:
    assert environment(setup, {})["NO_PROXY"] == "127.0.0.1,localhost"
    found = environment(setup, {"no_proxy": "intra"})
    assert found["no_proxy"] == found["NO_PROXY"] == "intra,127.0.0.1,localhost"


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


def test_a_lake_means_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert whole_lake("./lake") == str(tmp_path / "lake")
    assert not is_there(whole_lake("lake"))
    assert whole_lake("s3a://bucket/lake") == "s3a://bucket/lake"
    assert is_there("s3a://bucket/lake")
