"""What a pipeline reads of a stream: its records, with the order of their recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from capstan.pipeline.graph.events import TIME

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PLACE = ("_worker", "_label", "_batch", "_pos")
"""What a source may have of the records' place on tape, besides `_time`."""


def source_schema(payload: StructType) -> pa.Schema:
    """The Arrow columns of a stream's records as a source of a graph may declare them, all of them.

    Args:
        payload: The stream's own columns.
    """
    own = to_arrow_schema(payload, timezone="UTC")
    place = [pa.int32(), pa.string(), pa.int64(), pa.int64()]
    head = [pa.field(TIME, pa.int64()), *map(pa.field, PLACE, place)]
    return pa.schema([*head, *own])
