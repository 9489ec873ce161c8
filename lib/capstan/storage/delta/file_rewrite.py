"""Replacement of files in a table, in one commit that does not conflict with appends.

A replacement by a condition reads the table, as Delta sees it, and loses to every concurrent
append. A replacement of known files loses only to a writer that removes the same files. Delta
offers this only to its own `OPTIMIZE`, so this module calls the parts of its writer one by one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.errors import SystemFailureError
from capstan.spark.own_session import active, copy_of
from capstan.storage.delta import delta
from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.commits import Note, is_conflict
from capstan.storage.delta.idempotent_write import DeltaWriter, added_files, list_of

_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_METRICS = "spark.databricks.delta.history.metricsEnabled"


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result of a replacement."""

    version: int
    files: int
    bytes: int


def exchange(
    spark: SparkSession,
    path: str,
    removed: Mapping[str, int],
    rows: DataFrame | None,
    *,
    leaves_out: int | None = 0,
    note: Note | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Exchanged | None:
    """Replace the files `removed` (path in the table to rows) with `rows`, a file per partition.

    `leaves_out` is the number of rows dropped, None if unknown. 0 means that rows are only
    rearranged, which followers of the table do not see as a change. `before_commit` is called after
    the files are written; it may raise. None when another writer has removed some of the files;
    then nothing was committed.
    """
    moved = leaves_out == 0
    writer = DeltaWriter(spark, path, "Append", {"dataChange": "false"} if moved else {})
    transaction = writer.transaction
    known = int(transaction.snapshot().version())
    live = transaction.snapshot().allFiles().filter(F.col("path").isin(list(removed))._jc)
    old_files = list(live.collectAsList())
    if len(old_files) < len(removed):
        return None
    actions = [] if rows is None else list_of(writer.write(rows).actions())
    added = added_files(actions)
    if leaves_out is not None:
        counts = [file.numPhysicalRecords() for file in added]
        written = [int(count.get()) for count in counts if count.isDefined()]
        require_rows(path, sum(removed.values()) - leaves_out, written)
    if before_commit is not None:
        before_commit()
    now = int(time.time() * 1000)
    actions += [file.removeWithTimestamp(now, not moved) for file in old_files]
    token = uuid.uuid4().hex
    with committing(path):
        committed = _commit(spark, transaction, actions, delta.note_text(note, token), moved=moved)
    if not committed:
        return None
    commit = delta.find_commit(path, token, known)
    assert commit is not None
    return Exchanged(commit.version, len(added), sum(int(file.size()) for file in added))


def require_rows(path: str, expected: int, written: Iterable[int]) -> None:
    """Check that rewritten files have the expected number of rows."""
    actual = sum(written)
    if actual != expected:
        raise SystemFailureError(
            "CAP-REWRITE",
            f"{expected} rows of {path} were to be rewritten, but {actual} were written; nothing "
            "was committed",
            "repeat the command; if it fails again, report this as a bug",
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
    """Commit, and return whether no other writer has removed one of the files."""
    jvm = spark._jvm
    assert jvm is not None
    package, none = jvm.org.apache.spark.sql.delta, jvm.scala.Option.empty()
    no_filter, tags = jvm.PythonUtils.toSeq([]), jvm.PythonUtils.toScalaMap({})
    if moved:
        optimize = getattr(package, "DeltaOperations$Optimize")
        operation = optimize(no_filter, no_filter, False, none, False)
    else:
        operation = getattr(package, "DeltaOperations$Delete")(no_filter)
    # These operations read their note from the active session only. Delta's own commands report
    # metrics for them; this one does not.
    settings = {_NOTE: note, _METRICS: "false"}
    try:
        with active(copy_of(spark, settings)):
            transaction.commitIfNeeded(jvm.PythonUtils.toSeq(actions), operation, tags)
    except (Py4JJavaError, PySparkException) as error:
        if not is_conflict(error):
            raise
        return False
    return True
