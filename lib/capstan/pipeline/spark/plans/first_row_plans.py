"""Deduplication and first rows as Spark plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.operators.deduplicate import Deduplicate
from capstan.pipeline.operators.time_buffer import units, with_time
from capstan.pipeline.operators.top_n import TopN
from capstan.pipeline.spark.plans.operator_plan import (
    OperatorPlan,
    column,
    columns,
    floor_to,
    inexact,
)
from capstan.pipeline.spark.wire_format import AT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STOP, _RANK = "stop", "rank"


class DeduplicatePlan(OperatorPlan[Deduplicate]):
    """The first row of each key, of complete times."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """A time limit, which depends on the row that passed before; or other comparisons."""
        if self.spec.within is not None:
            return "which rows pass within a time depends on the row that passed before"
        return inexact(self.inputs[0], self.inputs[0].names)

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The first row of each key at its own time."""
        rows = self.within_limits(inputs[0], 1).where(F.col(AT) < self.last)
        order = _ascending([TIME, *self.spec.ties, *self.inputs[0].names])
        over = Over.partitionBy(*(column(name) for name in self.spec.by)).orderBy(*order)
        first = rows.withColumn(_RANK, F.row_number().over(over)).where(F.col(_RANK) == 1)
        return self.emit(first, F.col(AT), columns(self.inputs[0]))


class TopNPlan(OperatorPlan[TopN]):
    """The first rows of each key, in closed windows or over all rows."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """Rows of an input that has not ended, which hold the watermark; or other comparisons."""
        if self.spec.window is None and self.last < END:
            return "it passes its rows when its input has ended"
        return inexact(self.inputs[0], self.inputs[0].names)

    @property
    def span(self) -> int | None:
        """The window; None over all rows."""
        return None if self.spec.window is None else units(self.spec.window)

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """The first rows, with their rank, at the last time of their window or their own time."""
        spec, (rows,) = self.spec, inputs
        if spec.window is None:
            rows = rows.withColumn(_STOP, F.lit(END))
            time = F.col(AT)
        else:
            window = units(spec.window)
            stop = floor_to(F.col(AT), window) + window
            rows = self.within_limits(rows, window).withColumn(_STOP, stop)
            rows = rows.where(F.col(_STOP) <= self.last)
            time = F.col(_STOP) - 1
        order = [
            column(name).asc_nulls_last() if way == "ascending" else column(name).desc_nulls_last()
            for name, way in spec.order
        ]
        # Rows that are equal in these columns are ordered by their other values.
        others = [] if spec.with_ties else _ascending(with_time(self.inputs[0]).names)
        over = Over.partitionBy(*(column(name) for name in spec.by), _STOP)
        number = F.rank() if spec.with_ties else F.row_number()
        rows = rows.withColumn(_RANK, number.over(over.orderBy(*order, *others)))
        made = columns(self.inputs[0])
        if spec.rank is not None:
            made[spec.rank] = F.col(_RANK)
        return self.emit(rows.where(F.col(_RANK) <= spec.n), time, made)


def _ascending(names: Sequence[str]) -> list[Column]:
    return [column(name).asc_nulls_last() for name in dict.fromkeys(names)]
