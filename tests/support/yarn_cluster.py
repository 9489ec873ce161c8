"""A real YARN on loopback: a ResourceManager and a NodeManager, each a JVM with a small heap.

`make yarn` fetches their jars; those that Spark ships too (Hadoop's client, SLF4J, Log4j) are taken
from Spark. They write nothing outside their folder, which is the file system of the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psutil import NoSuchProcess, Process

from capstan.spark.setup import jars
from capstan.spark.setup.jars import Jars
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.local_submit import pyspark_home
from tests.support.driver_under_test import PATIENCE
from tests.support.kafka_broker import _free_ports

HADOOP = "3.5.0"
YARN = Jars(
    "yarn",
    "yarn",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
        # The ResourceManager makes keys with it, which the package does not ask for.
        "org.bouncycastle:bcpkix-jdk18on:1.82",
    ),
    (
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.xerial.snappy:*",
    ),
    Path(__file__).with_name("yarn.sha256"),
)
# Spark's own jars, by prefix.
_SPARKS = ("hadoop-client-", "jackson-", "jcl-over-slf4j", "log4j", "slf4j-api")
_DAEMONS = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
_DEFAULTS = """\
spark.driver.memoryOverhead 256m
spark.executor.instances 1
spark.executor.memory 512m
spark.executor.memoryOverhead 256m
spark.yarn.jars local:{jars}/*
spark.yarn.stagingDir file://{folder}/staging
"""


@dataclass(frozen=True, slots=True)
class Yarn:
    """A running cluster.

    Attributes:
        folder: The folder of all that it writes.
        page: The address of the ResourceManager's page.
    """

    folder: Path
    page: str

    def applications(self) -> list[dict[str, Any]]:
        """What was submitted to it, in order."""
        with urllib.request.urlopen(f"{self.page}/ws/v1/cluster/apps", timeout=PATIENCE) as said:
            found = (json.load(said)["apps"] or {}).get("app", [])
        return sorted(found, key=lambda app: app["startedTime"])

    def environment(self) -> dict[str, str]:
        """Variables of who submits to it."""
        return {
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Start a cluster of one node; it ends with the block, and what it has started, too."""
    *ports, page = _free_ports(5)
    cluster = Yarn(folder, f"http://127.0.0.1:{page}")
    _write_settings(folder, ports, page)
    java = spark_home(find_java())
    environment = {**os.environ, **cluster.environment(), "JAVA_HOME": str(java)}
    daemons = []
    try:
        for name in _DAEMONS:
            with (folder / f"{name}.log").open("wb") as log:
                daemons.append(
                    subprocess.Popen(
                        [
                            str(java / "bin" / "java"),
                            "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                            "-cp", _class_path(folder), f"org.apache.hadoop.yarn.server.{name}",
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                        env=environment,
                        start_new_session=True,
                    )
                )  # fmt: skip
        _wait(cluster)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            # Containers are sessions of their own.
            for process in [*Process(daemon.pid).children(recursive=True), daemon]:
                with suppress(NoSuchProcess):
                    process.kill()
            daemon.wait(PATIENCE)


def _wait(cluster: Yarn) -> None:
    """Wait until the node has registered."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            metrics = f"{cluster.page}/ws/v1/cluster/metrics"
            with urllib.request.urlopen(metrics, timeout=PATIENCE) as said:
                if json.load(said)["clusterMetrics"]["activeNodes"] == 1:
                    return
        except OSError:
            pass
        if time.monotonic() > end:
            logs = [path.read_text(errors="replace") for path in cluster.folder.glob("*.log")]
            raise RuntimeError("no YARN:\n" + "\n".join(logs))
        time.sleep(0.2)


def _write_settings(folder: Path, ports: list[int], page: int) -> None:
    for name in ("conf", "local", "logs", "staging"):
        (folder / name).mkdir(parents=True)
    names = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    addresses = {
        f"{manager}.{name}address": f"127.0.0.1:{port}"
        for name, port in zip(names, [*ports, page], strict=True)
    }
    scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    settings = {
        **addresses,
        f"{manager}.scheduler.class": scheduler,
        f"{node}.hostname": "127.0.0.1",
        **{f"{node}.{name}address": "127.0.0.1:0" for name in ("", "localizer.", "webapp.")},
        f"{node}.local-dirs": str(folder / "local"),
        f"{node}.log-dirs": str(folder / "logs"),
        f"{node}.resource.memory-mb": "4096",
        f"{node}.resource.cpu-vcores": "4",
        f"{node}.vmem-check-enabled": "false",
        f"{node}.pmem-check-enabled": "false",
        f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.scheduler.minimum-allocation-mb": "256",
    }
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")}
    for name, values in (("yarn-site", settings), ("core-site", core)):
        rows = [
            f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items()
        ]
        text = "\n".join(["<configuration>", *rows, "</configuration>", ""])
        (folder / "conf" / f"{name}.xml").write_text(text, encoding="utf-8")
    text = _DEFAULTS.format(jars=pyspark_home() / "jars", folder=folder)
    (folder / "conf" / "spark-defaults.conf").write_text(text, encoding="utf-8")


def _class_path(folder: Path) -> str:
    sparks = sorted((pyspark_home() / "jars").glob("*.jar"))
    shared = [jar for jar in sparks if jar.name.startswith(_SPARKS)]
    return os.pathsep.join(map(str, (folder / "conf", *YARN.there(), *shared)))


if __name__ == "__main__":
    sys.exit(jars.main(YARN))
