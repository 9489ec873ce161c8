"""The only place that builds a SparkSession, with Delta and lean settings for any machine size."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.instrumentation import subscribe
from capstan.spark import jvm
from capstan.spark.class_archive import archive_options, local_settings
from capstan.spark.code_archive import code_archive
from capstan.spark.jars import delta_jars, spark_jars
from capstan.spark.java import find_java, spark_home
from capstan.spark.jvm import is_local
from capstan.structured_logging import LogContext

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Or `${env:NAME}` in the SQL of a transform would be what this machine says.
    "spark.sql.variable.substitute": "false",
    "spark.sql.adaptive.enabled": "true",
    # What is in the name of a folder is text, unless it is declared: 007 would be 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Batches are bounded by 10 000 rows alone by default: of long texts or states, gigabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 2**20),
    # INT96, Spark's default, is nanoseconds to other readers: the year 1 does not fit.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Each query tells its plan to a page that is not there: formatted, a tenth of a small batch.
    "spark.sql.ui.explainMode": "simple",
    # Each call of a column or a frame would be told to the JVM with its line of Python: ten calls
    # for one, and the most of what Python does in a run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Delta rebuilds a table's state in 50 tasks by default: ten times as slow on few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
    # 10 000 by default, of which VACUUM makes as many tasks: 20 s for a tiny table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # VACUUM would commit twice to say that it was there.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A commit is two files of a log in a folder, with Hadoop's checksums four, and Delta lists the
    # folder at each look at the table: after 2,000 commits a third of a small batch.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # No two records of a task have one position: whoever looks for such first writes each twice.
    "spark.hadoop.parquet.enable.dictionary#pos": "false",
    # Both add commits or shuffles of their own; maintenance does that when it is asked to.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
}

# A plan that runs once over few rows is interpreted sooner than Java is made of it, and the JVM
# compiles that; nor has it any use for plans of its stages that are made as it runs.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
FEW_ROWS = 100_000
"""Of so many rows and fewer a plan is interpreted."""

# What writes an entry of a log there only if there is none yet has to be asked for it.
_BOTH_WIN = {"s3", "s3a", "s3n"}
# Where Delta has stores for every kind of place, and the one of them that asks somebody who wins.
_DELTAS = ("io.delta.storage.", "org.apache.spark.sql.delta.storage.")
_ONE_WINS = "io.delta.storage.S3DynamoDBLogStore"

# The driver's own process, and all that a local master starts, have it from `_use_utc`.
_EXECUTORS = {"spark.executorEnv.TZ": "UTC"}


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
    On a cluster, the executors get the code of this package from the driver.

    Args:
        app_name: The name that Spark shows.
        master: A Spark master URL; by default `CAPSTAN_MASTER`, or `local[*]`.
        extra: Settings that win over those of this module. They also apply to a session that is
            already there, as far as Spark lets them change. JVM options are added, not replaced.

    Raises:
        SystemFailureError: `CAP-JAVA` or `CAP-JARS` when set-up is not done, `CAP-SPARK` when Spark
            does not start.
        InvalidRequestError: `CAP-SETTING` when `CAPSTAN_LOG_LEVEL` or `CAPSTAN_DRIVER_MEMORY` is
            not valid.
    """
    wanted = dict(extra or {})
    if SparkContext._active_spark_context is not None:
        return _start(SparkConf(loadDefaults=False), wanted)
    _use_utc(os.environ)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app_name, wanted)
    place = master or os.environ.get("CAPSTAN_MASTER") or "local[*]"
    java, local = find_java(), is_local(place)
    settings = {**_SETTINGS, **_own_process()}
    if local:
        settings |= local_settings(place)
    else:
        settings |= {**_EXECUTORS, "spark.jars": ",".join(str(jar) for jar in spark_jars())}
    archive = archive_options(java) if local else ""
    settings[jvm.OPTIONS] = jvm.driver_options(archive, wanted.pop(jvm.OPTIONS, ""))
    os.environ["JAVA_HOME"] = str(spark_home(java))
    if local:
        # No name of this machine has to resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _python_of(os.environ, force=True)
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    else:
        _python_of(os.environ, force=False)
    conf = SparkConf(loadDefaults=False).setMaster(place).setAppName(app_name)
    return _start(conf, {**settings, **wanted})


Later = Callable[[], SparkSession]
"""A session for work that may need none: called by whoever needs it, and built then."""


def session_of(spark: SparkSession | Later) -> SparkSession:
    """The session itself, built now where that was put off."""
    return spark if isinstance(spark, SparkSession) else spark()


def require_one_winner(session: SparkSession, place: str) -> None:
    """Check that of two drivers which commit to a table at once only one can win.

    Folders, HDFS and the stores of Azure and Google see to that. S3 does for who asks it to, and
    of Delta's stores of logs none does: there both win, and one commit is lost.

    Args:
        session: The session that is to write.
        place: The table, or the lake that it lies in.

    Raises:
        InvalidRequestError: `CAP-LAKE` for a place on S3 without a `LogStore` that lets one win.
    """
    scheme = place.partition("://")[0] if "://" in place else ""
    if scheme not in _BOTH_WIN:
        return
    key = f"spark.delta.logStore.{scheme}.impl"
    store = session.sparkContext.getConf().get(key)
    if store and (store == _ONE_WINS or not store.startswith(_DELTAS)):
        return
    raise InvalidRequestError(
        "CAP-LAKE",
        f"two drivers that commit to {place} at once would both win, and one commit be lost"
        + (f": {store} does not see to it on S3" if store else ""),
        f"set {key} in spark-defaults.conf, to a store of yours that lets one win or to {_ONE_WINS}"
        "; or keep lake and targets in a file system that all reach",
        lake=place,
    )


@contextmanager
def interpreting(session: SparkSession, rows: int) -> Iterator[None]:
    """Interpret the plans that run inside the `with` block, if they are of few rows.

    In a fresh process code generation takes a third of a small run; of many rows it saves far more.

    Args:
        session: The session whose settings are changed; those of before come back.
        rows: About how many rows the plans read.
    """
    if rows > FEW_ROWS:
        yield
        return
    before = {key: session.conf.get(key) for key in _INTERPRETED}
    try:
        for key, value in _INTERPRETED.items():
            session.conf.set(key, value)
        yield
    finally:
        # The JVM of a session that is torn down has no settings any more.
        with suppress(Exception):
            for key, old in before.items():
                session.conf.set(key, old or "")


@contextmanager
def marked(session: SparkSession) -> Iterator[None]:
    """Have Spark's own log lines say which run they are of, inside the `with` block.

    Those of this driver, as soon as `capstan.instrumentation` tells the run; and those of its
    tasks, where the log of an executor has what Spark calls MDC.
    """
    about = LogContext()

    def mark(_point: str, facts: Mapping[str, object]) -> None:
        nonlocal about
        known = about.after(facts)
        if known != about:
            about = known
            _mark(session, about)

    try:
        with subscribe(mark):
            yield
    finally:
        if about != LogContext():
            # A session that goes on is of no run now; one whose JVM has died says nothing more.
            with suppress(Exception):
                _mark(session, LogContext())


def _mark(session: SparkSession, about: LogContext) -> None:
    jvm = SparkContext._jvm
    assert jvm is not None
    told = {name: "" if value is None else str(value) for name, value in about.to_json().items()}
    run = f"[{about.run} {about.attempt or ''}".rstrip() + "] " if about.run else ""
    jvm.java.lang.System.setProperty("capstan.run", run)
    jvm.java.lang.System.setProperty("capstan.about", json.dumps(about.to_json())[1:-1])
    for name, value in told.items():
        session.sparkContext.setLocalProperty(f"mdc.{name}", value)


def _submitted(app_name: str, wanted: Mapping[str, str]) -> SparkSession:
    """The session of a driver that `spark-submit` has started: what was given there wins."""
    SparkContext._ensure_initialized()
    _require_delta()
    given = SparkConf()
    settings = {"spark.app.name": app_name, **_SETTINGS, **_EXECUTORS, **_warehouse(), **wanted}
    return _start(given, {k: v for k, v in settings.items() if not given.contains(k)})


def _require_delta() -> None:
    """Check that the JVM that `spark-submit` started has Delta; Spark itself would only warn."""
    jvm = SparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_SETTINGS["spark.sql.extensions"], False, loader)
    except Py4JJavaError as error:
        raise SystemFailureError(
            "CAP-JARS",
            "Spark was submitted without Delta's jars",
            f"give spark-submit --jars {','.join(str(jar) for jar in delta_jars())}",
        ) from error


def _start(conf: SparkConf, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        conf.set(key, value)
    begins = SparkContext._active_spark_context is None
    try:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        if begins and not is_local(str(session.sparkContext.master)):
            session.sparkContext.addPyFile(str(code_archive()))
        return session
    except Exception as error:
        raise SystemFailureError(
            "CAP-SPARK",
            f"Spark did not start: {(str(error) or type(error).__name__).splitlines()[0]}",
            "run `capstan doctor`; CAPSTAN_LOG_LEVEL=INFO shows what Spark does",
        ) from error


def _own_process() -> dict[str, str]:
    """Settings of a driver that this process starts: its memory must be known before its JVM."""
    return {"spark.driver.memory": jvm.driver_memory(), **_warehouse()}


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
