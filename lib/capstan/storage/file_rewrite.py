"""Files of a table in the place of others, in one commit that no append is in the way of.

A replacement by a condition reads the table, as Delta sees it, and loses to every append that
comes between. Whoever puts files in the place of files knows which rows these are: it loses only
to a writer that takes the same files. Delta offers that to its own `OPTIMIZE` alone, so the parts
of its writer are called one by one here, as in `capstan.storage.idempotent_write`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from capstan.errors import SystemFailureError
from capstan.storage import delta
from capstan.storage.commit_lock import committing
from capstan.storage.commit_retry import is_conflict
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_METRICS = "spark.databricks.delta.history.metricsEnabled"


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange of files came to.

    Attributes:
        version: The version of the table that the commit made.
        files: Files that were added.
        bytes: Their size.
    """

    version: int
    files: int
    bytes: int


def rows_of_files(spark: SparkSession, path: str, files: Collection[str]) -> DataFrame:
    """The rows of some files of a table, with all of the table's columns, in no order."""
    schema = delta.load(spark, path).schema
    # Not all writers put into a file what the name of its folder says as well.
    reader = spark.read.schema(schema).option("basePath", path)
    rows = reader.parquet(*(f"{path}/{name}" for name in files))
    return rows.select(*(quoted(name) for name in schema.names))


def exchange(
    spark: SparkSession,
    path: str,
    gone: Mapping[str, int],
    rows: DataFrame | None,
    *,
    leaves_out: int | None = 0,
    note: Mapping[str, object] | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Exchanged | None:
    """Put `rows` in the place of the files `gone`, in one commit.

    Args:
        spark: The session.
        path: The table.
        gone: The files that are taken out, by their paths in the table, and how many rows each has.
        rows: What comes in their place, each partition as a file; None for nothing.
        leaves_out: How many rows fewer there are afterwards; none if the same rows are only laid
            out anew, which whoever follows the table is not told of. None where that is not known.
        note: For the commit.
        before_commit: Called when the files are written and nothing is committed yet; it may raise.

    Returns:
        None when another writer has taken some of the files: nothing was committed.

    Raises:
        SystemFailureError: `CAP-REWRITE` when what was written has another number of rows than it
            should.
    """
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
    transaction = log.startTransaction()
    known = int(transaction.snapshot().version())
    there = transaction.snapshot().allFiles().filter(F.col("path").isin(list(gone))._jc)
    taken = list(there.collectAsList())
    if len(taken) < len(gone):
        return None
    moved = leaves_out == 0
    actions = [] if rows is None else _write(spark, log, transaction, rows, moved=moved)
    added = [each for each in actions if each.getClass().getSimpleName() == "AddFile"]
    if leaves_out is not None:
        counts = [each.numPhysicalRecords() for each in added]
        written = [int(count.get()) for count in counts if count.isDefined()]
        require_rows(path, sum(gone.values()) - leaves_out, written)
    if before_commit is not None:
        before_commit()
    now = int(time.time() * 1000)
    actions += [each.removeWithTimestamp(now, not moved) for each in taken]
    token = uuid.uuid4().hex
    with committing(path):
        done = _commit(spark, transaction, actions, delta.note_text(note, token), moved=moved)
    if not done:
        return None
    commit = delta.find_commit(path, token, known)
    assert commit is not None
    return Exchanged(commit.version, len(added), sum(int(each.size()) for each in added))


def _write(
    spark: SparkSession, log: JavaObject, transaction: JavaObject, rows: DataFrame, *, moved: bool
) -> list[JavaObject]:
    """Write rows as new files of the table; the actions that would add them."""
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    package = jvm.org.apache.spark.sql.delta
    nothing, none = jvm.PythonUtils.toScalaMap({}), jvm.scala.Option.empty()
    given = jvm.PythonUtils.toScalaMap({"dataChange": "false"} if moved else {})
    settings = package.DeltaOptions(given, session.sessionState().conf())
    append, columns = jvm.org.apache.spark.sql.SaveMode.Append, jvm.PythonUtils.toSeq([])
    write = package.commands.WriteIntoDelta(
        log, append, settings, columns, nothing, rows._jdf, none, none, False
    )
    actions = write.writeAndReturnCommitData(transaction, session, none, False).actions()
    return [actions.apply(index) for index in range(actions.size())]


def require_rows(path: str, expected: int, written: Iterable[int]) -> None:
    """Check that the files that were written anew have as many rows as they should.

    Raises:
        SystemFailureError: `CAP-REWRITE` when they have not.
    """
    found = sum(written)
    if found != expected:
        raise SystemFailureError(
            "CAP-REWRITE",
            f"{expected} rows of {path} were to be written anew, and {found} were: nothing was "
            "committed",
            "run the same command again; if it stays so, report this",
            path=path,
        )


def _commit(
    spark: SparkSession,
    transaction: JavaObject,
    actions: list[JavaObject],
    note: str,
    *,
    moved: bool,
) -> bool:
    """Commit; whether nobody else had taken a file."""
    jvm = spark._jvm
    assert jvm is not None
    package, none = jvm.org.apache.spark.sql.delta, jvm.scala.Option.empty()
    nobody, tags = jvm.PythonUtils.toSeq([]), jvm.PythonUtils.toScalaMap({})
    if moved:
        optimize = getattr(package, "DeltaOperations$Optimize")
        operation = optimize(nobody, nobody, False, none, False)
    else:
        operation = getattr(package, "DeltaOperations$Delete")(nobody)
    # These operations take their note from the active session alone, and the other threads of
    # this process have that one too.
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    before, own = sessions.getActiveSession(), spark._jsparkSession.newSession()
    own.conf().set(_NOTE, note)
    # Delta's own commands count for it what they do; this one does not.
    own.conf().set(_METRICS, "false")
    sessions.setActiveSession(own)
    try:
        transaction.commitIfNeeded(jvm.PythonUtils.toSeq(actions), operation, tags)
    except (Py4JJavaError, PySparkException) as error:
        if not is_conflict(error):
            raise
        return False
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
    return True
