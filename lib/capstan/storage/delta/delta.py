"""Capstan's use of Delta Lake: exactly-once writes, conflict retries, reads without a JVM.

Every write carries a *note* (Delta's `userMetadata`) with a unique token. Delta silently skips a
transaction if it has seen its `txnVersion` or a higher one. The token in the commit tells a writer
whether the commit is its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from capstan.core.sql_names import quoted
from capstan.errors import CheckFailedError, SystemFailureError, translation
from capstan.spark.own_session import active, copy_of, moved
from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.commits import SAME_TXN, CommitInfo, Note, is_any, retrying
from capstan.storage.delta.idempotent_write import Txn, write_once
from capstan.storage.delta.opened_table import OpenedTable, missing_table, newest_table
from capstan.storage.lake import is_table, newest_entry, read_text

# Set on every table. Defaults of a site cannot lock out other Delta readers. The log is listed on
# each access, so it is kept no longer than the versions it describes: deleted files are kept for a
# week as well.
PLAIN = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
    "delta.enableTypeWidening": "false",
    "delta.logRetentionDuration": "interval 7 days",
}
# A rollback reads the version before a publish. Both must be set, with log >= files.
KEEP_VERSIONS = {
    "delta.deletedFileRetentionDuration": "interval 90 days",
    "delta.logRetentionDuration": "interval 90 days",
}


# The key of a column's default value, in its metadata.
_DEFAULT = "CURRENT_DEFAULT"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of this writer: its version and its metrics (`numOutputRows`, ...)."""

    version: int
    metrics: Mapping[str, str]


def open_table(path: str, version: int | None = None) -> OpenedTable:
    """Open a Delta table without a JVM."""
    newest = newest_table(path)
    if version is None or version == newest.version():
        return newest
    # delta-rs would look for a version far ahead for minutes.
    if not 0 <= version < newest.version():
        raise SystemFailureError(
            "CAP-TABLE",
            f"the Delta table at {path} has no version {version}: the newest is {newest.version()}",
            "choose an earlier one",
            path=path,
        )
    return OpenedTable(path, version)


def open_if_table(path: str) -> OpenedTable | None:
    """Open the newest version of a Delta table; None if there is no table."""
    return open_table(path) if is_table(path) else None


def load(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Rows of the table at `path` in a version or the newest one, in no order."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    try:
        with translation.with_path(path):
            return reader.load(path)
    except AnalysisException as error:
        if is_any(error, "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"):
            raise missing_table(path) from error
        raise


def version_of(path: str) -> int | None:
    """The newest version of the table at `path`, or None if there is no table."""
    table = open_if_table(path)
    return None if table is None else table.version()


def identity_of(path: str, version: int | None = None) -> str:
    """The Delta id of a table, newest or at a version; a table made in its place has another."""
    return str(open_table(path, version).metadata().id)


def generated_columns(path: str) -> list[str]:
    """Columns of a table that Delta computes from others; its DataFrame does not show this."""
    fields = open_table(path).schema().fields
    return [field.name for field in fields if "delta.generationExpression" in field.metadata]


def identity_columns(path: str) -> list[str]:
    """Columns of a table that only Delta can fill (`GENERATED ALWAYS AS IDENTITY`)."""
    explicit = "delta.identity.allowExplicitInsert"
    fields = open_table(path).schema().fields
    return [f.name for f in fields if str(f.metadata.get(explicit, "")).lower() == "false"]


def numbered_columns(path: str) -> list[str]:
    """All identity columns of a table; with `BY DEFAULT`, writers may give numbers of their own."""
    fields = open_table(path).schema().fields
    return [field.name for field in fields if "delta.identity.start" in field.metadata]


def default_values(path: str) -> dict[str, str]:
    """Columns of a table that have a default value, each with its SQL expression."""
    fields = open_table(path).schema().fields
    return {f.name: str(f.metadata[_DEFAULT]) for f in fields if _DEFAULT in f.metadata}


def char_columns(path: str) -> dict[str, str]:
    """Columns that Delta pads with blanks, each with its type, such as `char(4)`."""
    kind = "__CHAR_VARCHAR_TYPE_STRING"
    fields = open_table(path).schema().fields
    kinds = {f.name: str(f.metadata.get(kind, "")) for f in fields}
    return {name: kind for name, kind in kinds.items() if kind.startswith("char")}


def commits_since(path: str, version: int) -> list[CommitInfo]:
    """Commits of a table after `version`, newest first."""
    table = open_table(path)
    behind = table.version() - version
    return [CommitInfo.of(entry) for entry in (table.history(behind) if behind > 0 else ())]


def history(path: str) -> Iterator[CommitInfo]:
    """Commits of a table, newest first; reads the log only as far as it is consumed."""
    table, seen, limit = open_table(path), 0, 16
    while True:
        commits = table.history(limit)
        yield from map(CommitInfo.of, commits[seen:])
        if len(commits) < limit:
            return
        seen, limit = limit, limit * 8


def append(
    frame: DataFrame,
    path: str,
    *,
    txn: Txn | None = None,
    note: Note | None = None,
    merge_schema: bool = False,
    unless: Txn | None = None,
    files: Sequence[str] = (),
) -> Commit | None:
    """Append `frame` in one commit; with a transaction, to a table that may not exist yet.

    `files` were written before and join the table in this commit (`staged_rows`). None if the table
    has this transaction, a later one of its app, or the one of `unless`, which shuts this writer
    out.
    """
    options = {"mergeSchema": "true"} if merge_schema else {}
    return _write(frame, path, "Append", options, txn, note, files, unless=unless)


def replace(
    frame: DataFrame,
    path: str,
    predicate: str,
    *,
    txn: Txn | None = None,
    note: Note | None = None,
    merge_schema: bool = False,
    attempts: int = 12,
    files: Sequence[str] = (),
) -> Commit | None:
    """Replace exactly the rows that match `predicate` with `frame`, and `files`, in one commit."""
    # A commit that loses Delta's conflict check is repeated, at most `attempts` times. This is safe
    # because the caller has claimed the range, so that the other writer changed different rows.
    options = {"replaceWhere": predicate} | ({"mergeSchema": "true"} if merge_schema else {})
    try:
        return _write(frame, path, "Overwrite", options, txn, note, files, attempts=attempts)
    except PySparkException as error:
        if "DELTA_REPLACE_WHERE_MISMATCH" not in str(error):
            raise
        raise outside_range_error(path, predicate) from error


def outside_range_error(path: str, predicate: str) -> CheckFailedError:
    """The error of rows outside the range that a write replaces."""
    return CheckFailedError(
        "CAP-OUTSIDE",
        f"rows are outside the range that is written in {path}; nothing was written",
        "a transform must keep to the range it is given; the condition: " + predicate,
        path=path,
    )


def delete_rows(spark: SparkSession, path: str, condition: str) -> None:
    """Delete the rows that match a condition, in one commit; retried on conflicts."""

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
    note: Note | None,
    files: Sequence[str],
    unless: Txn | None = None,
    attempts: int = 12,
) -> Commit | None:
    def write(text: str) -> None:
        with committing(path):
            frame.write.format("delta").mode(mode).options(userMetadata=text, **options).save(path)

    def write_as(txn: Txn) -> Commit | None:
        noted = {**options, "userMetadata": note_text(note, uuid.uuid4().hex)}
        try:
            version = write_once(frame, path, mode, noted, txn, PLAIN, unless, files)
        except (Py4JJavaError, PySparkException) as error:
            # Two writers committed the same transaction at once, and the other one succeeded.
            if not is_any(error, SAME_TXN):
                raise
            return None
        return None if version is None else _commit_at(path, version)

    if txn is not None:
        return retrying(lambda: write_as(txn), path, attempts)
    return retrying(lambda: _committed(path, txn, note, write), path, attempts)


def _committed(
    path: str, txn: Txn | None, note: Note | None, write: Callable[[str], None]
) -> Commit | None:
    """The commit of a write that is given its note as text; None if the table has its `txn`."""
    token, before = uuid.uuid4().hex, version_of(path)
    try:
        write(note_text(note, token))
    except (Py4JJavaError, PySparkException) as error:
        if txn is None or not is_any(error, SAME_TXN):
            raise
        return None
    return find_commit(path, token, -1 if before is None else before)


def _commit_at(path: str, version: int) -> Commit:
    """A commit that this process has just made."""
    newest_entry(path, version)  # Kept as a look.
    actions = open_table(path).actions(version)
    info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    return Commit(version, CommitInfo.of({"version": version, **info}).metrics)


def note_text(note: Note | None, token: str) -> str:
    """The text for a commit's `userMetadata`."""
    return json.dumps({"capstan": {**(note or {}), "token": token}}, sort_keys=True)


def find_commit(path: str, token: str, since: int) -> Commit | None:
    """The commit after version `since` that carries `token`, if it succeeded."""
    table = open_table(path)
    for version in range(table.version(), since, -1):
        for action in table.actions(version):
            info = CommitInfo.of({"version": version, **action.get("commitInfo", {})})
            if info.note.get("token") == token:
                return Commit(version, info.metrics)
    return None


def added_files(path: str, version: int) -> list[str]:
    """Paths of the data files that a commit added, from its log entry alone."""
    return [
        resolve_path(path, action["add"]["path"])
        for action in open_table(path).actions(version)
        if "add" in action
    ]


def read_commit(path: str, version: int) -> Iterator[dict[str, Any]]:
    """The actions of a commit, as in its log entry."""
    yield from map(json.loads, read_text(f"{path}/_delta_log/{version:020}.json").splitlines())


def resolve_path(table: str, path: str) -> str:
    """The full path of a file in a table's log: an absolute URI, or relative to the table."""
    return unquote(path) if "://" in path else f"{table}/{unquote(path)}"


def stat(actions: object, name: str) -> list[int]:
    """An integer statistic of every file that has it, from `get_add_actions(flatten=True)`."""
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
    note: Note | None = None,
    delete_when: str | None = None,
) -> Commit | None:
    """Merge `frame` into a table by null-safe equality of `keys`, in one commit.

    Rows in which the BOOLEAN column `delete_when`, which is not written, is true delete their key.
    None if the table has this transaction or a later one of its job.
    """
    same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    columns = [name for name in frame.columns if name != delete_when]
    values: dict[str, str | Column] = {quoted(n): f"s.{quoted(n)}" for n in columns}

    def write(text: str) -> None:
        # MERGE reads these from its session only. Nobody else has this one.
        settings = {
            "spark.databricks.delta.write.txnAppId": txn.app,
            "spark.databricks.delta.write.txnVersion": str(txn.version),
            "spark.databricks.delta.commitInfo.userMetadata": text,
        }
        spark = copy_of(frame.sparkSession, settings)
        target, source = DeltaTable.forPath(spark, path).alias("t"), moved(frame, spark).alias("s")
        job = target.merge(source, same).withSchemaEvolution()
        keep = "true"
        if delete_when is not None:
            keep = f"NOT s.{quoted(delete_when)}"
            job = job.whenMatchedDelete(f"s.{quoted(delete_when)}")
        job = job.whenMatchedUpdate(keep, values).whenNotMatchedInsert(keep, values)
        with active(spark), committing(path):
            job.execute()

    return retrying(lambda: _committed(path, txn, note, write), path)
