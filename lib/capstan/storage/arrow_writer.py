"""Creates Delta tables and appends Arrow rows to them, without a JVM.

Ledgers, rosters and feeds get a few rows at a time. Spark takes a second or more for such a commit
in a fresh process, delta-rs some milliseconds. Both write the same table: the lock of
`capstan.storage.commit_lock` is one for all writers of a folder, and in a bucket delta-rs commits
by a conditional put.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from capstan.errors import RangeLockedError
from capstan.storage import delta
from capstan.storage.commit_lock import committing, making
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import is_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# As often as Spark does it; delta-rs would let a log grow to a hundred entries.
_CHECKPOINTS = {"delta.checkpointInterval": "10"}
_ATTEMPTS = 20


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow columns of a table that has these Spark columns."""
    return pa.schema(_delta_schema(schema).to_arrow())


def create_table(
    path: str,
    schema: StructType,
    *,
    properties: Mapping[str, str] | None = None,
    partitions: tuple[str, ...] = (),
) -> None:
    """Create an empty Delta table at `path` unless there is one; readable by every Delta reader.

    Args:
        path: The table.
        schema: Its columns, of names and types that are the project's own.
        properties: Its properties, beside those that all tables have.
        partitions: The columns that it is partitioned by.
    """
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
            )
        except DeltaError:
            # Another writer may have made it just now, where a folder cannot be locked.
            if not is_table(path):
                raise


def append(
    path: str,
    rows: pa.Table,
    *,
    txn: Txn | None = None,
    note: Mapping[str, object] | None = None,
) -> bool:
    """Append rows to a Delta table in one commit.

    Args:
        path: The table.
        rows: With the table's columns.
        txn: The transaction identity of the commit.
        note: What the commit's `userMetadata` says.

    Returns:
        False when the table has this transaction or a later one of its app: nothing was appended.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when other writers committed first again and again.
    """
    transactions = None if txn is None else [Transaction(txn.app, txn.version)]
    properties = CommitProperties(
        custom_metadata={"userMetadata": delta.note_text(note, uuid.uuid4().hex)},
        app_transactions=transactions,
        # Whether the transaction stands is looked up once before each commit.
        max_commit_retries=0,
    )
    with committing(path):
        for _ in range(_ATTEMPTS):
            table = deltalake.DeltaTable(path)
            if txn is not None:
                last = table.transaction_version(txn.app)
                if last is not None and last >= txn.version:
                    return False
            try:
                deltalake.write_deltalake(table, rows, mode="append", commit_properties=properties)
            except CommitFailedError:
                continue
            return True
    raise RangeLockedError(
        "CAP-CONFLICT",
        f"other writers have committed to {path} before this one, {_ATTEMPTS} times",
        "run the same command again",
        path=path,
    )


def set_properties(path: str, properties: Mapping[str, str]) -> None:
    """Set properties of a table; the values may hold any text."""
    with committing(path):
        table = deltalake.DeltaTable(path)
        table.alter.set_table_properties(dict(properties), raise_if_not_exists=False)


def _delta_schema(schema: StructType) -> deltalake.Schema:
    # Delta writes schemas down in Spark's own JSON.
    return deltalake.Schema.from_json(schema.json())
