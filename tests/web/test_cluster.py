"""A task whose connection names a Spark cluster: its app runs there, and its answer comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.testing.standalone import cluster

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import World

DAG = """
from dataclasses import replace

from airflow.sdk import DAG

from capstan.airflow.setting import read_setting
from capstan.airflow.submit import CapstanSubmitOperator

with DAG("on_cluster", schedule=None, is_paused_upon_creation=False):
    CapstanSubmitOperator(
        task_id="verify",
        app="verify",
        setting=replace(read_setting(__file__), connection="spark_cluster"),
        request={{"stream": "flights"}},
        env_vars={{"SPARK_CONF_DIR": {conf!r}}},
    )
"""


@pytest.mark.slow
def test_a_task_runs_on_the_cluster_that_its_connection_names(
    captured: World, tmp_path: Path
) -> None:
    file = captured.folder / "dags" / "on_cluster.py"
    with cluster(tmp_path / "cluster", workers=1) as at:
        host, _, port = at.url.rpartition(":")
        spark = {"connection_id": "spark_cluster", "conn_type": "spark", "host": host}
        captured.rest.call("POST", "/connections", {**spark, "port": int(port)})
        file.write_text(DAG.format(conf=str(at.folder / "conf")), encoding="utf-8")
        try:
            captured.rest.wait_for_dag("on_cluster")
            run = captured.rest.run("on_cluster")
        finally:
            file.unlink()
        found = captured.rest.xcom("on_cluster", run, "verify")
        assert isinstance(found, dict)
        assert found["valid"]
        assert "Registered app capstan verify" in at.log()
        assert "Launching executor" in at.log()
    # What the app told of its work is in the task's log.
    assert "verify.events stream=flights" in captured.rest.log("on_cluster", run, "verify")
