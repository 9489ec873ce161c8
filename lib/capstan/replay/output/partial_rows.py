"""Changes that do not tell every column: a marker stands for the value that was there before.

The value is that of the change before it in the order, whichever run has replayed that one. So it
is looked up when rows are made from all changes that count, and kept changes have the marker.
"""

from __future__ import annotations

import base64
import json
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from capstan.core.config.change_rules import DELETED, ChangeRule
from capstan.core.sql_names import quoted
from capstan.errors import CheckFailedError
from capstan.replay.output.sequence_order import place

_SO_FAR = (Window.unboundedPreceding, Window.currentRow)
_EARLIER = "replay the range with its earlier changes first, or have the source send whole rows"


def marked(rule: ChangeRule, schema: T.StructType) -> dict[str, Column]:
    """By column that a change may leave as it was: whether it does.

    Bytes in JSON have the marker in Base64 or hexadecimal digits, arrays of text as only element.
    """
    texts = _forms(rule)
    conditions = {}
    for name, kind in _told(rule, schema):
        column = F.col(quoted(name))
        if isinstance(kind, T.ArrayType):
            conditions[name] = column.eqNullSafe(F.array(F.lit(texts[0])))
        elif isinstance(kind, T.BinaryType):
            conditions[name] = column.eqNullSafe(F.lit(texts[0]).cast("binary"))
        elif isinstance(kind, T.StringType):
            conditions[name] = F.coalesce(column.cast("string").isin(*texts), F.lit(False))
    return conditions


def is_partial(rule: ChangeRule, schema: T.StructType) -> Column:
    """Whether a change leaves a column as it was; one that deletes tells all there is to tell."""
    return reduce(or_, marked(rule, schema).values(), F.lit(False)) & ~F.col(DELETED)


def resolved(rule: ChangeRule, changes: DataFrame, truncates: Column) -> DataFrame:
    """The changes with the values that they leave as they were, where an earlier one has them.

    There is at most one per key and sequence. Truncates up to a change end what was before.
    """
    at = place(rule, changes.schema)["at"]
    by_key = Window.partitionBy(*map(quoted, rule.keys)).orderBy(at)
    deletes = F.sum(F.col(DELETED).cast("int")).over(by_key.rowsBetween(*_SO_FAR))
    begun = changes.withColumns({"_capstan_deletes": deletes, "_capstan_truncated": truncates})
    lives = ("_capstan_deletes", "_capstan_truncated")
    window = Window.partitionBy(*map(quoted, rule.keys), *lives).orderBy(at)
    values = {}
    for name, unchanged in marked(rule, changes.schema).items():
        column = F.col(quoted(name))
        told = F.when(~unchanged & ~F.col(DELETED), F.struct(column.alias("value")))
        last = F.last(told, ignorenulls=True).over(window.rowsBetween(*_SO_FAR))
        values[name] = F.when(last.isNull(), column).otherwise(last["value"])
    # At once: the columns of a window's order must not be those that it has already changed.
    return begun.withColumns(values).drop(*lives)


def require_values(rule: ChangeRule, rows: DataFrame) -> None:
    """Check that no row of a table would have the marker as a value."""
    if rule.unchanged is not None:
        _refuse_first(rule, rows, marked(rule, rows.schema), "no change before it has its value")


def require_readable(rule: ChangeRule, changes: DataFrame) -> None:
    """Check that the marker stands in no key, and in no value that cannot be looked up."""
    if rule.unchanged is None:
        return
    texts = [json.dumps(text, ensure_ascii=False)[1:-1] for text in _forms(rule)]
    known = {name for name, _ in _told(rule, changes.schema)}
    inside = {}
    for field in changes.schema.fields:
        nested = isinstance(field.dataType, T.ArrayType | T.MapType | T.StructType)
        if field.name in rule.keys or (nested and field.name not in known):
            text = F.to_json(F.struct(F.col(quoted(field.name))))
            inside[field.name] = reduce(or_, (text.contains(each) for each in texts))
    if inside:
        told = changes.where(~F.col(DELETED))
        _refuse_first(rule, told, inside, "it is a key, or no column of text by itself")


def _refuse_first(
    rule: ChangeRule, rows: DataFrame, conditions: dict[str, Column], why: str
) -> None:
    if not conditions:
        return
    name = F.coalesce(*(F.when(met, F.lit(column)) for column, met in conditions.items()))
    keys = [F.col(quoted(key)).cast("string").alias(f"k{n}") for n, key in enumerate(rule.keys)]
    found = rows.select(*keys, name.alias("name")).where("name IS NOT NULL").first()
    if found is not None:
        key = ", ".join(f"{key} {found[n]}" for n, key in enumerate(rule.keys))
        raise CheckFailedError(
            "CAP-SEQUENCE",
            f"a change of {key} leaves column {found['name']} unchanged, and {why}",
            _EARLIER,
        )


def _told(rule: ChangeRule, schema: T.StructType) -> list[tuple[str, T.DataType]]:
    """The columns in which the marker has a meaning, with their types."""
    fixed = {*rule.keys, *(each.column for each in rule.sequence), *rule.added}
    kinds = [
        (field.name, field.dataType)
        for field in schema.fields
        if field.name not in fixed and not field.name.startswith("_capstan_")
    ]
    return [
        (name, kind)
        for name, kind in kinds
        if isinstance(kind, T.StringType | T.BinaryType)
        or (isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StringType))
    ]


def _forms(rule: ChangeRule) -> list[str]:
    text = rule.unchanged or ""
    return [text, base64.b64encode(text.encode()).decode(), text.encode().hex()]
