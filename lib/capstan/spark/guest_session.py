"""A session beside a caller's own: the same JVM and tables, settings of its own."""

from __future__ import annotations

import threading

from pyspark import SparkContext
from pyspark.sql import SparkSession

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.own_session import new_session, set_all
from capstan.spark.safe_commits import require_safe_commits
from capstan.spark.session import SETTINGS, Later, build_session, is_ours
from capstan.spark.setup.spark_series import require_series

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "spark.sql.catalog.spark_catalog"
_PREFIX = "spark.hadoop."
# What an application may have been started with that changes no result: places, sizes, defaults of
# a site for its tables. All else that SQL or Delta read is Spark's own default.
_KEPT = (
    "spark.sql.catalog.",
    "spark.sql.hive.",
    "spark.sql.warehouse.",
    "spark.sql.redaction.",
    "spark.sql.shuffle.",
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcast",
    "spark.sql.broadcast",
    "spark.sql.files.max",
    "spark.sql.files.min",
    "spark.sql.files.open",
    "spark.sql.parquet.compression.",
    "spark.sql.streaming.",
    "spark.databricks.delta.properties.defaults.",
    "spark.databricks.delta.retentionDurationCheck.",
)
_READ = ("spark.sql.", "spark.databricks.delta.")
# Two calls that start Spark at once share what the first one starts.
_opening = threading.Lock()


def call_session(spark: SparkSession) -> SparkSession:
    """A new session for one call: of an application that Capstan has started, or of a caller's."""
    return new_session(spark) if is_ours(spark) else guest_session(spark)


def guest_session(spark: SparkSession) -> SparkSession:
    """A new session of the caller's Spark application, with the settings that Capstan needs.

    Time zone, ANSI rules and the like of the caller's session stay as they are, and have no effect
    in the new one. Both sessions see the same tables and run on the same executors.
    """
    require_delta(spark)
    session = new_session(spark)
    is_modifiable = session.conf.isModifiable
    read = [key for key in session.conf.getAll if key.startswith(_READ)]
    changing = [key for key in read if not key.startswith(_KEPT) and is_modifiable(key)]
    set_all(session, dict.fromkeys(changing))
    # As far as a running session can take them.
    own = {k: v for k, v in SETTINGS.items() if k.startswith(_PREFIX) or is_modifiable(k)}
    set_all(session, {key.removeprefix(_PREFIX): value for key, value in own.items()})
    return session


def require_delta(spark: SparkSession) -> None:
    """Check that a caller's session is of this process, and that Delta is configured in it."""
    _require_classic(spark)
    series = require_series(spark.version)
    conf = spark.sparkContext.getConf()
    extensions = conf.get("spark.sql.extensions") or ""
    if _EXTENSION not in extensions.split(","):
        raise SystemFailureError(
            "CAP-DELTA",
            "the Spark session has no Delta",
            f"build it with spark.sql.extensions={_EXTENSION}, {_CATALOG}={SETTINGS[_CATALOG]} and "
            f"the package {series.delta}; or pass no session, and Capstan starts one",
        )


def _require_classic(session: object) -> None:
    if not isinstance(session, SparkSession):
        raise InvalidRequestError(
            "CAP-CONNECT",
            f"{type(session).__module__}.{type(session).__name__} is not a session of this process",
            "start Capstan where Spark's driver runs, or submit a job there, such as `python -m "
            "capstan.jobs replay`: Spark Connect has no access to Delta's log",
        )


def open_session(given: SparkSession | Later | None, lake: str) -> tuple[SparkSession, bool]:
    """The session to work with, by default this process's, and whether it was started here."""
    with _opening:
        if callable(given):
            session, started = given(), True
        else:
            if given is not None:
                _require_classic(given)
            started = given is None and SparkContext._active_spark_context is None
            # Without a session of the caller's, this is the one of the process, or a new one.
            session = given if given is not None else build_session("capstan")
            if not is_ours(session):
                session = guest_session(session)
    require_safe_commits(session, lake)
    return session, started
