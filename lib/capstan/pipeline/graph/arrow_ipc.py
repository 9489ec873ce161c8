"""Serialization of Arrow batches and tables, for states and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def batches_to_bytes(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Serialize batches, which all have `schema`, as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def batches_from_bytes(data: bytes) -> list[pa.RecordBatch]:
    """Read the batches that `batches_to_bytes` wrote."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def table_to_bytes(table: pa.Table) -> bytes:
    """Serialize a table as an Arrow IPC stream."""
    return batches_to_bytes(table.schema, table.to_batches())


def table_from_bytes(data: bytes) -> pa.Table:
    """Read the table that `table_to_bytes` wrote."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def tables_to_bytes(tables: Sequence[pa.Table]) -> bytes:
    """Serialize several tables one after another, each preceded by its length."""
    parts = [table_to_bytes(table) for table in tables]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def tables_from_bytes(data: bytes) -> list[pa.Table]:
    """Read the tables that `tables_to_bytes` wrote."""
    tables, remaining = [], memoryview(data)
    while remaining:
        length = int.from_bytes(remaining[:8], "little")
        if len(remaining) < 8 + length:
            raise ValueError("the state is truncated")
        tables.append(table_from_bytes(bytes(remaining[8 : 8 + length])))
        remaining = remaining[8 + length :]
    return tables
