"""The text of records that do not parse: kept with them, where the source is text.

Spark makes a null of each field that it cannot read, and goes on. Beside them it can say what the
whole record was; here that is a column of its own, null where the record has parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from capstan.capture.file_listing import Listing
from capstan.core.config import Source
from capstan.errors import InvalidRequestError
from capstan.storage.tape.region_sql import quoted

COLUMN = "capstan's raw text"
"""The column beside those of the source; of a name that no column of a tape can have."""

_SPARKS = "_corrupt_record"
FORMATS = ("csv", "json")
"""Formats of Spark's that are text."""
# Options of a file, which one line of it does not have.
_OF_FILES = frozenset({"header", "enforceschema", "inferschema", "multiline", "linesep", "mode"})


def of_others(inferred: StructType, known: StructType | None) -> StructType:
    """Columns that Spark has found in files, without the one that it adds where some do not parse.

    Args:
        inferred: What Spark has found.
        known: The columns on tape: one that has been captured as a column stays one.

    Raises:
        InvalidRequestError: `CAP-MALFORMED` when there is no other column.
    """
    if known is not None and _SPARKS in known.names:
        return inferred
    rest = StructType([field for field in inferred.fields if field.name != _SPARKS])
    if inferred.fields and not rest.fields:
        raise InvalidRequestError(
            "CAP-MALFORMED",
            "no record of the source's files parses, so that it has no columns",
            "see whether source.format is theirs; or give source.schema in streams.yaml",
        )
    return rest


@dataclass(frozen=True, slots=True)
class Text:
    """A source of text.

    Attributes:
        source: The declaration.
        columns: The columns of its records.
        inside: Those that are in the text: not what the names of folders say.
    """

    source: Source
    columns: StructType
    inside: tuple[str, ...]

    @classmethod
    def of(cls, source: Source, listing: Listing | None, columns: StructType) -> Text | None:
        """The source as one of text; None where it is none, or says itself what becomes of such.

        Args:
            source: The declaration.
            listing: The files of the source, where they could be listed.
            columns: The columns of its records.
        """
        options = _lower(source.options)
        asked = options.get("mode", "permissive").lower() != "permissive"
        told = "columnnameofcorruptrecord" in options or _SPARKS in columns.names
        if source.format.lower() not in FORMATS or asked or told:
            return None
        folders = set() if listing is None else listing.folders_named()
        return cls(source, columns, tuple(n for n in columns.names if n not in folders))

    @property
    def schema(self) -> StructType:
        """The columns that Spark is asked for."""
        return StructType([*self.columns.fields, StructField(_SPARKS, StringType())])

    def told(self, frame: DataFrame) -> DataFrame:
        """The records with `COLUMN`: the whole text of one of which something was not read.

        Args:
            frame: What Spark has read by `schema`.
        """
        raw = F.col(_SPARKS)
        if self.source.format.lower() == "csv":
            raw = F.when(self._lost(raw), raw)
        return frame.withColumn(COLUMN, raw).drop(_SPARKS)

    def _lost(self, raw: Column) -> Column:
        """Whether a field of a line of CSV was not read.

        Spark calls a line malformed too if it ends early, as those of a file do that was written
        before the others gained a column.
        """
        names = [f"c{place}" for place in range(len(self.inside) + 1)]
        options = {k: v for k, v in self.source.options.items() if k.lower() not in _OF_FILES}
        fields = F.from_csv(raw, ", ".join(f"{name} STRING" for name in names), options)
        lost = [
            F.col(quoted(name)).isNull() & fields.getField(place).isNotNull()
            for name, place in zip(self.inside, names, strict=False)
        ]
        more = fields.getField(names[-1]).isNotNull()
        return raw.isNotNull() & reduce(lambda one, other: one | other, [*lost, more])


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
