"""Joins of two streams as Spark plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.core.sql_names import quoted
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.operators.joins import IntervalJoin, Sides, WindowJoin
from capstan.pipeline.operators.time_buffer import units, without_time
from capstan.pipeline.spark.plans.operator_plan import OperatorPlan, floor_to, inexact, stored
from capstan.pipeline.spark.wire_format import AT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AnyJoin = TypeVar("AnyJoin", IntervalJoin, WindowJoin)

_BUCKET = "bucket"
_TIMES = (AT, _BUCKET)


class _JoinPlan(OperatorPlan[AnyJoin]):
    """A plan of pairs of rows with equal keys and buckets of time."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """Keys that Spark compares in another way."""
        left, right = self.inputs
        return inexact(left, self.spec.left_on) or inexact(right, self.spec.right_on)

    def _pairs(self, left: DataFrame, right: DataFrame, condition: Column | None) -> DataFrame:
        """Pairs of rows with equal keys and buckets: their columns with `l_` and `r_` before them.

        In a left join, those of the right are null for a left row without a pair.
        """
        on = [F.col("l_bucket") == F.col("r_bucket")]
        for one, other in zip(self.spec.left_on, self.spec.right_on, strict=True):
            on.append(_of("l", one) == _of("r", other))
        if condition is not None:
            on.append(condition)
        first, second = self.inputs
        return _side("l", left, first).join(_side("r", right, second), on, self.spec.how)

    def _emit_pairs(self, pairs: DataFrame, time: Column) -> DataFrame:
        sides = Sides.of(self.spec, self.inputs)
        made = {name: _of("l", name) for name in without_time(sides.left).names}
        for name in sides.output_names():
            made[self.spec.prefix + name] = _of("r", name)
        return self.emit(pairs, time, made)


def _side(side: str, frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """The rows of one side, under the names that pairs have for them."""
    names = [*_TIMES, *map(stored, without_time(schema).names)]
    return frame.select(*(F.col(quoted(name)).alias(f"{side}_{name}") for name in names))


def _of(side: str, name: str) -> Column:
    """A column of one side of a pair."""
    return F.col(f"{side}_{AT}" if name == TIME else quoted(f"{side}_{stored(name)}"))


class IntervalJoinPlan(_JoinPlan[IntervalJoin]):
    """Pairs of rows within an interval, of complete times."""

    __slots__ = ()

    @property
    def span(self) -> int:
        """The ends of the interval."""
        return abs(units(self.spec.lower)) + abs(units(self.spec.upper))

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The pairs, at their later time; unmatched left rows once none can match them."""
        lower, upper = units(self.spec.lower), units(self.spec.upper)
        complete = F.col(AT) < self.last
        limited = (self.within_limits(rows, abs(lower) + abs(upper) + 1) for rows in inputs)
        left, right = (rows.where(complete) for rows in limited)
        # Buckets are as long as the interval, so the left times of a right row span at most two.
        width = upper - lower + 1
        first = floor_to(F.col(AT) - upper, width)
        buckets = F.array(first) if width == 1 else F.array(first, first + width)
        pairs = self._pairs(
            left.withColumn(_BUCKET, floor_to(F.col(AT), width)),
            right.withColumn(_BUCKET, F.explode(buckets)),
            F.col("r_time").between(F.col("l_time") + lower, F.col("l_time") + upper),
        )
        beyond = max(upper, 0)
        expired = F.col("l_time") < self.last - beyond
        pairs = pairs.where(F.col("r_time").isNotNull() | expired)
        alone = F.col("l_time") + beyond
        time = F.when(F.col("r_time").isNull(), alone).otherwise(F.greatest("l_time", "r_time"))
        return self._emit_pairs(pairs, time)


class WindowJoinPlan(_JoinPlan[WindowJoin]):
    """Pairs of rows in the same window, of closed windows."""

    __slots__ = ()

    @property
    def span(self) -> int:
        """The window."""
        return units(self.spec.size)

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The pairs, and in a left join the unmatched left rows, at the last time of a window."""
        size, offset = units(self.spec.size), units(self.spec.offset)
        edge = (self.last - offset) // size * size + offset
        left, right = (
            self.within_limits(rows, size)
            .where(F.col(AT) < edge)
            .withColumn(_BUCKET, floor_to(F.col(AT), size, offset))
            for rows in inputs
        )
        return self._emit_pairs(self._pairs(left, right, None), F.col("l_bucket") + (size - 1))
