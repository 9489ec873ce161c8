"""A pipeline over the small stream with two sinks, each with its own table."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import Filter

REFERENCE: Final = f"{__name__}:split"
_ROWS: Final = pa.schema([(TIME, pa.int64()), ("id", pa.int64()), ("amount", pa.int32())])
DEAR: Final = 50
"""Amounts from here on are `dear`, all others `cheap`; a row without an amount is neither."""


def _dear(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater_equal(batch.column("amount"), DEAR)


def _cheap(batch: pa.RecordBatch) -> pa.Array:
    return pc.less(batch.column("amount"), DEAR)


@pipeline(
    name="split",
    description="Rows by what they cost",
    sinks=[Sink("dear", "dear_rows"), Sink("cheap", "cheap_rows")],
)
def split() -> DagBuilder:
    """Two filters of one source."""
    return (
        DagBuilder()
        .source("rows", _ROWS)
        .stateless_operator("over", Filter(_dear))
        .stateless_operator("under", Filter(_cheap))
        .connect("rows", "over")
        .connect("rows", "under")
        .sink_for("over", "dear")
        .sink_for("under", "cheap")
    )
