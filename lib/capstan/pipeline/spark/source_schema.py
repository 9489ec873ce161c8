"""Columns of the records that a pipeline reads from a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from capstan.pipeline.graph.events import TIME

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PLACE = ("_worker", "_label", "_batch", "_pos")
"""Columns of a record's position on tape that a source may have, besides `_time`."""


def source_schema(payload: StructType) -> pa.Schema:
    """Return all Arrow columns that a source may declare for a stream's records.

    Args:
        payload: The stream's own columns.
    """
    columns = to_arrow_schema(payload, timezone="UTC")
    place = [pa.int32(), pa.string(), pa.int64(), pa.int64()]
    head = [pa.field(TIME, pa.int64()), *map(pa.field, PLACE, place)]
    return pa.schema([*head, *columns])
