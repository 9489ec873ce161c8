"""Delta Lake as Capstan uses it: creation, exactly-once writes, conflicts, reading without a JVM.

Every write carries a *note* (Delta's `userMetadata`) with a token of its own. Delta skips a
transaction whose `txnVersion` it has seen, or seen a higher one of, without a word; the token in
the commit is how a writer learns whether the commit that stands is its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from delta.tables import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capstan import error_translation
from capstan.errors import CheckFailedError, SystemFailureError
from capstan.storage.commit_lock import committing
from capstan.storage.commit_retry import SAME_TXN, is_any, retrying
from capstan.storage.idempotent_write import Txn, write_once
from capstan.storage.lake import is_table, read_text
from capstan.storage.table_cache import cached
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Set on every table. A site's defaults cannot lock other Delta readers out; and as a whole log is
# listed at each look at a table, it is no longer than what can be read of it: files that are no
# longer in the table are kept for a week as well.
PLAIN = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
    "delta.enableTypeWidening": "false",
    "delta.logRetentionDuration": "interval 7 days",
}
# Time travel to before a publish is what a rollback reads; both must be set, log >= files.
KEEP_VERSIONS = {
    "delta.deletedFileRetentionDuration": "interval 90 days",
    "delta.logRetentionDuration": "interval 90 days",
}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that stands in a table: its version and its metrics (`numOutputRows`, ...)."""

    version: int
    metrics: Mapping[str, str]


def open_table(path: str, version: int | None = None) -> deltalake.DeltaTable:
    """Open a Delta table without a JVM.

    Raises:
        SystemFailureError: `CAP-TABLE` when there is no Delta table at `path`, or it cannot be
            read; `CAP-DAMAGED` or `CAP-NO-ACCESS` where the reason is known.
    """
    try:
        if version is None:
            return cached("table", path, lambda: deltalake.DeltaTable(path))
        return deltalake.DeltaTable(path, version=version)
    except TableNotFoundError as error:
        raise SystemFailureError(
            "CAP-TABLE",
            f"there is no Delta table at {path}",
            "check the lake and the name; `capstan streams` tells what is on tape",
            path=path,
        ) from error
    except (DeltaError, OSError) as error:
        known = error_translation.translate(error)
        lacking = "see whether its _delta_log is there and whole; put back from a copy what is not"
        code, hint = ("CAP-TABLE", lacking) if known is None else (known.code, known.hint)
        said = f"cannot read the Delta table at {path}: {error_translation.root_message(error)}"
        raise SystemFailureError(code, said, hint, path=path) from error


def load(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """The rows of the table at `path`, at a version or at the newest: its columns, no order.

    Raises:
        SystemFailureError: `CAP-DAMAGED`, `CAP-NO-ACCESS` where its log cannot be read.
    """
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    with error_translation.with_path(path):
        return reader.load(path)


def version_of(path: str) -> int | None:
    """The newest version of the table at `path`, or None if there is no table."""
    return open_table(path).version() if is_table(path) else None


def computed(path: str) -> list[str]:
    """The columns of a table that Delta computes from others; a frame of it does not tell."""
    fields = open_table(path).schema().fields
    return [field.name for field in fields if "delta.generationExpression" in field.metadata]


def numbered(path: str) -> list[str]:
    """The columns of a table whose values Delta alone gives (`GENERATED ALWAYS AS IDENTITY`)."""
    explicit = "delta.identity.allowExplicitInsert"
    fields = open_table(path).schema().fields
    return [f.name for f in fields if str(f.metadata.get(explicit, "")).lower() == "false"]


def padded(path: str) -> dict[str, str]:
    """The columns of a table whose texts it fills up with blanks, each with its type: `char(4)`."""
    kind = "__CHAR_VARCHAR_TYPE_STRING"
    fields = open_table(path).schema().fields
    kinds = {f.name: str(f.metadata.get(kind, "")) for f in fields}
    return {name: kind for name, kind in kinds.items() if kind.startswith("char")}


def commits_since(path: str, version: int) -> list[dict[str, object]]:
    """Commits of the table newer than `version`, newest first, as Delta's commitInfo."""
    table = open_table(path)
    behind = table.version() - version
    return table.history(behind) if behind > 0 else []


def history(path: str) -> Iterator[dict[str, object]]:
    """Commits of the table, newest first; as few entries of its log are read as are asked for."""
    table, told, wanted = open_table(path), 0, 16
    while True:
        found = table.history(wanted)
        yield from found[told:]
        if len(found) < wanted:
            return
        told, wanted = wanted, wanted * 8


def note_of(commit: Mapping[str, object]) -> dict[str, object]:
    """What Capstan wrote into a commit's note; empty for a commit of someone else."""
    text = commit.get("userMetadata")
    try:
        note = json.loads(str(text)) if text else {}
    except ValueError:
        return {}
    found = note.get("capstan") if isinstance(note, dict) else None
    return found if isinstance(found, dict) else {}


def append(
    frame: DataFrame,
    path: str,
    *,
    txn: Txn | None = None,
    note: Mapping[str, object] | None = None,
    merge_schema: bool = False,
    partitions: tuple[str, ...] = (),
) -> Commit | None:
    """Append `frame` in one commit.

    Args:
        frame: The rows.
        path: The table; under a transaction it is made where there is none.
        txn: The transaction.
        note: For the commit.
        merge_schema: Whether columns may be added.
        partitions: The columns that a table is partitioned by which this makes.

    Returns:
        The commit, or None if the table already has this transaction or a later one of its app.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when other writers changed its columns again and again.
    """
    options = {"mergeSchema": "true"} if merge_schema else {}
    return retrying(lambda: _write(frame, path, "Append", options, txn, note, partitions), path)


def replace(
    frame: DataFrame,
    path: str,
    predicate: str,
    *,
    txn: Txn | None = None,
    note: Mapping[str, object] | None = None,
    merge_schema: bool = False,
    attempts: int = 12,
) -> Commit | None:
    """Replace exactly the rows that match `predicate` by `frame`, in one commit.

    A commit that loses Delta's conflict check is repeated, at most `attempts` times: the caller
    holds the range, so what the other writer changed is not this writer's.

    Raises:
        CheckFailedError: `CAP-OUTSIDE` when rows of `frame` do not match `predicate`.
        RangeLockedError: `CAP-CONFLICT` when every attempt lost.
    """
    options = {"replaceWhere": predicate} | ({"mergeSchema": "true"} if merge_schema else {})
    try:
        return retrying(
            lambda: _write(frame, path, "Overwrite", options, txn, note), path, attempts
        )
    except PySparkException as error:
        if "DELTA_REPLACE_WHERE_MISMATCH" not in str(error):
            raise
        raise outside(path, predicate) from error


def outside(path: str, predicate: str) -> CheckFailedError:
    """The error of rows that are to go into a table, and do not meet a condition."""
    return CheckFailedError(
        "CAP-OUTSIDE",
        f"there are rows outside of the range that is written in {path}, nothing was written",
        "a transform must keep to the range that it is given; the condition: " + predicate,
        path=path,
    )


def delete_rows(spark: SparkSession, path: str, condition: str) -> None:
    """Delete the rows that meet a condition, in one commit; again while it loses to other writers.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when every attempt lost.
    """

    def delete() -> None:
        with committing(path):
            spark.sql(f"DELETE FROM delta.`{path}` WHERE {condition}")

    retrying(delete, path)


def _write(
    frame: DataFrame,
    path: str,
    mode: str,
    options: Mapping[str, str],
    txn: Txn | None,
    note: Mapping[str, object] | None,
    partitions: tuple[str, ...] = (),
) -> Commit | None:
    token = uuid.uuid4().hex
    before = version_of(path)
    given = {**options, "userMetadata": note_text(note, token)}
    if txn is None:
        with committing(path):
            frame.write.format("delta").mode(mode).options(**given).save(path)
        return find_commit(path, token, -1 if before is None else before)
    try:
        if not write_once(frame, path, mode, given, txn, PLAIN, partitions):
            return None
    except (Py4JJavaError, PySparkException) as error:
        # Two writers of one transaction at once: the other one landed, so this one is done.
        if not is_any(error, SAME_TXN):
            raise
        return None
    return find_commit(path, token, -1 if before is None else before)


def note_text(note: Mapping[str, object] | None, token: str) -> str:
    """The text of a commit's `userMetadata`."""
    return json.dumps({"capstan": {**(note or {}), "token": token}}, sort_keys=True)


def find_commit(path: str, token: str, since: int) -> Commit | None:
    """The commit newer than version `since` that carries `token`, if it landed."""
    for commit in commits_since(path, since):
        if note_of(commit).get("token") == token:
            metrics = commit.get("operationMetrics")
            return Commit(int(str(commit["version"])), metrics if isinstance(metrics, dict) else {})
    return None


def added_files(path: str, version: int) -> list[str]:
    """Places of the data files that one commit of a table added, from its log entry alone."""
    return [
        place_of(path, each["add"]["path"]) for each in entry_of(path, version) if "add" in each
    ]


def entry_of(path: str, version: int) -> Iterator[dict[str, Any]]:
    """The actions of one commit of a table, as its log has them."""
    yield from map(json.loads, read_text(f"{path}/_delta_log/{version:020}.json").splitlines())


def place_of(table: str, path: str) -> str:
    """The place of a file that a table's log names: as a URI, relative to the table or whole."""
    return unquote(path) if "://" in path else f"{table}/{unquote(path)}"


def stat(actions: object, name: str) -> list[int]:
    """One integer statistic of every file that has it, from `get_add_actions(flatten=True)`."""
    table = pa.table(actions)
    if name not in table.column_names:
        return []
    return [int(value) for value in table.column(name).to_pylist() if value is not None]


def merge(
    frame: DataFrame,
    path: str,
    keys: tuple[str, ...],
    *,
    txn: Txn,
    note: Mapping[str, object] | None = None,
    delete_when: str | None = None,
) -> Commit | None:
    """Merge `frame` into the table on null-safe equality of `keys`, in one commit.

    Args:
        frame: At most one row per key.
        path: The table.
        keys: Column names.
        txn: The transaction.
        note: For the commit.
        delete_when: A column of `frame`, BOOLEAN, of rows whose key is to be deleted; it is not
            written.

    Returns:
        The commit, or None if the table already has this transaction or a later one of its app.
    """
    return retrying(lambda: _merge(frame, path, keys, txn, note, delete_when), path)


def _merge(
    frame: DataFrame,
    path: str,
    keys: tuple[str, ...],
    txn: Txn,
    note: Mapping[str, object] | None,
    delete_when: str | None,
) -> Commit | None:
    spark, token = frame.sparkSession, uuid.uuid4().hex
    before = version_of(path)
    # MERGE takes these from the session alone; left there they would mark the next write as well.
    settings = {
        "spark.databricks.delta.write.txnAppId": txn.app,
        "spark.databricks.delta.write.txnVersion": str(txn.version),
        "spark.databricks.delta.commitInfo.userMetadata": note_text(note, token),
    }
    same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    columns = [name for name in frame.columns if name != delete_when]
    values: dict[str, str | Column] = {quoted(n): f"s.{quoted(n)}" for n in columns}
    job = DeltaTable.forPath(spark, path).alias("t").merge(frame.alias("s"), same)
    job = job.withSchemaEvolution()
    keep = "true"
    if delete_when is not None:
        keep = f"NOT s.{quoted(delete_when)}"
        job = job.whenMatchedDelete(f"s.{quoted(delete_when)}")
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        job = job.whenMatchedUpdate(keep, values)
        with committing(path):
            job.whenNotMatchedInsert(keep, values).execute()
    except (Py4JJavaError, PySparkException) as error:
        if not is_any(error, SAME_TXN):
            raise
        return None
    finally:
        for key in settings:
            spark.conf.unset(key)
    return find_commit(path, token, -1 if before is None else before)
