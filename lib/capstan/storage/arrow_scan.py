"""Rows of a Delta table, without a JVM: as a dataset, or some columns of all, file by file.

A dataset keeps the bounds of every file. Of many small files that costs several times what is in
them; who wants all rows reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from pyarrow import dataset, parquet

from capstan import error_translation
from capstan.errors import SystemFailureError
from capstan.storage import delta
from capstan.storage.lake import folder, open_file

_PORTION = 1 << 18


def rows_of(path: str, table: deltalake.DeltaTable | None = None) -> dataset.FileSystemDataset:
    """The rows of a table as a dataset, to be read by a filter; it has no order.

    deltalake's own file system is one of Python. A thread of Arrow that closes a file of it while
    the interpreter ends takes the whole process with it (`terminate called without an active
    exception`), after everything was done; so Arrow opens the files itself.

    Args:
        path: The table, none of whose files lies elsewhere.
        table: The table, where it is open already.

    Raises:
        SystemFailureError: `CAP-TABLE`, `CAP-DAMAGED`, `CAP-NO-ACCESS` where the table cannot be
            opened.
    """
    return (table or delta.open_table(path)).to_pyarrow_dataset(filesystem=folder(path))


def rows_of_files(path: str, files: Iterable[str]) -> dataset.FileSystemDataset:
    """The rows of some files of a table that is not partitioned, without the bounds of each.

    Args:
        path: The table.
        files: Their paths, as the log has them.
    """
    schema = pa.schema(delta.open_table(path).schema().to_arrow())
    return dataset.FileSystemDataset.from_paths(
        list(map(unquote, files)),
        schema=schema,
        format=dataset.ParquetFileFormat(),
        filesystem=folder(path),
    )


def iter_columns(
    path: str,
    columns: Sequence[str],
    table: deltalake.DeltaTable | None = None,
    files: Iterable[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a table in batches of at most 262,144, all of one schema; no order is promised.

    Args:
        path: The table, which is not partitioned.
        columns: Those that are read; null where a file lacks one.
        table: The table, where it is open already.
        files: Places of those of its files that are read; None for all.

    Raises:
        SystemFailureError: `CAP-DAMAGED` for a file that is gone or cannot be read;
            `CAP-NO-ACCESS`.
    """
    table = table or delta.open_table(path)
    schema = _schema(table, columns)
    for place in map(unquote, table.file_uris()) if files is None else files:
        yield from _batches(place, columns, schema)


def read_columns(
    path: str,
    columns: Sequence[str],
    table: deltalake.DeltaTable | None = None,
    files: Iterable[str] | None = None,
) -> pa.Table:
    """The same in one piece."""
    table = table or delta.open_table(path)
    found = list(iter_columns(path, columns, table, files))
    return pa.Table.from_batches(found, schema=_schema(table, columns))


def in_portions(
    batches: Iterable[pa.RecordBatch], rows: int = _PORTION
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of many: a tape has many small files, and each sum costs a call.

    Args:
        batches: Of one schema.
        rows: How many rows a batch has at the least, but for the last; of `batches` none is cut.
    """
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


def _schema(table: deltalake.DeltaTable, columns: Sequence[str]) -> pa.Schema:
    whole = pa.schema(table.schema().to_arrow())
    return pa.schema([whole.field(name) for name in columns])


def _batches(place: str, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        with open_file(place) as opened:
            # Without threads: whoever reads many tables does that with several at a time.
            file = parquet.ParquetFile(opened, pre_buffer=False)
            there = [name for name in columns if name in file.schema_arrow.names]
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, there, use_threads=False)
                yield from _as(group, schema).to_batches(_PORTION)
    except (OSError, pa.ArrowException) as error:
        known = error_translation.translate(error)
        # Of a damaged file Arrow does not say which one it is.
        if known is not None and known.code != "CAP-DAMAGED":
            raise known from error
        raise SystemFailureError(
            "CAP-DAMAGED",
            f"a file cannot be read: {place}: {error_translation.root_message(error)}",
            "put it back from a copy; `capstan verify STREAM --deep` names all that a tape lacks",
            path=place,
        ) from error


def _as(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of a file as those of others: Spark leaves out columns that are null throughout."""
    for field in schema:
        if field.name not in group.column_names:
            group = group.append_column(field, pa.nulls(group.num_rows, field.type))
    part = group.select(schema.names)
    # Files of other writers name the elements of lists otherwise.
    return part if part.schema.equals(schema) else part.cast(schema)
