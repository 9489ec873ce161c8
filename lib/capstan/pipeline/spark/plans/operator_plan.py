"""A Spark plan of an operator, and the columns that it is made of.

Rows are frames with the column `time BIGINT` and those of the node, with a prefix, so that Spark
reads only what a later node needs. All of them are complete, so a plan needs neither watermarks nor
state: what the engine gives at the last watermark is a function of the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from capstan.core.sql_names import quoted
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.operator import OperatorSpec
from capstan.pipeline.spark.task_errors import sent
from capstan.pipeline.spark.wire_format import AT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PREFIX = "c_"
"""The beginning of a column's name in a frame, which no other column of a plan has."""

Spec = TypeVar("Spec", bound=OperatorSpec)


@dataclass(frozen=True, slots=True)
class OperatorPlan(ABC, Generic[Spec]):
    """An operator over rows that are all there.

    Attributes:
        node: Name of its node.
        spec: The operator.
        inputs: Columns of its inputs, in order of ports.
        output: Columns of its output.
        last: The watermark after the last row.
    """

    node: str
    spec: Spec
    inputs: tuple[pa.Schema, ...]
    output: pa.Schema
    last: int

    @property
    @abstractmethod
    def problem(self) -> str | None:
        """Why Spark would not give exactly the rows of the engine; None when it does."""

    @property
    def span(self) -> int | None:
        """How far before the time of an output its rows can lie; None without a limit."""
        return None

    @abstractmethod
    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The output of the operator."""

    def within_limits(self, rows: DataFrame, reach: int) -> DataFrame:
        """The rows, which fail if one has a time less than `reach` before the limit of 64 bits."""
        problem = f"a time is less than {reach} before the limit of 64 bits"
        # As a condition, it is evaluated once; in the column, wherever the time is used.
        return rows.where(self.failing(F.col(AT) > END - reach, problem, F.lit(True)))

    def failing(self, condition: Column, problem: str, value: Column) -> Column:
        """A value, in whose place the operator fails under a condition."""
        cause = f"ValueError: {problem}"
        error = OperatorFailed.create(f"{self.node} failed: {cause}", node=self.node, cause=cause)
        return F.when(condition, F.raise_error(F.lit(sent(error)))).otherwise(value)

    def emit(self, frame: DataFrame, time: Column, columns: Mapping[str, Column]) -> DataFrame:
        """Rows with these times and columns, in the types of the output."""
        return emitted(frame, time, columns, self.output)


def emitted(
    frame: DataFrame, time: Column, columns: Mapping[str, Column], schema: pa.Schema
) -> DataFrame:
    """Rows with these times and columns, in the types of a schema."""
    fields = [
        columns[field.name].cast(field.dataType).alias(stored(field.name))
        for field in from_arrow_schema(schema).fields
        if field.name != TIME
    ]
    return frame.select(time.alias(AT), *fields)


def united(inputs: Sequence[DataFrame], schema: pa.Schema) -> DataFrame:
    """The rows of several inputs with the same columns."""
    if len(inputs) == 1:
        return inputs[0]
    made = columns(schema)
    frames = [emitted(frame, F.col(AT), made, schema) for frame in inputs]
    return reduce(lambda one, other: one.unionByName(other), frames)


def stored(name: str) -> str:
    """The name in a frame of a column of the rows."""
    return f"{_PREFIX}{name}"


def column(name: str) -> Column:
    """A column of the rows; `_time` is the row's time, even if the rows do not have it."""
    return F.col(AT) if name == TIME else F.col(quoted(stored(name)))


def columns(schema: pa.Schema) -> dict[str, Column]:
    """All columns of rows with a schema."""
    return {name: column(name) for name in schema.names}


def unpacked(rows: DataFrame, schema: pa.Schema, row: str) -> DataFrame:
    """Rows whose columns are those of a struct."""
    fields = (
        F.col(row).getField(name).alias(stored(name)) for name in schema.names if name != TIME
    )
    return rows.select(AT, *fields)


def packed(rows: DataFrame, schema: pa.Schema, row: str) -> DataFrame:
    """Rows whose columns are a struct."""
    return rows.select(AT, F.struct(*(c.alias(n) for n, c in columns(schema).items())).alias(row))


def floor_to(time: Column, width: int, offset: int = 0) -> Column:
    """The greatest multiple of `width`, plus `offset`, that is not after a time."""
    return time if width == 1 else time - F.pmod(time - F.lit(offset), F.lit(width))


def inexact(schema: pa.Schema, names: Sequence[str]) -> str | None:
    """Why the values of some columns are not compared alike by Spark and the engine; else None."""
    for name in names:
        kind = schema.field(name).type if name in schema.names else pa.int64()
        if not _is_exact(kind):
            return f"its column {name} has the type {kind}"
    return None


def _is_exact(kind: pa.DataType) -> bool:
    return (
        pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
        or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    )
