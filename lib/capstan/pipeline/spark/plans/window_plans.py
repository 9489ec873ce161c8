"""Windows of event time as Spark plans: tumbling, sliding, sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.pipeline.graph.events import END
from capstan.pipeline.operators.aggregates import Aggregate, AggregateKind
from capstan.pipeline.operators.group_reduce import sorting_of
from capstan.pipeline.operators.sessions import SessionWindow
from capstan.pipeline.operators.time_buffer import units, with_time
from capstan.pipeline.operators.windows import START, STOP, Window, WindowSpec
from capstan.pipeline.spark.plans.operator_plan import OperatorPlan, column, floor_to, inexact
from capstan.pipeline.spark.wire_format import AT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AnyWindow = TypeVar("AnyWindow", Window, SessionWindow)

_START, _STOP = "start", "stop"
# Sums of more digits may pass through more than 38.
_ROOMY = 28


class _AggregatePlan(OperatorPlan[AnyWindow]):
    """A plan of windows that aggregate the rows of each key."""

    __slots__ = ()

    @property
    def problem(self) -> str | None:
        """A type that Spark compares or sums in another way; or bounds of an unusual type."""
        spec, schema = self.spec, self.inputs[0]
        kind = spec.bounds
        zoned = pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None
        if kind not in (pa.int64(), pa.date32()) and not zoned:
            return f"its bounds have the type {kind}"
        problems = [inexact(schema, spec.by)]
        problems += [_problem(aggregate, spec, schema) for aggregate in spec.aggregates]
        return next((problem for problem in problems if problem is not None), None)

    def _grouped(self, rows: DataFrame, by: Column, *more: Column) -> DataFrame:
        """A row per key and `by`: `k0`, ... of the key, `by`, the results as `a0`, ..., `more`."""
        spec = self.spec
        keys = [column(name).alias(f"k{number}") for number, name in enumerate(spec.by)]
        ordering = sorting_of(spec.aggregates, with_time(self.inputs[0]), spec.ties)
        results = [
            self._result(aggregate, ordering).alias(f"a{number}")
            for number, aggregate in enumerate(spec.aggregates)
        ]
        return rows.groupBy(*keys, by).agg(*results, *more)

    def _result(self, a: Aggregate, ordering: list[str]) -> Column:
        """An aggregate in Spark, which ignores nulls as the engine does."""
        if a.column is None:
            return F.count(F.lit(1))
        value = column(a.column)
        if a.kind in (AggregateKind.FIRST, AggregateKind.LAST):
            # Nulls come last.
            keys = [key for name in ordering for key in (column(name).isNull(), column(name))]
            order = F.struct(*keys)
            chosen = F.min_by if a.kind is AggregateKind.FIRST else F.max_by
            return chosen(value, order)
        if a.kind is AggregateKind.MEAN:
            mean = F.sum(value.cast("bigint")).cast("double") / F.count(value).cast("double")
            return F.when(F.count(value) > 0, mean)
        if a.kind is AggregateKind.SUM:
            return self._sum(a, value)
        return {
            AggregateKind.COUNT: F.count,
            AggregateKind.COUNT_DISTINCT: F.count_distinct,
            AggregateKind.MIN: F.min,
            AggregateKind.MAX: F.max,
        }[a.kind](value)

    def _sum(self, a: Aggregate, value: Column) -> Column:
        kind = with_time(self.inputs[0]).field(a.column).type
        if not pa.types.is_integer(kind) or kind.bit_width < 64:
            return F.sum(value)
        # A partial sum may be larger than the total.
        total = F.sum(value.cast("decimal(20,0)"))
        large = ~total.between(F.lit(-(2**63)), F.lit(END))
        problem = f"{a} is too large for int64; cast the column to a decimal or a float first"
        return self.failing(large, problem, total.cast("bigint"))

    def _emit_windows(self, grouped: DataFrame) -> DataFrame:
        """The output rows of groups with `start` and `stop`."""
        spec = self.spec
        made = {name: F.col(f"k{number}") for number, name in enumerate(spec.by)}
        made |= {a.name: F.col(f"a{number}") for number, a in enumerate(spec.aggregates)}
        made |= {START: _bound(F.col(_START), spec.bounds), STOP: _bound(F.col(_STOP), spec.bounds)}
        return self.emit(grouped, F.col(_STOP) - 1, made)


class WindowPlan(_AggregatePlan[Window]):
    """Tumbling and sliding windows that have closed."""

    __slots__ = ()

    @property
    def span(self) -> int:
        """The window."""
        return units(self.spec.size)

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """A row for each key and closed window that has rows."""
        spec = self.spec
        size, slide, offset = units(spec.size), units(spec.slide), units(spec.offset)
        (rows,) = inputs
        rows = self.within_limits(rows, size)
        newest = floor_to(F.col(AT), slide, offset)
        if size <= slide:
            rows = rows.withColumn(_START, newest)
        else:
            # A row is in the newest window that has begun, and in those before it that last.
            backs = F.explode(F.sequence(F.lit(0), F.lit((size - 1) // slide)))
            rows = rows.withColumn("back", backs)
            rows = rows.withColumn(_START, newest - F.col("back") * slide)
            rows = rows.where(F.col(_START) + size > F.col(AT))
        closed = rows.where(F.col(_START) + size <= self.last)
        grouped = self._grouped(closed, F.col(_START))
        return self._emit_windows(grouped.withColumn(_STOP, F.col(_START) + size))


class SessionPlan(_AggregatePlan[SessionWindow]):
    """Sessions that have ended."""

    __slots__ = ()

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """A row for each session that has ended."""
        gap = units(self.spec.gap)
        (rows,) = inputs
        rows = self.within_limits(rows, gap)
        ends = F.min(AT).alias(_START), (F.max(AT) + gap).alias(_STOP)
        # Spark joins sessions that touch, and drops those without a length.
        session = F.col(AT)
        if gap > 1:
            session = F.session_window(F.timestamp_micros(AT), f"{gap - 1} microseconds")
        grouped = self._grouped(rows, session, *ends)
        return self._emit_windows(grouped.where(F.col(_STOP) <= self.last))


def _bound(time: Column, kind: pa.DataType) -> Column:
    if pa.types.is_date32(kind):
        return F.date_from_unix_date(time.cast("int"))
    return F.timestamp_micros(time) if pa.types.is_timestamp(kind) else time


def _problem(a: Aggregate, spec: WindowSpec, schema: pa.Schema) -> str | None:
    if a.column is None or a.kind is AggregateKind.COUNT:
        return None
    kind = with_time(schema).field(a.column).type
    if a.kind in (AggregateKind.FIRST, AggregateKind.LAST):
        return inexact(schema, sorting_of(spec.aggregates, with_time(schema), spec.ties))
    if a.kind is AggregateKind.SUM and pa.types.is_decimal128(kind) and kind.precision > _ROOMY:
        return f"{a} may pass through more than 38 digits"
    if a.kind is AggregateKind.MEAN and not (
        pa.types.is_signed_integer(kind) and kind.bit_width < 64
    ):
        return f"{a} of {kind} is rounded in another way"
    return inexact(schema, [a.column])
