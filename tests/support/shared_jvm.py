"""A JVM that outlives the killed drivers: each of them is a Python process attached to it.

A driver consists of two processes, Python and its JVM. All named points of
`capstan.telemetry.instrumentation` are in Python, between two calls of the JVM. At such a point the
JVM does nothing for this driver, except for the query of a capture, which waits for its answer. So
the files on disk are the same whether both processes are killed there or only Python, once no work
of the dead process is left in the JVM; `Victim.settle` ensures that before anyone continues. Only
killing a driver together with its own JVM proves that nothing beyond Python finishes or cleans up
its work, wherever the kill falls: at no named point, on a cluster, between files of one commit. See
`tests.support.child_drivers.start`.

The JVM is started once, by a keeper in a process of its own. Drivers are forked from a process that
has imported everything they need but has started nothing: this takes a tenth of a second instead of
twenty seconds. Only one driver at a time may be attached, as the JVM calls back the Python process
that called last.

"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.support.driver_under_test import PATIENCE, Step, run

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from py4j.clientserver import ClientServer
    from pyspark.sql import SparkSession

# Modules of a driver, imported before the first fork. On import, none of them starts threads on
# which others wait.
_IMPORTED = [
    "capstan.spark.session",
    "tests.support.driver_actions",
    "tests.support.shared_jvm",
    "pandas",
]
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(_IMPORTED)
_MEMORY = {"spark.driver.memory": "3g"}


@dataclass(frozen=True, slots=True)
class Gateway:
    """Address at which a JVM takes calls from Python.

    Attributes:
        port: Port on this machine.
        secret: Secret of the callers.
        jvm: Its process.
    """

    port: int
    secret: str
    jvm: int


@dataclass(frozen=True, slots=True)
class Attached:
    """A Python process attached to a JVM, with the interface of `subprocess.Popen`."""

    process: BaseProcess

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code; negative for the signal that killed it."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout or 0)
        return self.process.exitcode


@dataclass(frozen=True, slots=True)
class _Failed:
    """Reason why a JVM is unusable."""

    why: str


class Victim:
    """A JVM for drivers that are killed one after the other; it ends with this process."""

    def __init__(self, folder: Path) -> None:
        """Start it; its log and temporary files go to `folder`, which is created here."""
        folder.mkdir(parents=True)
        self._log = folder / "log"
        self._keeper_pipe, other = _FORKS.Pipe()
        environment = {**os.environ, **places_of(folder)}
        self._keeper = _FORKS.Process(
            target=_keep, args=(other, self._log, environment), daemon=True
        )
        self._keeper.start()
        other.close()
        self._gateway: Gateway = self._answer()
        self._last: BaseProcess | None = None

    def start(self, folder: Path, script: Path, log: Path) -> Attached:
        """Start a driver that runs the script in a file; no other driver may be attached.

        Args:
            folder: Folder for its temporary files.
            script: Script for `tests.support.driver_under_test`.
            log: File for its output.
        """
        if self._last is not None and self._last.is_alive():
            raise RuntimeError(f"{self._last.name} still is attached")
        environment = {**os.environ, **places_of(folder)}
        arguments = (self._gateway, script, log, environment)
        self._last = _FORKS.Process(target=_attach, args=arguments, name=str(folder), daemon=True)
        self._last.start()
        return Attached(self._last)

    def settle(self) -> None:
        """End all work of dead drivers, and wait until nothing of it is left.

        Raises:
            AssertionError: Some of it still runs.
        """
        self._keeper_pipe.send("settle")
        self._answer()

    def stop(self) -> None:
        """Stop the JVM, its keeper, and any attached driver."""
        if self._last is not None and self._last.is_alive():
            self._last.kill()
        self._keeper_pipe.close()
        self._keeper.join(PATIENCE)
        # The keeper leads a process group, which is empty now unless something hangs.
        assert self._keeper.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self._keeper.pid, signal.SIGKILL)

    def _answer(self) -> Any:
        try:
            answer = (
                self._keeper_pipe.recv()
                if self._keeper_pipe.poll(2 * PATIENCE)
                else _Failed("no answer")
            )
        except EOFError:
            answer = _Failed("its keeper has ended")
        if not isinstance(answer, _Failed):
            return answer
        printed = self._log.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"the JVM of killed drivers: {answer.why}\n{printed}")


def places_of(folder: Path) -> dict[str, str]:
    """Environment variables that send a driver's temporary files to a folder.

    A killed process does not clean up; its files are removed with the folder of the test.
    """
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}


def _begin(log: Path, environment: Mapping[str, str]) -> None:
    """Make this forked process look like one that was started directly."""
    os.setsid()
    with log.open("ab") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.clear()
    os.environ.update({**environment, "TZ": "UTC"})
    time.tzset()
    tempfile.tempdir = None


def _attach(gateway: Gateway, script: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Run a script as a driver whose JVM exists already."""
    _begin(log, environment)
    steps = [Step(**step) for step in json.loads(script.read_text(encoding="utf-8"))]
    spark = _session_of(gateway)
    script.with_name(f"{script.name}.begun").touch()
    run(spark, steps, script.with_name(f"{script.name}.cut"))


def _session_of(gateway: Gateway) -> SparkSession:
    """A new session of the JVM's context."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # Only for this call: it signals that `spark-submit` has started the driver.
    given = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.secret}
    os.environ.update(given)
    gateway_client = launch_gateway()  # type: ignore[no-untyped-call]
    for name in given:
        del os.environ[name]
    # The JVM releases callbacks of dead drivers by number, and notifies the attached one.
    gateway_client.gateway_property.pool.next_id = os.getpid() * 10**6
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java = gateway_client.jvm.JavaSparkContext.fromSparkContext(
        gateway_client.jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jconf=java.getConf())
    context = SparkContext(gateway=gateway_client, jsc=java, conf=conf)
    first = gateway_client.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, jsparkSession=first.newSession())


def _keep(pipe: Connection[object, object], log: Path, environment: Mapping[str, str]) -> None:
    """Start a JVM for others, and settle it on request until the pipe is closed."""
    from pyspark import SparkContext

    from capstan.spark.session import build_session
    from tests.support.small_spark import LASTING, MASTER

    _begin(log, environment)
    spark = build_session("capstan-victim", master=MASTER, extra={**LASTING, **_MEMORY})
    gateway_client = SparkContext._gateway
    assert gateway_client is not None
    place = gateway_client.gateway_parameters
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    settling = _Settling(spark, gateway_client, jvm)
    pipe.send(Gateway(place.port, place.auth_token, jvm))
    with suppress(EOFError):
        while True:
            pipe.recv()
            left = settling.settle()
            pipe.send(_Failed(f"{left} left") if left else None)
    spark.stop()
    gateway_client.shutdown()
    gateway_client.proc.stdin.close()
    gateway_client.proc.wait(PATIENCE)
    shutil.rmtree(environment["TMPDIR"], ignore_errors=True)


class _Settling:
    """Brings a JVM to rest while only its keeper is attached."""

    def __init__(self, spark: SparkSession, gateway_client: ClientServer, jvm: int) -> None:
        from py4j.java_gateway import JavaObject

        self._context = spark.sparkContext._jsc.sc()
        self._queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._client, self._jvm = gateway_client._gateway_client, psutil.Process(jvm)
        self._port = gateway_client.gateway_parameters.port
        server = JavaObject("GATEWAY_SERVER", self._client)
        self._objects = server.getGateway().getBindings().keySet()
        self._own_objects = set(self._objects.toArray())

    def settle(self) -> str:
        """Bring it to rest; returns a description of remaining work, or nothing."""
        end = time.monotonic() + PATIENCE / 2
        while left := self._left():
            if time.monotonic() > end:
                return left
            for query in list(self._queries.values()):
                query.stop()
            self._context.cancelAllJobs()
            time.sleep(0.02)
        # A killed driver has not released its objects.
        for name in set(self._objects.toArray()) - self._own_objects:
            if re.fullmatch(r"o[0-9]+", name):
                self._client.garbage_collect_object(name)
        return ""

    def _left(self) -> str:
        """Work that still runs for dead drivers: queries, jobs, calls of the JVM."""
        queries, jobs = self._queries.size(), self._context.dagScheduler().activeJobs().size()
        # The thread of a call closes its connection when the call ends, even for a dead driver.
        own_ports = {c.laddr.port for c in psutil.Process().net_connections("tcp")}
        calls = [
            connection
            for connection in self._jvm.net_connections("tcp")
            if connection.laddr.port == self._port
            and connection.raddr
            and connection.raddr.port not in own_ports
        ]
        remaining = {"queries": queries, "jobs": jobs, "calls": len(calls)}
        return ", ".join(f"{count} {kind}" for kind, count in remaining.items() if count)
