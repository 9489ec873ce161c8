"""Labels of workers by the values of a column: different values have different labels."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from capstan.core.config import Stream
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError

_BYTES = "x'"
"""How a label of bytes begins that are no text."""

_LABELLED = (
    T.StringType, T.BinaryType, T.NumericType, T.BooleanType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.DayTimeIntervalType, T.YearMonthIntervalType,
)  # fmt: skip
"""Types of which Spark writes different values as different texts; bytes are seen to here."""


def label_of(stream: Stream, field: T.StructField) -> Column:
    """The label of a value, as STRING; null for null, which names no worker.

    Bytes that are no UTF-8 could not be read back, and all of them would be one label: they are
    written in hexadecimal, and so is text that looks like that.
    """
    kind = field.dataType
    if not isinstance(kind, _LABELLED):
        raise InvalidRequestError(
            "CAP-WORKERS",
            f"stream {stream.name}: workers are taken from column {field.name}, which is "
            f"{kind.simpleString()}: different values of it can be the same text",
            "make a column of text or numbers of it with source.select, and take that",
            stream=stream.name,
        )
    column = F.col(quoted(field.name))
    label = column.cast("string")
    if not isinstance(kind, T.StringType | T.BinaryType):
        return label
    plain = F.is_valid_utf8(label) & ~F.startswith(label, F.lit(_BYTES))
    written = F.concat(F.lit(_BYTES), F.lower(F.hex(column.cast("binary"))), F.lit("'"))
    return F.when(plain, label).when(label.isNotNull(), written)
