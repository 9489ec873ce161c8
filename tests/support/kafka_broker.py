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

from capstan.spark import jars
from capstan.spark.class_archive import pyspark_home
from capstan.spark.jars import Jars
from capstan.spark.java import find_java, spark_home
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
    {
        "com.typesafe.scala-logging_scala-logging_2.13-3.9.5.jar": (
            "87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545"
        ),
        "com.yammer.metrics_metrics-core-2.2.0.jar": (
            "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c"
        ),
        "commons-validator_commons-validator-1.10.1.jar": (
            "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa"
        ),
        "net.sf.jopt-simple_jopt-simple-5.0.4.jar": (
            "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28"
        ),
        "org.apache.kafka_kafka-clients-3.9.2.jar": (
            "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"
        ),
        "org.apache.kafka_kafka-group-coordinator-3.9.2.jar": (
            "d4d57f0955895cc38381f346f5ff7eba487afafa5ba264804af18393305b32fd"
        ),
        "org.apache.kafka_kafka-group-coordinator-api-3.9.2.jar": (
            "bd903ba506c8309401a331ef1b826612d1cb95862879551031428da5cf50eab6"
        ),
        "org.apache.kafka_kafka-metadata-3.9.2.jar": (
            "ffe970aee12f00df4b0162f31c719df7c412f9207c166a74cef6611be25a255e"
        ),
        "org.apache.kafka_kafka-raft-3.9.2.jar": (
            "f897533828e55ac466a5b183a25dccbe5a7b97c02162dac38e25338feddfe422"
        ),
        "org.apache.kafka_kafka-server-3.9.2.jar": (
            "4f8667dbd664c4b0906e05499cfdc5f558f14c098b77fa6c09656cceb62a63ef"
        ),
        "org.apache.kafka_kafka-server-common-3.9.2.jar": (
            "0374b3f13c3c4b7fd446d35df1ccb0c60931ea27d4972b4de1bb1d548a87f5b2"
        ),
        "org.apache.kafka_kafka-storage-3.9.2.jar": (
            "8a3d7b67dfcd34b1334d4994ed4106ba9c9b37ebcbb177ac47ff44050e8ab84b"
        ),
        "org.apache.kafka_kafka-storage-api-3.9.2.jar": (
            "565ab8540b50c7f00ea62c77a6639237ed3a80550245be70dc733f157cd280d6"
        ),
        "org.apache.kafka_kafka-tools-api-3.9.2.jar": (
            "501ac034b93853c3dcba4b49e32c7c795de109a96b8ab6d59a9ab19e6ef11491"
        ),
        "org.apache.kafka_kafka-transaction-coordinator-3.9.2.jar": (
            "d6ca25648111dfd11f76d3d0f7f51a9458784b645f4e56ce34fbc58d9c9d0296"
        ),
        "org.apache.kafka_kafka_2.13-3.9.2.jar": (
            "dddf49b18c931301fece0048a76d6b0956c36c8b1d1fc721bfed318aa6ee3e4f"
        ),
        "org.apache.zookeeper_zookeeper-3.8.4.jar": (
            "2d77b152039e7f85dc5438a9304febff86a2f3e55c88976a8be309af39028e97"
        ),
        "org.apache.zookeeper_zookeeper-jute-3.8.4.jar": (
            "93e854b55d731e745bafec187e2e7bf3389fd2a88e2fc8d1a3c1b9110284b284"
        ),
        "org.pcollections_pcollections-4.0.1.jar": (
            "1f82766d7c3221930854033bebff5073ea46b43f27326074bbe15d148c18bfb3"
        ),
        "org.scala-lang.modules_scala-java8-compat_2.13-1.0.2.jar": (
            "90d5b13656be93fb779b8d7c723efa2498a34af06273bb5204afb65f85a20c1b"
        ),
    },
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
