"""The only place that builds a SparkSession, with Delta and lean settings for any machine size."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from capstan.errors import BadRequest, Broken
from capstan.runtime.jars import delta_jars
from capstan.runtime.java import find_java, spark_home

_LOG_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\*|[0-9]+)(?:,[0-9]+)?\])?")
_JVM_OPTIONS = "spark.driver.extraJavaOptions"
# Every query is new code, most of it gone before the second compiler is done with it: with the
# usual thresholds that one takes half of a small batch's CPU. Loops over many rows still reach it.
_COMPILER = " ".join(
    f"-XX:Tier4{name}={count}"
    for name, count in (
        ("InvocationThreshold", 50_000),
        ("MinInvocationThreshold", 6_000),
        ("CompileThreshold", 100_000),
    )
)
_LOG4J = Path(__file__).parent / "runtime" / "log4j2.properties"

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # INT96, Spark's default, is nanoseconds to other readers: the year 1 does not fit.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Delta rebuilds a table's state in 50 tasks by default: ten times as slow on few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
    # 10 000 by default, of which VACUUM makes as many tasks: 20 s for a tiny table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Both add commits or shuffles of their own; maintenance does that when it is asked to.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
}

# Of so much code the JVM's own bound (48 MB under the first compiler alone) is soon full, and then
# a third of the processor goes into sweeping it.
_CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"
# For jobs of a minute or two: they end before the second compiler's better code has paid for
# itself, and it takes a third of their processor time. Not for large ranges.
SHORT = {_JVM_OPTIONS: "-XX:TieredStopAtLevel=1"}


def build_session(
    app_name: str = "capstan",
    *,
    master: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Build the Spark session of this process, or return the one that is already there.

    Under `spark-submit` everything that was given there stands: master, jars, memory, and every
    other setting. Started from Python, the driver is a child of this process: local by default,
    quiet, with the interpreter of this process for its Python workers. Timestamps are UTC
    everywhere; also the time zone of this process becomes UTC, because `collect` converts with it.

    Args:
        app_name: The name that Spark shows.
        master: A Spark master URL; `local[*]` by default.
        extra: Settings that win over those of this module. They also apply to a session that is
            already there, as far as Spark lets them change. JVM options are added, not replaced.

    Raises:
        Broken: `CAP-JAVA` or `CAP-JARS` when set-up is not done, `CAP-SPARK` when Spark does not
            start.
        BadRequest: `CAP-SETTING` when `CAPSTAN_LOG_LEVEL` or `CAPSTAN_DRIVER_MEMORY` is not valid.
    """
    wanted = dict(extra or {})
    if SparkContext._active_spark_context is not None:
        return _start(SparkConf(loadDefaults=False), wanted)
    _use_utc(os.environ)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app_name, wanted)
    place = master or "local[*]"
    settings = {
        **_SETTINGS,
        **_own_process(),
        **(_local(place) if is_local(place) else {}),
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
    }
    options = [_quiet_logs(), _COMPILER, _CODE_CACHE, wanted.pop(_JVM_OPTIONS, "")]
    settings[_JVM_OPTIONS] = " ".join(option for option in options if option)
    os.environ["JAVA_HOME"] = str(spark_home(find_java()))
    if is_local(place):
        _python_of(os.environ, force=True)
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    else:
        _python_of(os.environ, force=False)
    conf = SparkConf(loadDefaults=False).setMaster(place).setAppName(app_name)
    return _start(conf, {**settings, **wanted})


def is_local(master: str) -> bool:
    """Whether `master` runs everything in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def _submitted(app_name: str, wanted: Mapping[str, str]) -> SparkSession:
    """The session of a driver that `spark-submit` has started: what was given there wins."""
    SparkContext._ensure_initialized()
    _require_delta()
    given = SparkConf()
    settings = {"spark.app.name": app_name, **_SETTINGS, **_warehouse(), **wanted}
    return _start(given, {k: v for k, v in settings.items() if not given.contains(k)})


def _require_delta() -> None:
    """Check that the JVM that `spark-submit` started has Delta; Spark itself would only warn."""
    jvm = SparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_SETTINGS["spark.sql.extensions"], False, loader)
    except Py4JJavaError as error:
        raise Broken(
            "CAP-JARS",
            "Spark was submitted without Delta's jars",
            f"give spark-submit --jars {','.join(str(jar) for jar in delta_jars())}",
        ) from error


def _start(conf: SparkConf, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        conf.set(key, value)
    try:
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise Broken(
            "CAP-SPARK",
            f"Spark did not start: {(str(error) or type(error).__name__).splitlines()[0]}",
            "run `capstan doctor`; CAPSTAN_LOG_LEVEL=INFO shows what Spark does",
        ) from error


def _own_process() -> dict[str, str]:
    """Settings of a driver that this process starts: its memory must be known before its JVM."""
    memory = os.environ.get("CAPSTAN_DRIVER_MEMORY") or _default_memory()
    if not _MEMORY.fullmatch(memory):
        raise BadRequest(
            "CAP-SETTING",
            f"CAPSTAN_DRIVER_MEMORY is {memory!r}, not a size of memory",
            "give a number and a unit, such as 4g or 800m",
            field="CAPSTAN_DRIVER_MEMORY",
        )
    return {"spark.driver.memory": memory, **_warehouse()}


def _local(master: str) -> dict[str, str]:
    match = _LOCAL.fullmatch(master)
    threads = match.group(1) if match else None
    cores = os.cpu_count() or 1 if threads == "*" else int(threads or 1)
    # Nothing here listens beyond this machine, and no name of it has to resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A start only: adaptive execution joins partitions that turn out small.
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
    }


def _default_memory() -> str:
    """Half of the machine's memory, at least 1 and at most 4 GiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        total = 4 << 30
    return f"{min(4096, max(1024, total // 2 // (1 << 20)))}m"


def _quiet_logs() -> str:
    """The JVM options that send logs to standard error, errors only unless asked for more."""
    level = os.environ.get("CAPSTAN_LOG_LEVEL", "ERROR").upper()
    if level not in _LOG_LEVELS:
        raise BadRequest(
            "CAP-SETTING",
            f"CAPSTAN_LOG_LEVEL is {level!r}, not a level",
            f"give one of {', '.join(_LOG_LEVELS)}",
            field="CAPSTAN_LOG_LEVEL",
        )
    return f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dcapstan.log.level={level}"


def _python_of(environment: MutableMapping[str, str], *, force: bool) -> None:
    """Let Spark's Python workers run this interpreter; a cluster may have named its own."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if force or name not in environment:
            environment[name] = sys.executable


def _use_utc(environment: MutableMapping[str, str]) -> None:
    environment["TZ"] = "UTC"
    if hasattr(time, "tzset"):
        time.tzset()


@cache
def _warehouse_folder() -> str:
    """A folder for tables without a place of their own, gone when this process ends.

    Spark makes one in the working directory otherwise, even for a session that has no such table.
    """
    folder = tempfile.mkdtemp(prefix="capstan-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder).as_uri()


def _warehouse() -> dict[str, str]:
    return {"spark.sql.warehouse.dir": _warehouse_folder()}
