"""Raw text of malformed records, for sources of text.

Spark replaces each field that it cannot parse by null and can add the text of the whole record.
Here that text is a separate column, null for records that parse. Of JSON, Spark does not look at
what follows a value; so JSON is read as text, and parsed here.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Text:
    """A source of text."""

    source: Source
    columns: StructType
    parsed: tuple[str, ...]  # without columns from folder names
    keeps: bool  # Capstan keeps malformed text, not the source's options

    @classmethod
    def of(cls, source: Source, listing: SourceListing | None, columns: StructType) -> Text | None:
        """A source of text; None for others."""
        options = source.options_by_name
        has_mode = options.get("mode", "permissive").lower() != "permissive"
        has_column = "columnnameofcorruptrecord" in options or _SPARK_COLUMN in columns.names
        keeps = not has_mode and not has_column
        if source.format.lower() not in FORMATS:
            return None
        folders = [] if listing is None else listing.partition_columns()
        return cls(source, columns, tuple(n for n in columns.names if n not in folders), keeps)

    def rows(self, reader: DataFrameReader | DataStreamReader, *, as_text: bool) -> DataFrame:
        """The records, with `COLUMN` unless the options treat malformed records otherwise.

        With `as_text`, JSON is read as text, and there is `NO_ROW`, too.
        """
        path = self.source.path
        if as_text:
            return self._json(reader, path)
        if not self.keeps:
            return reader.schema(self.columns).load(path)
        schema = StructType([*self.columns.fields, StructField(_SPARK_COLUMN, StringType())])
        frame, raw = reader.schema(schema).load(path), F.col(_SPARK_COLUMN)
        if self.source.format.lower() == "csv":
            raw = F.when(self._lost(raw), raw)
        return frame.withColumn(COLUMN, raw).drop(_SPARK_COLUMN)

    def _json(self, reader: DataFrameReader | DataStreamReader, path: str | None) -> DataFrame:
        options = self.source.options_by_name
        own = options.get("columnnameofcorruptrecord", _SPARK_COLUMN)
        asked = own in self.columns.names
        corrupt = own if asked else COLUMN
        fields = StructType([self.columns[name] for name in self.parsed])
        folders = [f for f in self.columns.fields if f.name not in self.parsed]
        schema = StructType([StructField(json_text.LINE, StringType()), *folders])
        reader = reader.format("text").option("wholetext", json_text.is_whole(options))
        reader = reader.option("encoding", json_text.encoding_of(options))
        if not asked:
            fields = StructType([*fields.fields, StructField(COLUMN, StringType())])
        found = json_text.parsed(reader.schema(schema).load(path), fields, corrupt, options)
        record = F.col(quoted(json_text.LINE))
        raw = record.getField(corrupt)
        columns = [
            (record.getField(name) if name in self.parsed else F.col(quoted(name))).alias(name)
            for name in self.columns.names
        ]
        kept = [raw.alias(COLUMN)] if self.keeps else []
        if options.get("mode", "").upper() == "DROPMALFORMED":
            found = found.where(raw.isNull())
        return found.select(*columns, *kept, record.isNull().alias(NO_ROW))

    def _lost(self, raw: Column) -> Column:
        """Whether a field of a CSV line was not parsed."""
        # Spark also calls a line malformed that ends early. That is normal in a file written before
        # the stream gained a column. With odd quotes it is a part of a record with a line break.
        names = [f"c{place}" for place in range(len(self.parsed) + 1)]
        options = {k: v for k, v in self.source.options.items() if k.lower() not in _FILE_OPTIONS}
        fields = F.from_csv(raw, ", ".join(f"{name} STRING" for name in names), options)
        lost = [
            F.col(quoted(name)).isNull() & fields.getField(place).isNotNull()
            for name, place in zip(self.parsed, names, strict=False)
        ]
        more = fields.getField(names[-1]).isNotNull()
        part = has_odd_quotes(raw, self.source.options_by_name)
        return raw.isNotNull() & reduce(lambda one, other: one | other, [*lost, more, part])
