"""Columns looked up by key: a map expression for few values, a join for many.

A map is searched linearly for each row, and each entry is an expression of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

MAX_MAPPED = 64
"""The maximum size of a map."""
_KEY = "_lookup_key"


def with_values(
    frame: DataFrame,
    name: str,
    key: Column,
    values: Mapping[int, int] | Mapping[int, str] | Mapping[str, int],
) -> DataFrame:
    """The frame with a column `name` of values by `key`, null for keys without one, in no order.

    It has the type of the values, STRING if there are none, and replaces a column of that name.
    """
    if not values:
        return frame.withColumn(name, F.lit(None).cast("string"))
    if len(values) <= MAX_MAPPED:
        pairs = [F.lit(part) for pair in values.items() for part in pair]
        return frame.withColumn(name, F.try_element_at(F.create_map(*pairs), key))
    keys: Sequence[object] = list(values)
    items: Sequence[object] = list(values.values())
    table = pa.table(
        [pa.array(keys, _arrow_type(keys)), pa.array(items, _arrow_type(items))], names=[_KEY, name]
    )
    listed = F.broadcast(frame.sparkSession.createDataFrame(table))
    return frame.withColumn(_KEY, key).drop(name).join(listed, _KEY, "left").drop(_KEY)


def _arrow_type(values: Sequence[object]) -> pa.DataType:
    return pa.int32() if isinstance(values[0], int) else pa.string()
