"""A Kafka broker for tests: one JVM in KRaft mode on loopback, with a small heap.

`make broker` fetches its jars; those that Spark ships too (Scala, Jackson, SLF4J, codecs) are taken
from Spark. It writes nothing outside its folder, and is in the process group of the tests, so that
it ends together with them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from capstan.spark.setup import jars
from capstan.spark.setup.jars import Jars
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.local_submit import pyspark_home
from tests.support.driver_under_test import PATIENCE

BROKER = Jars(
    "broker",
    "broker",
    ("org.apache.kafka:kafka_2.13:3.9.2",),
    (
        "at.yawk.lz4:*",
        "com.fasterxml.jackson.core:*",
        "com.fasterxml.jackson.dataformat:*",
        "com.fasterxml.jackson.datatype:*",
        "com.fasterxml.jackson.module:*",
        "com.github.ben-manes.caffeine:*",
        "com.github.luben:*",
        "commons-beanutils:*",
        "commons-cli:*",
        "commons-collections:*",
        "commons-digester:*",
        "commons-io:*",
        "commons-logging:*",
        "io.dropwizard.metrics:*",
        "io.netty:*",
        "net.sourceforge.argparse4j:*",
        "org.bitbucket.b_c:*",
        "org.scala-lang:*",
        "org.slf4j:*",
        "org.xerial.snappy:*",
    ),
    Path(__file__).with_name("broker.sha256"),
)
# Spark's own jars, by prefix.
_SPARKS = (
    "jackson-annotations", "jackson-core-2", "jackson-databind", "lz4-java", "scala-library",
    "slf4j-api", "snappy-java", "zstd-jni",
)  # fmt: skip
_HEAP = "256m"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=1
num.io.threads=2
"""
# The file that Kafka's formatting tool would write.
_META = "version=1\nnode.id=1\ncluster.id=Y2Fwc3RhbnMtYnJva2VyMQ\n"


@dataclass(slots=True)
class Broker:
    """A broker that can be stopped and restarted, on the same port and with the same topics.

    Attributes:
        folder: Folder of everything that it writes.
        port: Its port.
        process: The process, while it runs.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its address for clients: `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time.
        """
        log = self.folder / "log"
        with log.open("ab") as printed:
            self.process = subprocess.Popen(
                [
                    str(spark_home(find_java()) / "bin" / "java"),
                    f"-Xmx{_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                    "-cp", _class_path(), "kafka.Kafka", str(self.folder / "broker.properties"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"no broker:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it, like a machine that fails."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


@contextmanager
def broker(folder: Path, *, partitions: int = 1) -> Iterator[Broker]:
    """A broker that runs within the `with` block.

    Args:
        folder: Its folder, created if it does not exist; topics of an earlier broker are kept.
        partitions: Number of partitions of topics created by writing to them.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "meta.properties").write_text(_META, encoding="ascii")
    port, control = _free_ports(2)
    text = _PROPERTIES.format(control=control, port=port, data=data, partitions=partitions)
    (folder / "broker.properties").write_text(text, encoding="utf-8")
    server = Broker(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in taken]
    for server in taken:
        server.close()
    return ports


def _class_path() -> str:
    sparks = sorted((pyspark_home() / "jars").glob("*.jar"))
    shared = [jar for jar in sparks if jar.name.startswith(_SPARKS)]
    return os.pathsep.join(str(jar) for jar in (*BROKER.there(), *shared))


if __name__ == "__main__":
    sys.exit(jars.main(BROKER))
