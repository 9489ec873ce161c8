"""Declared checks over stored rows, evaluated in the same scan as the cells of an audit.

Predicates, ranges and non-null columns are flags of a row, summed per cell. Unique columns are a
second grouping of the same scan (`GROUPING SETS`), by the key's hash pair. So checks need no scan
of their own; rows are read again only for a sample of failing ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import and_, or_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from capstan.audit.result import CHECK, CheckResult, Finding
from capstan.audit.row_diff import row_text
from capstan.audit.row_view import View, place_of, time_of
from capstan.core.config.change_rules import DELETED
from capstan.core.config.row_checks import Check, Limit, Range
from capstan.core.config.sql_rules import moment_problem
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError
from capstan.spark.clock_literals import clock_literal
from capstan.storage.tape.fingerprint import row_hashes

SAMPLE = 5
"""The number of sampled rows of a failed check."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PreparedCheck:
    """A check resolved to a frame's columns."""

    check: Check
    column: str  # its measure in a frame of cells
    failed: Column | None  # whether a row fails it, never null; None for unique columns
    keys: tuple[T.StructField, ...] = ()  # the columns that are unique together

    def flags(self) -> list[Column]:
        """The columns of a row from which the check is counted."""
        if self.failed is not None:
            return [self.failed.cast("bigint").alias(self.column)]
        pairs = zip(self.hashes, row_hashes(self.keys), strict=True)
        return [column.alias(name) for name, column in pairs]

    @property
    def hashes(self) -> tuple[str, str]:
        """The columns of the key's hash pair."""
        return f"{self.column}k1", f"{self.column}k2"


def prepare(checks: Sequence[Check], frame: DataFrame) -> tuple[PreparedCheck, ...]:
    """Resolve checks to a frame's columns, without a job."""
    prepared = tuple(_prepare(check, f"c{i}", frame) for i, check in enumerate(checks))
    if DELETED not in frame.columns:
        return prepared
    # A deleting change may have only the key; it puts no row into the table.
    return tuple(
        check if check.failed is None else replace(check, failed=check.failed & ~F.col(DELETED))
        for check in prepared
    )


def _prepare(check: Check, column: str, frame: DataFrame) -> PreparedCheck:
    for name in check.columns:
        if name not in frame.columns:
            columns = ", ".join(frame.columns)
            raise _misfit(check, f"there is no column {name}", f"the output has {columns}")
    if check.unique is not None:
        keys = tuple(frame.schema[name] for name in check.unique)
        return PreparedCheck(check, column, None, keys)
    if check.not_null is not None:
        nulls = [F.col(quoted(name)).isNull() for name in check.not_null]
        return PreparedCheck(check, column, reduce(or_, nulls))
    if check.range is not None:
        return PreparedCheck(check, column, _outside(check, check.range, frame.schema))
    met = F.expr(check.sql or "")
    try:
        selected = frame.select(met.alias("met"))
        kind = selected.schema["met"].dataType
        if isinstance(kind, T.BooleanType):
            frame.where(met)  # Refuses aggregates, which can be selected but are no rule for rows.
    except AnalysisException as error:
        raise _misfit(check, next(filter(str.strip, str(error).splitlines()), "")) from error
    if not isinstance(kind, T.BooleanType):
        raise _misfit(check, f"its sql returns {kind.simpleString()} instead of true or false")
    moment = clock_literal(check.sql or "", selected)
    if moment is not None:
        raise _misfit(check, f"its sql {moment_problem(moment)}")
    return PreparedCheck(check, column, ~F.coalesce(met, F.lit(False)))


def _outside(check: Check, declared: Range, schema: T.StructType) -> Column:
    column, kind = F.col(quoted(declared.column)), schema[declared.column].dataType
    parts = []
    if declared.min is not None:
        parts.append(column < _literal(check, declared.min, kind))
    if declared.max is not None:
        parts.append(column > _literal(check, declared.max, kind))
    return F.coalesce(reduce(or_, parts), F.lit(False))


def _literal(check: Check, limit: Limit, kind: T.DataType) -> Column:
    if isinstance(limit, Decimal) and isinstance(kind, T.NumericType):
        return F.lit(limit)
    if isinstance(limit, datetime) and isinstance(kind, T.TimestampType):
        return F.timestamp_micros(F.lit((limit - _EPOCH) // timedelta(microseconds=1)))
    if isinstance(limit, datetime) and isinstance(kind, T.TimestampNTZType | T.DateType):
        # A day is compared as its midnight. As text, so the session's time zone does not matter.
        return F.lit(f"{limit:%Y-%m-%d %H:%M:%S.%f}").cast("timestamp_ntz")
    bound = "a number" if isinstance(limit, Decimal) else "an instant"
    name = check.columns[0]
    raise _misfit(check, f"column {name} is {kind.simpleString()}, but its bound is {bound}")


def _misfit(
    check: Check, problem: str, hint: str = "correct the check in streams.yaml"
) -> InvalidRequestError:
    message = f"check {check.title} does not fit the output: {problem}"
    return InvalidRequestError("CAP-CHECK-COLUMN", message, hint, check=check.title)


def aggregate_with_checks(
    rows: DataFrame, checks: Sequence[PreparedCheck], measures: Mapping[str, Column]
) -> DataFrame:
    """Aggregate rows to cells, with failing rows per check as `c0, c1, ...`, in one scan."""
    # Rows that share a key are counted in the row without a place, which may have no records.
    place = place_of(rows)
    unique = [check for check in checks if check.keys]
    counts = [F.sum(check.column).alias(check.column) for check in checks if not check.keys]
    aggregates = [column.alias(name) for name, column in measures.items()]
    if not unique:
        return rows.groupBy(*place).agg(*aggregates, *counts)
    sets = [place, *(list(check.hashes) for check in unique)]
    key_hashes = [name for check in unique for name in check.hashes]
    grouped = rows.groupingSets(sets, *place, *key_hashes).agg(
        *aggregates,
        *counts,
        *(F.grouping(check.hashes[0]).alias(f"{check.column}g") for check in unique),
    )
    names = [*measures, *(check.column for check in checks if not check.keys)]
    return _fold(grouped, place, names, unique)


def _fold(
    grouped: DataFrame, place: list[str], measures: Iterable[str], unique: Sequence[PreparedCheck]
) -> DataFrame:
    """Keep the groups of cells, and fold the groups of keys to one count per check."""
    is_cell = reduce(and_, [F.col(f"{check.column}g") == 1 for check in unique])
    duplicates = [
        F.sum(
            F.when((F.col(f"{check.column}g") == 0) & (F.col("records") > 1), F.col("records"))
        ).alias(check.column)
        for check in unique
    ]
    values = [F.max(F.when(is_cell, F.col(name))).alias(name) for name in measures]
    return grouped.groupBy(*place).agg(*values, *duplicates)


def results(
    checks: Sequence[PreparedCheck], view: View, failing: Mapping[str, int]
) -> tuple[CheckResult, ...]:
    """The results of checks, from failing rows by column; only a sample of those is read."""
    return tuple(
        CheckResult(
            prepared.check.title,
            prepared.check.rule,
            failing.get(prepared.column, 0),
            _sample(prepared, view) if failing.get(prepared.column) else (),
        )
        for prepared in checks
    )


def _sample(check: PreparedCheck, view: View) -> tuple[Finding, ...]:
    frame = view.frame
    text = row_text(frame.schema.fields).alias("text")
    rows = frame.select(*view.place, *check.flags(), text)
    place = place_of(rows)
    if check.keys:
        repeated = rows.groupBy(*check.hashes).count().where("count > 1").drop("count")
        keys = repeated.orderBy(*check.hashes).limit(SAMPLE)
        failing = rows.join(F.broadcast(keys), list(check.hashes), "left_semi")
        order = [*check.hashes, *place]
    else:
        failing, order = rows.where(f"{check.column} > 0"), place
    sample = failing.orderBy(*order).limit(SAMPLE).select(*place, "text").collect()
    return tuple(
        Finding(
            row["worker"],
            time_of(row),
            CHECK,
            None,
            json.loads(row["text"]),
            check=check.check.title,
        )
        for row in sample
    )
