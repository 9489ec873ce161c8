"""Declared checks over stored rows, counted in the pass that makes the cells of an audit.

A predicate, a range and columns that are never null are flags of a row, summed per cell. Columns
that are unique are a second grouping of the same scan (`GROUPING SETS`), by the key's hash pair.
So no check reads anything again; only where one fails are rows looked for, as a sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from capstan.audit.result import CHECK, CheckResult, Finding
from capstan.audit.row_diff import row_text
from capstan.audit.row_view import View, place_of, time_of
from capstan.core.config.row_checks import Check, Limit, Range
from capstan.core.config.sql_rules import moment_problem
from capstan.errors import InvalidRequestError
from capstan.spark.clock_literals import moment_in
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted

SAMPLE = 5
"""How many rows of a failed check are shown."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A check in terms of a frame's columns.

    Attributes:
        check: The check.
        column: What its measure is called in a frame of cells.
        broken: Whether a row does not meet it, never null; None for columns that are unique.
        keys: The columns that are unique together; none for the other kinds.
    """

    check: Check
    column: str
    broken: Column | None
    keys: tuple[StructField, ...] = ()

    def flags(self) -> list[Column]:
        """The columns that a row needs, so that the check can be counted."""
        if self.broken is not None:
            return [self.broken.cast("bigint").alias(self.column)]
        pairs = zip(self.hashes, row_hashes(self.keys), strict=True)
        return [column.alias(name) for name, column in pairs]

    @property
    def hashes(self) -> tuple[str, str]:
        """The columns of the key's hash pair."""
        return f"{self.column}k1", f"{self.column}k2"


def prepare(checks: Sequence[Check], frame: DataFrame) -> tuple[Prepared, ...]:
    """Put checks in terms of a frame's columns; no job runs.

    Raises:
        InvalidRequestError: `CAP-CHECK-COLUMN` for a check that does not fit the columns, naming
            it.
    """
    return tuple(_prepared(check, f"c{i}", frame) for i, check in enumerate(checks))


def _prepared(check: Check, column: str, frame: DataFrame) -> Prepared:
    for name in check.columns:
        if name not in frame.columns:
            has = ", ".join(frame.columns)
            raise _misfit(check, f"there is no column {name}", f"the output has {has}")
    if check.unique is not None:
        keys = tuple(frame.schema[name] for name in check.unique)
        return Prepared(check, column, None, keys)
    if check.not_null is not None:
        nulls = [F.col(quoted(name)).isNull() for name in check.not_null]
        return Prepared(check, column, reduce(lambda a, b: a | b, nulls))
    if check.range is not None:
        return Prepared(check, column, _outside(check, check.range, frame.schema))
    met = F.expr(check.sql or "")
    try:
        found = frame.select(met.alias("met"))
        kind = found.schema["met"].dataType
        if isinstance(kind, BooleanType):
            frame.where(met)  # A sum over all rows could be selected, and is no rule for one.
    except AnalysisException as error:
        raise _misfit(check, next(filter(str.strip, str(error).splitlines()), "")) from error
    if not isinstance(kind, BooleanType):
        raise _misfit(check, f"its sql gives {kind.simpleString()}, and not true or false")
    moment = moment_in(check.sql or "", found)
    if moment is not None:
        raise _misfit(check, f"its sql {moment_problem(moment)}")
    return Prepared(check, column, ~F.coalesce(met, F.lit(False)))


def _outside(check: Check, declared: Range, schema: StructType) -> Column:
    column, kind = F.col(quoted(declared.column)), schema[declared.column].dataType
    parts = []
    if declared.min is not None:
        parts.append(column < _literal(check, declared.min, kind))
    if declared.max is not None:
        parts.append(column > _literal(check, declared.max, kind))
    return F.coalesce(reduce(lambda a, b: a | b, parts), F.lit(False))


def _literal(check: Check, limit: Limit, kind: DataType) -> Column:
    if isinstance(limit, Decimal) and isinstance(kind, NumericType):
        return F.lit(limit)
    if isinstance(limit, datetime) and isinstance(kind, TimestampType):
        return F.timestamp_micros(F.lit((limit - _EPOCH) // timedelta(microseconds=1)))
    if isinstance(limit, datetime) and isinstance(kind, TimestampNTZType | DateType):
        # A day is compared as its midnight. As text: no time zone of a session has a say in it.
        return F.lit(f"{limit:%Y-%m-%d %H:%M:%S.%f}").cast("timestamp_ntz")
    of = "a number" if isinstance(limit, Decimal) else "an instant"
    name = check.columns[0]
    raise _misfit(check, f"column {name} is {kind.simpleString()}, and its bound {of}")


def _misfit(
    check: Check, what: str, hint: str = "mend the check in streams.yaml"
) -> InvalidRequestError:
    problem = f"check {check.title} does not fit what is put out: {what}"
    return InvalidRequestError("CAP-CHECK-COLUMN", problem, hint, check=check.title)


def tallied(
    rows: DataFrame, checks: Sequence[Prepared], measures: Mapping[str, Column]
) -> DataFrame:
    """Cells of some rows, and per check how many rows do not meet it, in one scan.

    Args:
        rows: Places, what `measures` aggregate, and the `flags` of each check.
        checks: The checks.
        measures: Aggregates per cell by name; `records` among them.

    Returns:
        A row per cell, with the measures and `c0, c1, ...`. Rows that share a key are counted in
        the row without a place, which may have no records of its own.
    """
    place = place_of(rows)
    unique = [each for each in checks if each.keys]
    counted = [F.sum(each.column).alias(each.column) for each in checks if not each.keys]
    named = [column.alias(name) for name, column in measures.items()]
    if not unique:
        return rows.groupBy(*place).agg(*named, *counted)
    sets = [place, *(list(each.hashes) for each in unique)]
    keyed = [name for each in unique for name in each.hashes]
    grouped = rows.groupingSets(sets, *place, *keyed).agg(
        *named,
        *counted,
        *(F.grouping(each.hashes[0]).alias(f"{each.column}g") for each in unique),
    )
    return _folded(grouped, place, [*measures, *(c.column for c in checks if not c.keys)], unique)


def _folded(
    grouped: DataFrame, place: list[str], measures: Iterable[str], unique: Sequence[Prepared]
) -> DataFrame:
    """The groups of the cells as they are; those of the keys as one count per check."""
    of_cell = reduce(lambda a, b: a & b, [F.col(f"{each.column}g") == 1 for each in unique])
    doubled = [
        F.sum(
            F.when((F.col(f"{each.column}g") == 0) & (F.col("records") > 1), F.col("records"))
        ).alias(each.column)
        for each in unique
    ]
    kept = [F.max(F.when(of_cell, F.col(name))).alias(name) for name in measures]
    return grouped.groupBy(*place).agg(*kept, *doubled)


def results(
    checks: Sequence[Prepared], view: View, failing: Mapping[str, int]
) -> tuple[CheckResult, ...]:
    """What came of the checks; rows are read only for a sample of those that do not meet one.

    Args:
        checks: The checks.
        view: The rows.
        failing: How many rows do not meet a check, by its column.
    """
    return tuple(
        CheckResult(
            each.check.title,
            each.check.rule,
            failing.get(each.column, 0),
            _sample(each, view) if failing.get(each.column) else (),
        )
        for each in checks
    )


def _sample(check: Prepared, view: View) -> tuple[Finding, ...]:
    frame = view.frame
    text = row_text(frame.schema.fields).alias("text")
    rows = frame.select(*view.place, *check.flags(), text)
    place = place_of(rows)
    if check.keys:
        several = rows.groupBy(*check.hashes).count().where("count > 1").drop("count")
        some = several.orderBy(*check.hashes).limit(SAMPLE)
        found = rows.join(F.broadcast(some), list(check.hashes), "left_semi")
        order = [*check.hashes, *place]
    else:
        found, order = rows.where(f"{check.column} > 0"), place
    taken = found.orderBy(*order).limit(SAMPLE).select(*place, "text").collect()
    return tuple(
        Finding(
            row["worker"],
            time_of(row),
            CHECK,
            None,
            json.loads(row["text"]),
            check=check.check.title,
        )
        for row in taken
    )
