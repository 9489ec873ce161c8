"""Sessions of a call's own: the only place that sets what others could share.

Settings, temporary names and the active session belong to a session. Set and restored around a
call, they would be those of every call that overlaps it. So each call works in a session of its
own, which is the active one of its thread alone, and frames of other sessions are handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

# For a plan that runs once over few rows, interpretation is faster than generating and compiling
# Java code, and adaptive execution has no use.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
FEW_ROWS = 100_000
"""Plans of at most this many rows are interpreted."""

# Spark reads this setting when it computes a row, in the session that runs the query; all others
# when it analyses or plans, in the session of the frame.
_READ_LATE = "spark.sql.legacy.timeParserPolicy"

_CLASSIC = "org.apache.spark.sql.classic"
# Where pyspark keeps sessions for all threads of the process.
_PROCESS_WIDE = ("_activeSession", "_instantiatedSession")
_creating = Lock()
_of_thread: ContextVar[SparkSession | None] = ContextVar("capstan session", default=None)


class OwnSession(SparkSession):
    """A session of a call, which never becomes the active one of other threads."""

    def createDataFrame(self, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N802
        """As pyspark's, which makes the session the active one of the whole process."""
        # Of two calls at once, the second would save the session of the first, and leave it there.
        with _creating:
            before = vars(SparkSession)[_PROCESS_WIDE[0]]
            try:
                return super().createDataFrame(*args, **kwargs)
            finally:
                setattr(SparkSession, _PROCESS_WIDE[0], before)


class _OfThread:
    """A session that pyspark keeps for all threads, except in a thread with a call's own."""

    def __init__(self, shared: object) -> None:
        self._shared = shared

    def __get__(self, _instance: object, _owner: type) -> object:
        return _of_thread.get() or self._shared


def new_session(spark: SparkSession) -> SparkSession:
    """A session of the same Spark application, with the settings that it was started with."""
    return OwnSession(spark.sparkContext, spark._jsparkSession.newSession())


def copy_of(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the same settings, temporary names and catalog, and some other settings."""
    session = OwnSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    set_all(session, settings or {})
    return session


def set_all(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set settings of a session that nobody else has; None for Spark's default."""
    for key, value in settings.items():
        if value is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, value)


def reading_like(session: SparkSession, caller: SparkSession) -> SparkSession:
    """A copy of a session in which frames of the caller's give what they give in its own."""
    return copy_of(session, {_READ_LATE: str(caller.conf.get(_READ_LATE))})


def is_same(first: SparkSession, second: SparkSession) -> bool:
    """Whether a frame of one session means the same in the other one, to be run there."""
    if first._jsparkSession == second._jsparkSession:
        return True
    return first.conf.getAll == second.conf.getAll


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """A frame in another session: its analysed expressions stay, and it is planned there."""
    return _frame(frame._jdf.logicalPlan(), session)


def handed_over(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The rows of a frame, which is planned in its own session, for expressions of another one."""
    dataset = frame._jdf
    plan = dataset.logicalPlan()
    # The frame of a micro-batch has been planned by its query.
    if plan.getClass().getSimpleName() != "LogicalRDD":
        # Python reaches the methods of a Scala companion only by its object.
        relations: Any = getattr(_jvm(session), "org.apache.spark.sql.execution.LogicalRDD$")
        plan = getattr(relations, "MODULE$").fromDataset(
            dataset.queryExecution().toRdd(), dataset, False
        )
    return _frame(plan, session)


def owned(frame: DataFrame) -> DataFrame:
    """The frame of a micro-batch, whose session Spark has made for the query alone."""
    return DataFrame(
        frame._jdf, OwnSession(frame.sparkSession.sparkContext, frame._jdf.sparkSession())
    )


def _frame(plan: JavaObject, session: SparkSession) -> DataFrame:
    datasets: Any = getattr(_jvm(session), f"{_CLASSIC}.Dataset")
    return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread inside the `with` block, and of no other."""
    for name in _PROCESS_WIDE:
        present = vars(SparkSession)[name]
        if not isinstance(present, _OfThread):
            setattr(SparkSession, name, _OfThread(present))
    sessions: Any = getattr(_jvm(session), f"{_CLASSIC}.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    token = _of_thread.set(session)
    try:
        yield
    finally:
        _of_thread.reset(token)
        # If Spark was stopped, its JVM may be gone.
        with suppress(Exception):
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


@contextmanager
def interpreting(session: SparkSession, rows: int) -> Iterator[None]:
    """Interpret plans, for few rows: in a new process, compiling takes a third of a small run."""
    if rows > FEW_ROWS:
        yield
        return
    with _set(session, _INTERPRETED):
        yield


@contextmanager
def dividing_otherwise(session: SparkSession) -> Iterator[None]:
    """Divide what is scanned and shuffled into other partitions than by default."""
    configured = session._jsparkSession.sessionState().conf()
    settings = {
        "spark.sql.files.minPartitionNum": session.sparkContext.defaultParallelism + 1,
        "spark.sql.files.maxPartitionBytes": max(1, configured.filesMaxPartitionBytes() * 3 // 4),
        "spark.sql.shuffle.partitions": configured.numShufflePartitions() + 1,
    }
    with _set(session, {key: str(value) for key, value in settings.items()}):
        yield


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: session.conf.get(key, None) for key in settings}
    try:
        set_all(session, settings)
        yield
    finally:
        # If the session was shut down, its JVM has no settings.
        with suppress(Exception):
            set_all(session, before)
