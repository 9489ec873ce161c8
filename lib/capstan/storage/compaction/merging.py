"""Merging of small files of a table into one, without a JVM.

No row changes: the commit has `dataChange` false in all of its actions, so readers that follow the
table see nothing new. Concurrent appends do not conflict. The new file is complete before the one
commit that puts it in the place of the others; until then it is no file of the table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import parquet

from capstan.storage.compaction.growing_tables import GrowingTable
from capstan.storage.compaction.outcome import TableResult
from capstan.storage.compaction.policy import TapeFile
from capstan.storage.compaction.statistics import merged_statistics
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.file_rewrite import require_rows
from capstan.storage.lake import write_whole
from capstan.telemetry.instrumentation import emit

PART_ROWS = 4096
"""The rows of a part of a file that can be skipped, by its bounds."""


def merge_files(table: GrowingTable, group: Sequence[TapeFile], result: TableResult) -> bool:
    """Replace the files of a group by one; False if others have replaced some of them."""
    path, opened = table.path, delta.open_table(table.path)
    chosen = [file.path for file in group]
    entries = opened.entries(chosen)
    if len(entries) < len(chosen):
        return False
    partition = entries[0].get("partition") or {}
    columns = [field.name for field in opened.schema().fields if field.name not in partition]
    places = [delta.resolve_path(path, file.path) for file in group]
    rows = read_columns(path, columns, opened, places)
    require_rows(path, sum(file.rows for file in group), [rows.num_rows])
    folder = "".join(f"{name}={value}/" for name, value in partition.items())
    name = f"{folder}part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    content = _parquet(rows.sort_by([(column, "ascending") for column in table.order]), table)
    write_whole(f"{path}/{name}", content)
    emit("maintain.written", table=table.name)
    written = max(entry["modification_time"] for entry in entries)
    stats = json.dumps(merged_statistics(entries))
    file = AddAction(name, len(content), partition, written, False, stats)
    if not arrow_writer.replace_files(path, chosen, file):
        return False
    result.rewritten += sum(file.bytes for file in group)
    emit("maintain.compacted", table=table.name, files=1, of=len(group))
    return True


def _parquet(rows: pa.Table, table: GrowingTable) -> bytes:
    sink = pa.BufferOutputStream()
    size = PART_ROWS if table.by_key else None
    parquet.write_table(rows, sink, row_group_size=size)
    content: bytes = sink.getvalue().to_pybytes()
    return content
