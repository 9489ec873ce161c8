"""Raw text of malformed records, for sources of text.

Spark replaces each field that it cannot parse by null and can add the text of the whole record.
Here that text is a separate column, null for records that parse. Of JSON, Spark does not look at
what follows a value; so JSON is read as text, and parsed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from capstan.capture.source.files.listing import SourceListing
from capstan.capture.source.text import json_text
from capstan.capture.source.text.line_checks import has_odd_quotes
from capstan.core.config import Source, Stream
from capstan.core.config.names import one_of
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

COLUMN = "capstan's raw text"
"""The added column; no column of a tape can have this name."""

NO_ROW = "capstan's no row"
"""A further column: whether a text, or a generator over a record, makes no row at all."""

_SPARK_COLUMN = "_corrupt_record"
FORMATS = ("csv", "json")
"""Spark's text formats."""
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# Options of a file that do not apply to a single line.
_FILE_OPTIONS = frozenset(
    {"header", "enforceschema", "inferschema", "multiline", "linesep", "mode"}
)


def require_options(stream: Stream) -> None:
    """Check mode and encoding of a source of text: another mode would pass for `PERMISSIVE`."""
    options = stream.source.options_by_name
    mode, encoding = options.get("mode", _MODES[0]), json_text.encoding_of(options)
    if stream.source.format.lower() == "json" and encoding not in json_text.ENCODINGS:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: source.options.encoding is {encoding!r}, which is not known "
            "for JSON",
            f"write {one_of(json_text.ENCODINGS)}, or convert the files",
            stream=stream.name,
        )
    if stream.source.format.lower() in FORMATS and mode.upper() not in _MODES:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: source.options.mode is {mode!r}, which Spark does not know",
            f"write {one_of(_MODES)}",
            stream=stream.name,
        )


def without_corrupt_record(inferred: StructType, known: StructType | None) -> StructType:
    """The columns that Spark inferred, without the one that it adds for malformed records."""
    # A column captured under that name, so one of those on tape (`known`), stays.
    if known is not None and _SPARK_COLUMN in known.names:
        return inferred
    rest = StructType([field for field in inferred.fields if field.name != _SPARK_COLUMN])
    if inferred.fields and not rest.fields:
        raise InvalidRequestError(
            "CAP-MALFORMED",
            "no record of the source's files parses, so the source has no columns",
            "check source.format, or set source.schema in streams.yaml",
        )
    return rest


def load(
    reader: DataFrameReader | DataStreamReader,
    source: Source,
    listing: SourceListing | None,
    columns: StructType,
    *,
    as_text: bool,
) -> DataFrame:
    """The rows of a path with these columns; those of text have `COLUMN`, too.

    They have not if the options treat malformed records otherwise. With `as_text`, JSON is read as
    text, and there is `NO_ROW`.
    """
    if source.format.lower() not in FORMATS:
        return reader.schema(columns).load(source.path)
    options = source.options_by_name
    has_mode = options.get("mode", "permissive").lower() != "permissive"
    has_column = "columnnameofcorruptrecord" in options or _SPARK_COLUMN in columns.names
    keeps = not has_mode and not has_column
    folders = [] if listing is None else listing.partition_columns()
    parsed = [name for name in columns.names if name not in folders]
    if as_text:
        return _json(reader, source, columns, parsed, keeps=keeps)
    if not keeps:
        return reader.schema(columns).load(source.path)
    schema = StructType([*columns.fields, StructField(_SPARK_COLUMN, StringType())])
    frame, raw = reader.schema(schema).load(source.path), F.col(_SPARK_COLUMN)
    if source.format.lower() == "csv":
        raw = F.when(_lost(source, parsed, raw), raw)
    return frame.withColumn(COLUMN, raw).drop(_SPARK_COLUMN)


def _json(
    reader: DataFrameReader | DataStreamReader,
    source: Source,
    columns: StructType,
    names: Sequence[str],
    *,
    keeps: bool,
) -> DataFrame:
    """Texts of JSON as records; `names` are the columns in them, the others those of folders."""
    options = source.options_by_name
    own = options.get("columnnameofcorruptrecord", _SPARK_COLUMN)
    asked = own in columns.names
    corrupt = own if asked else COLUMN
    fields = StructType([columns[name] for name in names])
    folders = [f for f in columns.fields if f.name not in names]
    schema = StructType([StructField(json_text.LINE, StringType()), *folders])
    reader = reader.format("text").option("wholetext", json_text.is_whole(options))
    reader = reader.option("encoding", json_text.encoding_of(options))
    if not asked:
        fields = StructType([*fields.fields, StructField(COLUMN, StringType())])
    found = json_text.parsed(reader.schema(schema).load(source.path), fields, corrupt, options)
    record = F.col(quoted(json_text.LINE))
    raw = record.getField(corrupt)
    values = [
        (record.getField(name) if name in names else F.col(quoted(name))).alias(name)
        for name in columns.names
    ]
    kept = [raw.alias(COLUMN)] if keeps else []
    if options.get("mode", "").upper() == "DROPMALFORMED":
        found = found.where(raw.isNull())
    return found.select(*values, *kept, record.isNull().alias(NO_ROW))


def csv_texts(source: Source, count: int, raw: Column) -> list[Column]:
    """The texts of the first fields of a CSV line, and that of a further one."""
    names = [f"c{place}" for place in range(count + 1)]
    options = {k: v for k, v in source.options.items() if k.lower() not in _FILE_OPTIONS}
    fields = F.from_csv(raw, ", ".join(f"{name} STRING" for name in names), options)
    return [fields.getField(name) for name in names]


def _lost(source: Source, parsed: Sequence[str], raw: Column) -> Column:
    """Whether a field of a CSV line was not parsed."""
    # Spark also calls a line malformed that ends early. That is normal in a file written before
    # the stream gained a column. With odd quotes it is a part of a record with a line break.
    *texts, rest = csv_texts(source, len(parsed), raw)
    lost = [
        F.col(quoted(name)).isNull() & text.isNotNull()
        for name, text in zip(parsed, texts, strict=True)
    ]
    more = rest.isNotNull()
    part = has_odd_quotes(raw, source.options_by_name)
    return raw.isNotNull() & reduce(lambda one, other: one | other, [*lost, more, part])
