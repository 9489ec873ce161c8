"""Reads of Delta tables without a JVM: as a dataset, or selected columns file by file.

A dataset keeps the bounds of every file. For many small files that costs several times their
content, so reads of all rows go file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import dataset, parquet

from capstan.errors import SystemFailureError, translation
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.small_files import folder, open_file

_BATCH_ROWS = 1 << 18


def rows_of(path: str) -> dataset.FileSystemDataset:
    """The rows of a table as a dataset for filtered reads, in no order."""
    # The file system of deltalake is implemented in Python. If an Arrow thread closes one of its
    # files while the interpreter shuts down, the whole process aborts (`terminate called without an
    # active exception`) after all work is done. Therefore Arrow opens the files itself.
    return delta.open_table(path).to_pyarrow_dataset(filesystem=folder(path))


def rows_of_files(path: str, table: OpenedTable, files: Iterable[str]) -> dataset.FileSystemDataset:
    """The rows of some files of an unpartitioned table, without their bounds."""
    table.require_plain()
    schema = pa.schema(table.schema().to_arrow())
    return dataset.FileSystemDataset.from_paths(
        list(map(unquote, files)),
        schema=schema,
        format=dataset.ParquetFileFormat(),
        filesystem=folder(path),
    )


def iter_columns(
    path: str,
    columns: Sequence[str],
    table: OpenedTable | None = None,
    files: Iterable[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of an unpartitioned table in batches of at most 262,144 with one schema, in no order.

    A column that a file lacks is null. `files` are full paths; None for all.
    """
    table = table or delta.open_table(path)
    table.require_plain()
    schema = _schema(table, columns)
    for place in map(unquote, table.file_uris()) if files is None else files:
        yield from _batches(place, columns, schema)


def read_columns(
    path: str,
    columns: Sequence[str],
    table: OpenedTable | None = None,
    files: Iterable[str] | None = None,
) -> pa.Table:
    """The rows of `iter_columns` as one table."""
    table = table or delta.open_table(path)
    batches = list(iter_columns(path, columns, table, files))
    return pa.Table.from_batches(batches, schema=_schema(table, columns))


def merge_batches(
    batches: Iterable[pa.RecordBatch], rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Merge small batches into batches of at least `rows` rows except the last; none is split."""
    # A tape has many small files, and each aggregation costs a call.
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.concat_batches(waiting)
            waiting, count = [], 0
    if count:
        yield pa.concat_batches(waiting)


def _schema(table: OpenedTable, columns: Sequence[str]) -> pa.Schema:
    whole = pa.schema(table.schema().to_arrow())
    return pa.schema([whole.field(name) for name in columns])


def _batches(path: str, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        with open_file(path) as opened:
            # Without threads, because callers read several tables in parallel.
            file = parquet.ParquetFile(opened, pre_buffer=False)
            existing = [name for name in columns if name in file.schema_arrow.names]
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, existing, use_threads=False)
                yield from _conform(group, schema).to_batches(_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        known = translation.translate(error)
        # Arrow does not name a damaged file.
        if known is not None and known.code != "CAP-DAMAGED":
            raise known from error
        raise SystemFailureError(
            "CAP-DAMAGED",
            f"a file cannot be read: {path}: {translation.root_message(error)}",
            translation.DAMAGED_FILE_HINT,
            path=path,
        ) from error


def _conform(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with exactly this schema; Spark omits columns that are null throughout."""
    for field in schema:
        if field.name not in group.column_names:
            group = group.append_column(field, pa.nulls(group.num_rows, field.type))
    part = group.select(schema.names)
    # Other writers use different names for list elements.
    return part if part.schema.equals(schema) else part.cast(schema)
