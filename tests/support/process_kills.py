"""What else than a driver dies in chaos: executors of its cluster, the broker of its topics.

Nobody takes up what was cut off here. A driver outlives its executors, and has to come to its end
by itself; a capture that loses its broker ends with an error that says so, and the next goes on.
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
from capstan.capture.run import capture
from capstan.capture.source_reconciliation import reconcile
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support import child_drivers, kafka_topics, lake_contents
from tests.support.driver_under_test import Step
from tests.support.kafka_broker import broker
from tests.support.spark_cluster import cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 3
"""How many executors are killed under one driver: a task may fail four times."""

BROKERS = 3
"""How often a broker is killed under one driver."""

_CLICKS = 24


def kill_executors(log: Path, script: Sequence[Step], chance: random.Random) -> int:
    """Have a driver work on a cluster of which one executor after the other is killed.

    Args:
        log: A folder for what the driver and the cluster print; made here.
        script: What the driver does.
        chance: Chooses the moments, and the executors.

    Returns:
        How many were killed.

    Raises:
        AssertionError: The driver has not done all it was to do.
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
                there = at.executors() if child.process.poll() is None else []
                for each in there[:1]:
                    send(each, signal.SIGKILL)
                    killed += 1
            child.require_ended()
        finally:
            child.end()
    return killed


class Topics:
    """Topics in a folder, and a lake that a stream of them is captured into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lake = Lake.at(folder / "lake")

    def kill_brokers(self, log: Path, chance: random.Random, first: int) -> int:
        """Have a driver send records and capture them, with a broker that dies again and again.

        Args:
            log: A folder for what the driver prints; made here.
            chance: Chooses the moments.
            first: The number of the first record.

        Returns:
            How often it was killed before its records were captured.

        Raises:
            AssertionError: A capture has ended with another error than that it has no broker.
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
                    _require_told(sent, captured)
                child.require_ended()
            finally:
                child.end()
        return killed

    def finish(self, spark: SparkSession) -> None:
        """Capture what is left, undisturbed, and look at what came of it.

        Raises:
            AssertionError: Something of the topics is not on tape, or is not what it was.
        """
        if not (self._folder / "broker").exists():
            return
        with broker(self._folder / "broker", partitions=2) as kafka:
            stream = kafka_topics.stream_of(kafka.address, kafka_topics.NAME)
            capture(spark, self._lake, stream)
            lake_contents.require_sound(spark, self._lake, kafka_topics.NAME)
            found = reconcile(spark, open_tape(self._lake, kafka_topics.NAME), stream, deep=True)
        assert found.agrees, found
        assert (found.gone, found.unknown) == (0, 0), found
        assert found.records >= _CLICKS, found

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


def _require_told(sent: Step, captured: Step) -> None:
    """Check that what was sent is there, and captured unless there was no broker."""
    for step, fine in ((sent, ""), (captured, "CAP-BROKER")):
        found = json.loads(step.ended.read_text(encoding="utf-8"))
        assert found["exit"] == 0 or found["error"] == fine, found
