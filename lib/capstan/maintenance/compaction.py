"""Compaction by Spark: of records, and of what is too large for the memory of one process.

No row changes, so streaming readers of a table see nothing new: its commits have `dataChange`
false. Concurrent appends do not conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from capstan.spark.own_session import copy_of
from capstan.storage.compaction.growing_tables import GrowingTable
from capstan.storage.compaction.index_compaction import compact_index
from capstan.storage.compaction.merging import PART_ROWS, merge_files
from capstan.storage.compaction.outcome import TableResult
from capstan.storage.compaction.policy import SMALL, TapeFile
from capstan.storage.delta.data_files import read_files
from capstan.storage.delta.file_rewrite import exchange
from capstan.telemetry.instrumentation import emit


def compact_table(spark: SparkSession, table: GrowingTable, *, ended: bool = False) -> TableResult:
    """Compact a table in the order of its rows; when `ended`, files wait for no more rows."""

    def rewrite(table: GrowingTable, group: Sequence[TapeFile], result: TableResult) -> bool:
        size = sum(file.bytes for file in group)
        if size <= SMALL and not table.payload:
            return merge_files(table, group, result)
        parts = max(1, -(-size // table.sizes.file))
        session = spark
        if table.by_key:
            session = copy_of(spark, {"parquet.block.row.count.limit": str(PART_ROWS)})
        rows = read_files(session, table.path, [file.path for file in group])
        ranged = rows.repartitionByRange(parts, *table.order)
        sorted_rows = ranged.sortWithinPartitions(*table.order)
        return replace_files(session, table.path, group, sorted_rows, result)

    return compact_index(table, rewrite, ended=ended)


def replace_files(
    spark: SparkSession,
    path: str,
    group: Sequence[TapeFile],
    rows: DataFrame,
    result: TableResult,
    check: Callable[[], None] | None = None,
) -> bool:
    """Replace the files of a group; False if others have replaced some of them.

    `check` is called after all is written and before the commit; it may raise.
    """

    def before_commit() -> None:
        if check is not None:
            check()
        emit("maintain.written", table=result.table)

    removed = {file.path: file.rows for file in group}
    note = {"maintain": "compact"}
    commit = exchange(spark, path, removed, rows, note=note, before_commit=before_commit)
    if commit is None:
        return False
    result.rewritten += sum(file.bytes for file in group)
    emit("maintain.compacted", table=result.table, files=commit.files, of=len(group))
    return True
