"""A JVM that outlives the drivers that are killed: each is a Python process attached to it.

A driver is two processes, Python and its JVM. All named points of `capstan.instrumentation` are in
Python, between two calls of the JVM: at a point the JVM does nothing for this driver, but for the
query of a capture, which waits for its answer. So what is on disk is the same whether both are
killed there or Python alone, once nothing that the dead one had asked for is at work any more;
`Victim.settle` sees to that before anybody goes on. Only a driver that is killed together with a
JVM of its own proves that nothing beyond Python ends or clears away what was begun, wherever it is
cut off: not at a point, on a cluster, between files of one commit. See
`tests.support.child_drivers.start`.

The JVM is started once, by a keeper of its own process. Drivers are forked from a process that has
imported all that they need, and has started nothing: that takes a tenth of a second instead of
twenty. One at a time may be attached, as the JVM calls back the Python process that asked last.
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

# What a driver works with, imported before the first one is forked. None of them starts threads by
# being imported that others wait for.
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
    """Where a JVM takes calls from Python.

    Attributes:
        port: On this machine.
        secret: What a caller has to know.
        jvm: Its process.
    """

    port: int
    secret: str
    jvm: int


@dataclass(frozen=True, slots=True)
class Attached:
    """A Python process that is attached to a JVM, as `subprocess.Popen` has processes."""

    process: BaseProcess

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """What it has ended with; below zero the signal that has killed it."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """What it has ended with, None while it runs."""
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
    """Why a JVM cannot be used any more."""

    why: str


class Victim:
    """A JVM for drivers that are killed one after the other; it ends with this process."""

    def __init__(self, folder: Path) -> None:
        """Start it; its log and temporary files go to `folder`, which is made here."""
        folder.mkdir(parents=True)
        self._log = folder / "log"
        self._asked, other = _FORKS.Pipe()
        environment = {**os.environ, **places_of(folder)}
        self._keeper = _FORKS.Process(
            target=_keep, args=(other, self._log, environment), daemon=True
        )
        self._keeper.start()
        other.close()
        self._gateway: Gateway = self._answer()
        self._last: BaseProcess | None = None

    def start(self, folder: Path, script: Path, log: Path) -> Attached:
        """Start a driver that carries out the script in a file; nobody else may be attached.

        Args:
            folder: For its temporary files.
            script: As `tests.support.driver_under_test` has it.
            log: Gets all it prints.
        """
        if self._last is not None and self._last.is_alive():
            raise RuntimeError(f"{self._last.name} still is attached")
        environment = {**os.environ, **places_of(folder)}
        asked = (self._gateway, script, log, environment)
        self._last = _FORKS.Process(target=_attach, args=asked, name=str(folder), daemon=True)
        self._last.start()
        return Attached(self._last)

    def settle(self) -> None:
        """End all that drivers which are gone had asked for, and wait until nothing is left of it.

        Raises:
            AssertionError: Something of it is still at work.
        """
        self._asked.send("settle")
        self._answer()

    def stop(self) -> None:
        """End the JVM, its keeper, and whoever is attached."""
        if self._last is not None and self._last.is_alive():
            self._last.kill()
        self._asked.close()
        self._keeper.join(PATIENCE)
        # The keeper leads a group, which is empty now unless something of it hangs.
        assert self._keeper.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self._keeper.pid, signal.SIGKILL)

    def _answer(self) -> Any:
        try:
            found = self._asked.recv() if self._asked.poll(2 * PATIENCE) else _Failed("no answer")
        except EOFError:
            found = _Failed("its keeper has ended")
        if not isinstance(found, _Failed):
            return found
        printed = self._log.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"the JVM of drivers that are killed: {found.why}\n{printed}")


def places_of(folder: Path) -> dict[str, str]:
    """Variables that have a driver's temporary files go to a folder.

    Who is killed clears nothing away; what it leaves goes with the test's own folder.
    """
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}


def _begin(log: Path, environment: Mapping[str, str]) -> None:
    """Make this forked process one that looks as if it was started by itself."""
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
    """Carry out a script, as a driver whose JVM is there already."""
    _begin(log, environment)
    found = [Step(**step) for step in json.loads(script.read_text(encoding="utf-8"))]
    spark = _session_of(gateway)
    script.with_name(f"{script.name}.begun").touch()
    run(spark, found, script.with_name(f"{script.name}.cut"))


def _session_of(gateway: Gateway) -> SparkSession:
    """A new session of the context that a JVM has."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # Not for longer: it says that `spark-submit` has started the driver.
    given = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.secret}
    os.environ.update(given)
    there = launch_gateway()  # type: ignore[no-untyped-call]
    for name in given:
        del os.environ[name]
    # The JVM lets go of what a dead one had it call back, by a number, and tells whoever is there.
    there.gateway_property.pool.next_id = os.getpid() * 10**6
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java = there.jvm.JavaSparkContext.fromSparkContext(
        there.jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jconf=java.getConf())
    context = SparkContext(gateway=there, jsc=java, conf=conf)
    first = there.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, jsparkSession=first.newSession())


def _keep(asked: Connection[object, object], log: Path, environment: Mapping[str, str]) -> None:
    """Have a JVM for others, and settle it when asked to, until nobody can ask any more."""
    from pyspark import SparkContext

    from capstan.spark.session import build_session
    from tests.support.small_spark import LASTING, MASTER

    _begin(log, environment)
    spark = build_session("capstan-victim", master=MASTER, extra={**LASTING, **_MEMORY})
    there = SparkContext._gateway
    assert there is not None
    place = there.gateway_parameters
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    settling = _Settling(spark, there, jvm)
    asked.send(Gateway(place.port, place.auth_token, jvm))
    with suppress(EOFError):
        while True:
            asked.recv()
            left = settling.settle()
            asked.send(_Failed(f"{left} left") if left else None)
    spark.stop()
    there.shutdown()
    there.proc.stdin.close()
    there.proc.wait(PATIENCE)
    shutil.rmtree(environment["TMPDIR"], ignore_errors=True)


class _Settling:
    """How a JVM is brought to rest once nobody but its keeper is attached."""

    def __init__(self, spark: SparkSession, there: ClientServer, jvm: int) -> None:
        from py4j.java_gateway import JavaObject

        self._context = spark.sparkContext._jsc.sc()
        self._queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._client, self._jvm = there._gateway_client, psutil.Process(jvm)
        self._port = there.gateway_parameters.port
        server = JavaObject("GATEWAY_SERVER", self._client)
        self._objects = server.getGateway().getBindings().keySet()
        self._own = set(self._objects.toArray())

    def settle(self) -> str:
        """Bring it to rest; what is still at work after all, or nothing."""
        end = time.monotonic() + PATIENCE / 2
        while left := self._left():
            if time.monotonic() > end:
                return left
            for query in list(self._queries.values()):
                query.stop()
            self._context.cancelAllJobs()
            time.sleep(0.02)
        # Who was killed has not let go of what it had in its hands.
        for each in set(self._objects.toArray()) - self._own:
            if re.fullmatch(r"o[0-9]+", each):
                self._client.garbage_collect_object(each)
        return ""

    def _left(self) -> str:
        """What is at work for those who are gone: queries, jobs, calls of the JVM."""
        queries, jobs = self._queries.size(), self._context.dagScheduler().activeJobs().size()
        # Who serves a call closes its connection once that has come to its end, whoever is gone.
        own = {each.laddr.port for each in psutil.Process().net_connections("tcp")}
        calls = [
            each
            for each in self._jvm.net_connections("tcp")
            if each.laddr.port == self._port and each.raddr and each.raddr.port not in own
        ]
        rest = {"queries": queries, "jobs": jobs, "calls": len(calls)}
        return ", ".join(f"{count} {what}" for what, count in rest.items() if count)
