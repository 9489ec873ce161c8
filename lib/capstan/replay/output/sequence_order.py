"""The order of changes as Spark expressions: what the columns of `sequence_by` say, by their kinds.

A value that its kind cannot read is null, and refused like one that is missing. No value is
compared as text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from capstan.capture.batch.classify import text_moment
from capstan.core.config.change_rules import ChangeRule
from capstan.core.config.names import one_of
from capstan.core.config.sequences import KINDS, SequenceColumn, SequenceKind
from capstan.core.sql_names import quoted

_NUMBER = T.DecimalType(38, 10)
_DIGITS = T.DecimalType(38, 0)
_MOMENTS = (T.DateType, T.TimestampType, T.TimestampNTZType)
_ORDERED = (T.NumericType, *_MOMENTS)
_NUMBER_TEXT = r"^[+-]?0*\d{1,28}(\.\d{1,10}0*)?$"
_VERSION_TEXT = r"^0*\d{1,38}(\.0*\d{1,38})*$"
_BINLOG_TEXT = r"^[^:]*\.(\d{1,38})(?::(\d{1,38}))?$"


def problem_with_type(each: SequenceColumn, kind: T.DataType) -> str | None:
    """The reason why a column of this type cannot order changes, or None."""
    shown = kind.simpleString()
    if each.kind is None:
        if isinstance(kind, _ORDERED):
            return None
        if not isinstance(kind, T.StringType):
            return f"sequence_by names {each.column}, but {shown} has no order"
        return (
            f"sequence_by names {each.column}, but text has no order: say what it holds, as in "
            f"`{each.column} as number`; kinds are {one_of(KINDS)}"
        )
    typed = {SequenceKind.NUMBER: (T.NumericType,), SequenceKind.TIME: _MOMENTS}.get(each.kind, ())
    if isinstance(kind, (T.StringType, *typed)):
        return None
    return f"sequence_by names `{each}`, but {each.column} is {shown} and not text"


def orders(rule: ChangeRule, schema: T.StructType) -> list[Column]:
    """The values by which changes are ordered, the most significant first; null if unreadable."""
    return [_order(each, schema[each.column].dataType) for each in rule.sequence]


def place(rule: ChangeRule, schema: T.StructType) -> Column:
    """The place of a change: its order as `at`, and as `moment` what a history tells of it."""
    at = F.struct(*(order.alias(f"s{n}") for n, order in enumerate(orders(rule, schema))))
    first = rule.sequence[0]
    moment = F.col(quoted(first.column))
    if moment_type(rule, schema) != schema[first.column].dataType:
        moment = orders(rule, schema)[0]
    return F.struct(at.alias("at"), moment.alias("moment"))


def moment_type(rule: ChangeRule, schema: T.StructType) -> T.DataType:
    """The type of `valid_from`: that of the first column, or of what its text holds."""
    first = rule.sequence[0]
    kind = schema[first.column].dataType
    if not isinstance(kind, T.StringType):
        return kind
    held = {SequenceKind.NUMBER: _NUMBER, SequenceKind.TIME: T.TimestampType()}
    return kind if first.kind is None else held.get(first.kind, kind)


def unknown(rule: ChangeRule, schema: T.StructType) -> Column:
    """Whether a change has no place in the order: a value is missing, unreadable or not a number.

    NaN is greater than all numbers to Spark, so that no later change would win over it.
    """
    values = orders(rule, schema)
    parts = [value.isNull() for value in values]
    parts += [
        F.isnan(value)
        for each, value in zip(rule.sequence, values, strict=True)
        if isinstance(schema[each.column].dataType, T.FloatType | T.DoubleType)
    ]
    return reduce(or_, parts)


def _order(each: SequenceColumn, kind: T.DataType) -> Column:
    value = F.col(quoted(each.column))
    if each.kind is None or not isinstance(kind, T.StringType):
        return value
    return _READERS[each.kind](F.trim(value.cast("string")))


def _number(text: Column) -> Column:
    return F.when(text.rlike(_NUMBER_TEXT), text.try_cast(_NUMBER))


def _version(text: Column) -> Column:
    parts = F.split(F.regexp_replace(text, r"(\.0+)+$", ""), r"\.")
    return F.when(text.rlike(_VERSION_TEXT), F.transform(parts, lambda n: n.try_cast(_DIGITS)))


def _binlog(text: Column) -> Column:
    file, position = (F.regexp_extract(text, _BINLOG_TEXT, n).try_cast(_DIGITS) for n in (1, 2))
    whole = F.struct(file.alias("file"), F.coalesce(position, F.lit(0)).alias("position"))
    return F.when(text.rlike(_BINLOG_TEXT), whole)


_READERS: dict[SequenceKind, Callable[[Column], Column]] = {
    SequenceKind.NUMBER: _number,
    SequenceKind.VERSION: _version,
    SequenceKind.TIME: text_moment,
    SequenceKind.BINLOG: _binlog,
}
