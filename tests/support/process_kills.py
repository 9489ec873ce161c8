"""Kills of processes other than drivers: executors of a cluster, the broker of topics.

Interrupted work is not resumed by hand. A driver outlives its executors and must finish by itself.
A capture that loses its broker fails with an error that says so, and the next capture continues.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.airflow.local.processes import send
from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import capture
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support import child_drivers, kafka_topics, lake_contents
from tests.support.driver_under_test import Step
from tests.support.kafka_broker import broker
from tests.support.spark_cluster import cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 3
"""Number of executors killed under one driver: a task may fail four times."""

BROKERS = 3
"""Number of kills of the broker under one driver."""

_CLICKS = 24


def kill_executors(log: Path, script: Sequence[Step], chance: random.Random) -> int:
    """Run a driver on a cluster whose executors are killed one after the other.

    Args:
        log: Folder for the output of the driver and the cluster; created here.
        script: Steps of the driver.
        chance: Selects the moments and the executors.

    Returns:
        The number of executors killed.

    Raises:
        AssertionError: The driver did not complete its script.
    """
    killed = 0
    with cluster(log / "cluster") as at:
        child = child_drivers.start(
            log / "driver", script, master=at.url, environment=at.environment()
        )
        try:
            child.wait_for(log / "driver" / "script.json.begun")
            while child.process.poll() is None and killed < EXECUTORS:
                time.sleep(chance.uniform(1, 15))
                executors = at.executors() if child.process.poll() is None else []
                for executor in executors[:1]:
                    send(executor, signal.SIGKILL)
                    killed += 1
            child.require_ended()
        finally:
            child.end()
    return killed


class Topics:
    """Topics in a folder, and the lake into which they are captured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lake = Lake.at(folder / "lake")

    def kill_brokers(self, log: Path, chance: random.Random, first: int) -> int:
        """Run a driver that sends records and captures them, while its broker is killed repeatedly.

        Args:
            log: Folder for the output of the driver; created here.
            chance: Selects the moments.
            first: Number of the first record.

        Returns:
            How often the broker was killed before its records were captured.

        Raises:
            AssertionError: A capture failed with an error other than a missing broker.
        """
        killed = 0
        with broker(self._folder / "broker", partitions=2) as kafka:
            script = list(self._script(log, kafka.address, first))
            child = child_drivers.start(log / "driver", script)
            try:
                for sent, captured in zip(script[::2], script[1::2], strict=True):
                    child.wait_for(sent.ended)
                    time.sleep(chance.uniform(0, 6))
                    killed += not captured.ended.exists()
                    kafka.stop()
                    child.wait_for(captured.ended)
                    kafka.start()
                    _require_expected_end(sent, captured)
                child.require_ended()
            finally:
                child.end()
        return killed

    def finish(self, spark: SparkSession) -> None:
        """Capture the remaining records without interruption, and check the result.

        Raises:
            AssertionError: The tape and the topics differ.
        """
        if not (self._folder / "broker").exists():
            return
        with broker(self._folder / "broker", partitions=2) as kafka:
            stream = kafka_topics.stream_of(kafka.address, kafka_topics.NAME)
            capture(spark, self._lake, stream)
            lake_contents.require_sound(spark, self._lake, kafka_topics.NAME)
            result = reconcile(spark, open_tape(self._lake, kafka_topics.NAME), stream, deep=True)
        assert result.agrees, result
        assert (result.gone, result.unknown) == (0, 0), result
        assert result.records >= _CLICKS, result

    def _script(self, log: Path, address: str, first: int) -> list[Step]:
        given: dict[str, object] = {
            "lake": self._lake.root,
            "source": str(self._folder),
            "broker": address,
        }
        steps = []
        for number in range(BROKERS):
            numbers = {"first": first + number * _CLICKS, "count": _CLICKS}
            steps.append(Step("click", {**given, **numbers}, until=str(log / f"sent-{number}")))
            steps.append(Step("capture-clicks", given, until=str(log / f"captured-{number}")))
        return steps


def _require_expected_end(sent: Step, captured: Step) -> None:
    """Check that records were sent, and captured unless the broker was missing."""
    for step, fine in ((sent, ""), (captured, "CAP-BROKER")):
        result = json.loads(step.ended.read_text(encoding="utf-8"))
        assert result["exit"] == 0 or result["error"] == fine, result
