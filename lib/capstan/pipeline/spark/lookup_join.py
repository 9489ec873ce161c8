"""Join of a stream's records with a lookup table.

It is a join of Spark's: a small table is broadcast, and a large one shuffled by the key.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.lookup import Lookup
from capstan.pipeline.spark.row_transport import without_nullability

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def completed(
    pipeline: Pipeline, lookup: Lookup, records: DataFrame, table: DataFrame
) -> DataFrame:
    """Records with the columns of a lookup table's row that has their key, else with nulls."""
    subject = f"has lookup {lookup.name}"
    _require_columns(pipeline, f"{subject} by", lookup.left_on, records, "records")
    wanted = (*lookup.right_on, *lookup.columns)
    _require_columns(pipeline, f"{subject} of", wanted, table, "table")
    for left, right in zip(lookup.left_on, lookup.right_on, strict=True):
        types = records.schema[left].dataType, table.schema[right].dataType
        if without_nullability(types[0]) != without_nullability(types[1]):
            raise pipeline.refusal(
                f"{subject} by {left}, which is {types[0].simpleString()} in the records; {right} "
                f"of the table is {types[1].simpleString()}"
            )
    names = {name.casefold() for name in records.columns}
    for name in lookup.names:
        if name.casefold() in names:
            raise pipeline.refusal(
                f"{subject} of {name}, a column that the records have; prefix it"
            )
    keys = [f"#key{n}" for n in range(len(lookup.right_on))]
    given = [F.col(quoted(column)).alias(name) for name, column in lookup.names.items()]
    sought = [
        F.col(quoted(column)).alias(key) for key, column in zip(keys, lookup.right_on, strict=True)
    ]
    equal = [
        F.col(quoted(left)) == F.col(quoted(key))
        for left, key in zip(lookup.left_on, keys, strict=True)
    ]
    condition: Column = reduce(lambda one, other: one & other, equal)
    return records.join(table.select(*sought, *given), condition, "left").drop(*keys)


def require_single(lookup: Lookup, table: DataFrame) -> None:
    """Check that no key of a lookup table has several rows. This reads the key columns."""
    keys = [F.col(quoted(column)) for column in dict.fromkeys(lookup.right_on)]
    known = reduce(lambda one, other: one & other, [key.isNotNull() for key in keys])
    twice = table.where(known).groupBy(*keys).agg(F.count("*").alias("#rows")).where("`#rows` > 1")
    if not twice.isEmpty():
        raise InvalidRequestError(
            "CAP-LOOKUP",
            f"lookup {lookup.name}: a value of {', '.join(lookup.right_on)} has several rows",
            "make the key of the table unique, or add columns to it",
            lookup=lookup.name,
            table=lookup.table,
        )


def _require_columns(
    pipeline: Pipeline, subject: str, names: tuple[str, ...], frame: DataFrame, whose: str
) -> None:
    for name in names:
        if name not in frame.columns:
            known = ", ".join(frame.columns)
            raise pipeline.refusal(f"{subject} {name}, but its {whose} have {known}")
