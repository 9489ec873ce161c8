"""Creation of Delta tables, appends of Arrow rows, and properties, without a JVM.

Ledgers, rosters and feeds get a few rows at a time. In a fresh process such a commit takes Spark a
second or more, and delta-rs some milliseconds. Both write the same table: all writers of a folder
share the lock of `capstan.storage.delta.commit_lock`, and in a bucket delta-rs commits by a
conditional put.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from datetime import timedelta

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import types as T

from capstan.core.config import parse_duration
from capstan.errors import RangeLockedError
from capstan.storage.delta import delta
from capstan.storage.delta.commit_lock import committing, making
from capstan.storage.delta.commits import Note
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.opened_table import OpenedTable, keep_table, own_table
from capstan.storage.lake import is_table
from capstan.storage.s3_access import storage_options
from capstan.storage.stored_log import look_again

# The interval of Spark; with its own, delta-rs would let a log grow to a hundred entries.
_INTERVAL = 10
_CHECKPOINTS = {"delta.checkpointInterval": str(_INTERVAL)}
_ATTEMPTS = 20
# delta-rs calls this commit a write. Without a token it does not count as a commit of a tape.
_REARRANGED = CommitProperties(
    custom_metadata={"userMetadata": json.dumps({"capstan": {"maintain": "compact"}})},
    max_commit_retries=0,
)

FILES = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"

# Delta's defaults.
_DEFAULTS = {FILES: timedelta(days=7), LOG: timedelta(days=30)}
_DAY = timedelta(days=1)


def struct(**columns: T.DataType | str) -> T.StructType:
    """A struct of these columns; simple types go by Spark's names for them, such as `long`."""
    made = T.StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of a table with these Spark columns."""
    return pa.schema(_delta_schema(schema).to_arrow())


def create_table(
    path: str,
    schema: T.StructType,
    *,
    properties: Mapping[str, str] | None = None,
    partitions: tuple[str, ...] = (),
) -> None:
    """Create an empty Delta table at `path` unless it exists; readable by every Delta reader."""
    # Its columns have names and types defined by this project.
    if is_table(path):
        return
    configuration = {**delta.PLAIN, **_CHECKPOINTS, **(properties or {})}
    with making(path):
        try:
            deltalake.DeltaTable.create(
                path,
                _delta_schema(schema),
                mode="ignore",
                partition_by=list(partitions) or None,
                configuration=configuration,
                raise_if_key_not_exists=False,
                storage_options=storage_options(path),
            )
        except DeltaError:
            # Without a folder lock, another writer may have created it concurrently.
            look_again()
            if not is_table(path):
                raise


def append(
    path: str,
    rows: pa.Table,
    *,
    txn: Txn | None = None,
    note: Note | None = None,
    unless: Txn | None = None,
) -> bool:
    """Append rows to a Delta table in one commit; `note` is the commit's `userMetadata`.

    False if the table has this transaction, a later one of its app, or the one of `unless`, which
    shuts this writer out; nothing was appended.
    """
    with committing(path):
        table, is_appended = _append(path, rows, txn, note, unless)
    keep_table(path, table, own=is_appended)
    return is_appended


def _append(
    path: str, rows: pa.Table, txn: Txn | None, note: Note | None, unless: Txn | None
) -> tuple[OpenedTable, bool]:
    """Append rows unless the table has one of the transactions; the table after that."""
    transactions = None if txn is None else [Transaction(txn.app, txn.version)]
    properties = CommitProperties(
        custom_metadata={"userMetadata": delta.note_text(note, uuid.uuid4().hex)},
        app_transactions=transactions,
        # The transaction is looked up before each commit instead.
        max_commit_retries=0,
    )
    table = own_table(path)
    for attempt in range(_ATTEMPTS):
        if attempt:
            table = OpenedTable(path)
        try:
            # That is a commit, which may come after those of others: the transaction is looked up
            # after it.
            _add_columns(table, rows.schema)
            if any(table.has_transaction(each.app, each.version) for each in (txn, unless) if each):
                return table, False
            before = table.version()
            # Of a log that has grown by a whole interval; each time the log is listed.
            due = (before + 2) % _INTERVAL == 0
            deltalake.write_deltalake(
                table,
                _filled(rows, table),
                mode="append",
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(
                    cleanup_expired_logs=None if due else False
                ),
            )
        except CommitFailedError:
            continue
        if table.version() == before + 1:
            table.note_commit({} if txn is None else {txn.app: txn.version})
        return table, True
    raise _outrun(path)


def replace_files(path: str, removed: Collection[str], added: AddAction) -> bool:
    """Replace files by one that has the same rows, in one commit that no reader sees as a change.

    False if the table lacks one of them; nothing was committed.
    """
    with committing(path):
        for _ in range(_ATTEMPTS):
            table = OpenedTable(path)
            files, now = table.entries(removed), int(time.time() * 1000)
            if len(files) < len(removed):
                return False
            removals = [
                RemoveAction(
                    file["path"], False, now, file["size_bytes"], file.get("partition") or {}
                )
                for file in files
            ]
            try:
                table.create_write_transaction(
                    [added, *removals],
                    "append",
                    table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=_REARRANGED,
                )
            except CommitFailedError:
                continue
            keep_table(path, table)
            return True
    raise _outrun(path)


def _outrun(path: str) -> RangeLockedError:
    return RangeLockedError(
        "CAP-CONFLICT",
        f"other writers committed to {path} first, {_ATTEMPTS} times in a row",
        "repeat the command",
        path=path,
    )


def commit_transaction(path: str, txn: Txn) -> None:
    """Commit a transaction without rows, unless the table has it."""
    append(path, pa.schema(delta.open_table(path).schema().to_arrow()).empty_table(), txn=txn)


def add_columns(path: str, columns: T.StructType) -> None:
    """Add the columns that a table lacks, at its end; all of its rows have null in them."""
    with committing(path):
        _add_columns(OpenedTable(path), arrow_schema(columns))


def _add_columns(table: deltalake.DeltaTable, wanted: pa.Schema) -> None:
    """Add the columns that a table lacks, which an older Capstan has made."""
    present = {field.name for field in table.schema().fields}
    added = [field for field in wanted if field.name not in present]
    if added:
        table.alter.add_columns(deltalake.Schema.from_arrow(pa.schema(added)).fields)


def _filled(rows: pa.Table, table: deltalake.DeltaTable) -> pa.Table:
    """The rows with null in the columns that the table alone has, which a newer Capstan has added.

    Those of stamps are there before the version of a tape that has stamps.
    """
    for field in pa.schema(table.schema().to_arrow()):
        if field.name not in rows.schema.names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return rows


def set_properties(path: str, properties: Mapping[str, str]) -> None:
    """Set properties of a table; the values may hold any text."""
    with committing(path):
        table = OpenedTable(path)
        table.alter.set_table_properties(dict(properties), raise_if_not_exists=False)


def retention_of(path: str, name: str) -> timedelta:
    """A table's retention period, `FILES` or `LOG`; zero if it cannot be parsed."""
    text = delta.open_table(path).metadata().configuration.get(name)
    if text is None:
        return _DEFAULTS[name]
    try:
        return parse_duration(text.removeprefix("interval").strip())
    except ValueError:
        return timedelta(0)


def extend_log_retention(path: str, length: timedelta) -> None:
    """Extend a table's log retention to at least this period; never shorten it."""
    if not timedelta(0) < retention_of(path, LOG) < length:
        return
    # Delta cleans up logs in whole days.
    days = -(-length // _DAY)
    set_properties(path, {LOG: f"interval {days} days"})


def add_property(path: str, name: str, value: str) -> bool:
    """Set a property unless the table has it; of several writers at once, one gets True."""
    if name in delta.open_table(path).metadata().configuration:
        return False
    with committing(path):
        table = OpenedTable(path)
        if name in table.metadata().configuration:
            return False
        try:
            table.alter.set_table_properties({name: value}, raise_if_not_exists=False)
        except CommitFailedError:
            # Without a folder lock, another writer may have committed since.
            if name in OpenedTable(path).metadata().configuration:
                return False
            raise
    return True


def _delta_schema(schema: T.StructType) -> deltalake.Schema:
    # Delta stores schemas in Spark's JSON format.
    return deltalake.Schema.from_json(schema.json())
