"""Why a record is not on tape, in words: the columns that are to blame, and what is wrong.

The words say nothing of a record's own values, so that records with one cause are one group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from capstan.capture.source.text import json_text, raw_text
from capstan.capture.source.text.line_checks import has_odd_quotes
from capstan.core.config import ByColumn, ByPartition, EventTime, Stream


def cause_of(
    stream: Stream, payload: StructType, folders: Collection[str] = ()
) -> tuple[Column, Column]:
    """The columns to blame, and what is wrong, of classified rows; null where the reason says all.

    `folders` are the columns that come from the names of folders, not from a line.
    """
    unparsed = _unparsed(stream, payload, folders)
    causes = {
        "malformed": unparsed,
        "no-time": _without_time(stream),
        "unknown-worker": _without_worker(stream),
    }
    reason, nothing = F.col("reason"), F.lit(None).cast("string")
    fields, errors = nothing, nothing
    for name, (field, error) in causes.items():
        fields = F.when(reason == name, field).otherwise(fields)
        errors = F.when(reason == name, error).otherwise(errors)
    return fields, errors


def _without_time(stream: Stream) -> tuple[Column, Column]:
    time = stream.time
    if not isinstance(time, EventTime):
        return F.lit(None).cast("string"), F.lit(None).cast("string")
    if time.column is None:
        return F.lit(None).cast("string"), F.lit("time.expression gives no time up to year 9999")
    is_null = F.col("data").getField(time.column).isNull()
    return F.lit(time.column), F.when(is_null, "is null").otherwise("is no time up to year 9999")


def _without_worker(stream: Stream) -> tuple[Column, Column]:
    by = stream.workers
    if not isinstance(by, ByColumn | ByPartition) or by.column is None:
        return F.lit(None).cast("string"), F.lit(None).cast("string")
    is_null = F.col("data").getField(by.column).isNull()
    return F.lit(by.column), F.when(is_null, "is null").otherwise("is not declared")


def is_unread(
    stream: Stream, payload: StructType, folders: Collection[str], given: Collection[str]
) -> Column:
    """Whether a malformed record has text that was not read, beside that of the `given` columns."""
    left = [field for field in payload if field.name not in {*folders, *given}]
    if not left:
        return F.lit(False)
    nested = any(isinstance(field.dataType, StructType | ArrayType | MapType) for field in left)
    if nested or stream.source.selection is not None:
        # What is missing inside of a value, or in a text of another name, is not known.
        return F.lit(True)
    whole, lost, _ = _faults(stream, payload, folders)
    further = F.filter(lost, lambda each: ~each["name"].isin(*given))
    unread = (F.size(lost) == 0) | (F.size(further) > 0)
    return unread if whole is None else whole.isNotNull() | unread


def _unparsed(
    stream: Stream, payload: StructType, folders: Collection[str]
) -> tuple[Column, Column]:
    whole, lost, other = _faults(stream, payload, folders)
    count = F.size(lost)
    field = F.when(count > 0, F.array_join(F.transform(lost, lambda each: each["name"]), ", "))
    kinds = F.concat(
        F.lit("does not parse into "), F.try_element_at(lost, F.lit(1)).getField("kind")
    )
    error = F.when(count == 1, kinds).when(count > 1, "do not parse into their types")
    error = error.otherwise(other)
    if whole is not None:
        field, error = F.when(whole.isNull(), field), F.coalesce(whole, error)
    return field, error


def _faults(
    stream: Stream, payload: StructType, folders: Collection[str]
) -> tuple[Column | None, Column, Column]:
    """What is wrong with a text as a whole, the columns that it lacks, and what else is wrong."""
    source, raw = stream.source, F.col("raw")
    options = source.options_by_name
    names = [name for name in payload.names if name not in folders]
    kind = "select" if source.selection is not None else source.format.lower()
    whole: Column | None = None
    if kind == "csv":
        *texts, rest = raw_text.csv_texts(source, len(names), raw)
        found = dict(zip(names, texts, strict=True))
        whole = F.when(has_odd_quotes(raw, options), "has a quote that does not end on its line")
        whole = whole.when(rest.isNotNull(), "has more fields than the stream has columns")
        other = F.lit("is no line of CSV")
    else:
        members = json_text.json_texts(raw, options if kind == "json" else {})
        found = {name: F.try_element_at(members, F.lit(name)) for name in names}
        other = F.lit("does not parse by source.select")
        if kind == "json":
            # Of a text that is none, nothing is behind a first value.
            whole = F.when(members.isNull(), "is no JSON object")
            rest = json_text.has_rest(raw, options)
            whole, other = (
                whole.when(rest, "has something behind its first value"),
                F.lit("is no record"),
            )
    return whole, _lost(payload, found), other


def _lost(payload: StructType, texts: Mapping[str, Column]) -> Column:
    """The columns that are null though there is a text of them: ARRAY<STRUCT<name, kind>>."""
    each = [
        F.when(
            F.col("data").getField(name).isNull() & text.isNotNull(),
            F.struct(
                F.lit(name).alias("name"),
                F.lit(payload[name].dataType.simpleString().upper()).alias("kind"),
            ),
        )
        for name, text in texts.items()
    ]
    return F.array_compact(F.array(*each))
