"""Raw text of malformed records, for sources of text.

Spark replaces each field that it cannot parse by null and can add the text of the whole record.
Here that text is a separate column, null for records that parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from capstan.capture.file_listing import Listing
from capstan.capture.line_checks import has_odd_quotes
from capstan.core.config import Source, Stream
from capstan.core.config.names import one_of
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError

COLUMN = "capstan's raw text"
"""The added column; no column of a tape can have this name."""

_SPARK_COLUMN = "_corrupt_record"
FORMATS = ("csv", "json")
"""Spark's text formats."""
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# Options of a file that do not apply to a single line.
_FILE_OPTIONS = frozenset(
    {"header", "enforceschema", "inferschema", "multiline", "linesep", "mode"}
)


def require_mode(stream: Stream) -> None:
    """Check that Spark knows the mode of a source of text; others would pass for `PERMISSIVE`.

    Raises:
        InvalidRequestError: `CAP-SOURCE` for an unknown mode.
    """
    mode = _lower(stream.source.options).get("mode", _MODES[0])
    if stream.source.format.lower() in FORMATS and mode.upper() not in _MODES:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: source.options.mode is {mode!r}, which Spark does not know",
            f"write {one_of(_MODES)}",
            stream=stream.name,
        )


def without_corrupt_record(inferred: StructType, known: StructType | None) -> StructType:
    """The columns that Spark inferred, without the one that it adds for malformed records.

    Args:
        inferred: The inferred columns.
        known: The columns on tape; a column captured under that name stays.

    Raises:
        InvalidRequestError: `CAP-MALFORMED` when there is no other column.
    """
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
    """A source of text.

    Attributes:
        source: The stream's source.
        columns: The columns of its records.
        parsed: The columns parsed from the text, without those from folder names.
    """

    source: Source
    columns: StructType
    parsed: tuple[str, ...]

    @classmethod
    def of(cls, source: Source, listing: Listing | None, columns: StructType) -> Text | None:
        """A source of text; None for other sources, or if options already treat malformed records.

        Args:
            source: The stream's source.
            listing: The files of the source, if they could be listed.
            columns: The columns of its records.
        """
        options = _lower(source.options)
        has_mode = options.get("mode", "permissive").lower() != "permissive"
        has_column = "columnnameofcorruptrecord" in options or _SPARK_COLUMN in columns.names
        if source.format.lower() not in FORMATS or has_mode or has_column:
            return None
        folders = set() if listing is None else listing.partition_columns()
        return cls(source, columns, tuple(n for n in columns.names if n not in folders))

    @property
    def schema(self) -> StructType:
        """The columns to request from Spark."""
        return StructType([*self.columns.fields, StructField(_SPARK_COLUMN, StringType())])

    def with_raw_text(self, frame: DataFrame) -> DataFrame:
        """The records with `COLUMN`: the whole text of each record with an unparsed field.

        Args:
            frame: The rows that Spark read with `schema`.
        """
        raw = F.col(_SPARK_COLUMN)
        if self.source.format.lower() == "csv":
            raw = F.when(self._lost(raw), raw)
        return frame.withColumn(COLUMN, raw).drop(_SPARK_COLUMN)

    def _lost(self, raw: Column) -> Column:
        """Whether a field of a CSV line was not parsed.

        Spark also calls a line malformed that ends early. That is normal in a file written before
        the stream gained a column. With odd quotes it is a part of a record with a line break.
        """
        names = [f"c{place}" for place in range(len(self.parsed) + 1)]
        options = {k: v for k, v in self.source.options.items() if k.lower() not in _FILE_OPTIONS}
        fields = F.from_csv(raw, ", ".join(f"{name} STRING" for name in names), options)
        lost = [
            F.col(quoted(name)).isNull() & fields.getField(place).isNotNull()
            for name, place in zip(self.parsed, names, strict=False)
        ]
        more = fields.getField(names[-1]).isNotNull()
        part = has_odd_quotes(raw, _lower(self.source.options))
        return raw.isNotNull() & reduce(lambda one, other: one | other, [*lost, more, part])


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
