"""Builds SparkSessions with Delta and lean settings; the only module that does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext, __version__
from pyspark.sql import DataFrame, SparkSession

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.errors.shell_command import shell_line
from capstan.spark.project_home import process_folder
from capstan.spark.s3_settings import names_in_defaults, s3_settings
from capstan.spark.safe_commits import CHECKPOINT_FILES, has_class
from capstan.spark.setup import jvm
from capstan.spark.setup.class_archive import archive_options, local_settings
from capstan.spark.setup.code_archive import code_archive
from capstan.spark.setup.jars import LOG_STORE_JAR, delta_jars, spark_jars
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.jvm import is_local
from capstan.spark.setup.local_submit import pyspark_home
from capstan.spark.setup.spark_series import installed_series, require_series

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # With substitution, `${env:NAME}` in the SQL of a transform would depend on the machine.
    "spark.sql.variable.substitute": "false",
    "spark.sql.adaptive.enabled": "true",
    # Partition values are text unless declared otherwise; inference would turn 007 into 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # By default batches are bounded only by 10 000 rows: gigabytes for long texts or states.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 2**20),
    # INT96, Spark's default, means nanoseconds to other readers, which cannot hold the year 1.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Each query formats its plan for the UI, which is off: a tenth of a small batch.
    "spark.sql.ui.explainMode": "simple",
    # With debugging on, each column or frame call passes its Python line to the JVM: ten calls
    # instead of one, and most of the Python time of a run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # By default Delta rebuilds a table's state in 50 tasks: ten times slower on few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The default of 10 000 makes VACUUM start as many tasks: 20 s for a tiny table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # With logging, VACUUM adds two commits.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A commit writes two log files in a folder, and four with Hadoop's checksums. Delta lists the
    # folder on each access: after 2,000 commits a third of a small batch.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Spark writes a checksum of each page. A flipped bit is found where its column is read.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Positions are unique within a task, so a dictionary would only write each value twice.
    "spark.hadoop.parquet.enable.dictionary#pos": "false",
    # Both add commits or shuffles; maintenance does this on request.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
}

# The applications that this process has started here.
_STARTED: set[str] = set()

# Variables by which pyspark makes sessions of Spark Connect; it sets the second one itself.
_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")

# The zone of Python workers, wherever they run.
_EXECUTORS = {"spark.executorEnv.TZ": "UTC"}


def build_session(
    app_name: str = "capstan", *, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Build the Spark session of this process, or return the existing one.

    Under `spark-submit` all options given there are kept: master, jars, memory and all other
    settings. When started from Python, the driver is a child of this process: local by default,
    with a quiet log, and with the interpreter of this process for its Python workers. Timestamps
    are UTC everywhere; the time zone of this process stays as it is. What pyspark needs to start
    Spark stays in the environment: `JAVA_HOME`, and for a local master `SPARK_HOME`,
    `SPARK_LOCAL_IP` and the `PYSPARK_*` variables. On a cluster the executors get the code of this
    package from the driver.

    Args:
        master: A Spark master URL; by default `CAPSTAN_MASTER`, or `local[*]`.
        extra: Settings that override those of this module. They also apply to an existing
            session, as far as Spark can change them. JVM options are appended, not replaced.
    """
    _require_classic()
    require_series(__version__)
    wanted = dict(extra or {})
    if SparkContext._active_spark_context is not None:
        return _start(SparkConf(loadDefaults=False), wanted)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app_name, wanted)
    place = master or os.environ.get("CAPSTAN_MASTER") or "local[*]"
    java, local = find_java(), is_local(place)
    # The memory must be known before the JVM starts.
    settings = {
        **SETTINGS,
        **_EXECUTORS,
        **s3_settings(os.environ, _given()),
        "spark.driver.memory": jvm.driver_memory(),
        **_warehouse(),
    }
    if local:
        settings |= local_settings(place)
    else:
        settings["spark.jars"] = ",".join(str(jar) for jar in spark_jars())
    archive = archive_options(java) if local else ""
    settings[jvm.OPTIONS] = jvm.driver_options(archive, wanted.pop(jvm.OPTIONS, ""))
    os.environ["JAVA_HOME"] = str(spark_home(java))
    if local:
        # Avoids resolving the host name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _python_of(os.environ, force=True)
        os.environ["SPARK_HOME"] = str(pyspark_home())
    else:
        _python_of(os.environ, force=False)
    conf = SparkConf(loadDefaults=False).setMaster(place).setAppName(app_name)
    return _start(conf, {**settings, **wanted})


def _given() -> set[str]:
    """The settings for S3 that are not ours to make."""
    # Where it cannot be used, its class cannot even be loaded.
    absent = () if installed_series().writes_s3 else CHECKPOINT_FILES
    return {*names_in_defaults(os.environ), *absent}


def _require_classic() -> None:
    """Check that a session of this process has its JVM here."""
    for name in _CONNECT:
        if os.environ.get(name, "").lower() not in ("", "classic"):
            raise InvalidRequestError(
                "CAP-CONNECT",
                f"{name} makes the sessions of this process those of Spark Connect",
                "start Capstan where Spark's driver runs, without this variable; or submit a job "
                "there, such as `python -m capstan.jobs replay`",
            )


def is_ours(session: SparkSession) -> bool:
    """Whether `build_session` has started the Spark application of a session."""
    return session.sparkContext.applicationId in _STARTED


Later = Callable[[], SparkSession]
"""Builds a session on the first call, for work that may need none."""


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows of a frame, once they are computed, until the `with` block ends."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def session_of(spark: SparkSession | Later) -> SparkSession:
    """The session; built now if it was deferred."""
    return spark if isinstance(spark, SparkSession) else spark()


def _submitted(app_name: str, wanted: Mapping[str, str]) -> SparkSession:
    """The session of a driver started by `spark-submit`, whose options take precedence."""
    SparkContext._ensure_initialized()
    _require_delta()
    submitted = SparkConf()
    given = {name for name, _ in submitted.getAll()}
    # A log store is used by who writes to S3 alone, but this class for each checkpoint.
    given |= {key for key, name in CHECKPOINT_FILES.items() if not has_class(name)}
    settings = {
        "spark.app.name": app_name,
        **SETTINGS,
        **s3_settings(os.environ, given),
        **_EXECUTORS,
        **_warehouse(),
        **wanted,
    }
    return _start(submitted, {k: v for k, v in settings.items() if not submitted.contains(k)})


def _require_delta() -> None:
    """Check that the JVM of `spark-submit` has Delta; Spark itself would only warn."""
    if not has_class(SETTINGS["spark.sql.extensions"]):
        jars = ",".join(str(jar) for jar in (*delta_jars(), LOG_STORE_JAR))
        raise SystemFailureError(
            "CAP-JARS",
            "Spark was submitted without Delta's jars",
            f"give {shell_line('spark-submit', '--jars', jars)}",
        )


def _start(conf: SparkConf, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        conf.set(key, value)
    is_new = SparkContext._active_spark_context is None
    try:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        if is_new:
            _STARTED.add(session.sparkContext.applicationId)
        if is_new and not is_local(str(session.sparkContext.master)):
            session.sparkContext.addPyFile(str(code_archive()))
        return session
    except Exception as error:
        raise SystemFailureError(
            "CAP-SPARK",
            f"Spark did not start: {(str(error) or type(error).__name__).splitlines()[0]}",
            "run `capstan doctor`; CAPSTAN_LOG_LEVEL=INFO shows Spark's log",
        ) from error


def _python_of(environment: MutableMapping[str, str], *, force: bool) -> None:
    """Use this interpreter for Spark's Python workers, unless a cluster has set its own."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if force or name not in environment:
            environment[name] = sys.executable


def _warehouse() -> dict[str, str]:
    """A temporary folder for tables without a path; else Spark makes one in the working folder."""
    return {"spark.sql.warehouse.dir": process_folder("warehouse").as_uri()}
