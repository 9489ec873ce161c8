"""Content hashes of records: equal for equal multisets, whatever the order or the files.

Per row, two `xxhash64` with different seeds run over the fields in declared order. A field that is
not null gives its ordinal and its canonical value; a null field gives nothing. So `(null, 1)` and
`(1, null)` differ, which Spark's hash alone would call equal, and a column added later, null in
all old rows, leaves their hashes as they were. Inside a struct, an array or a map every value is
preceded by a flag, 1 or 0 for null: an ordinal left out there could be taken for the next outer
field's, and an array's elements have none. Rows are summed modulo 2^64, never xor-ed: a row
stored twice must show.

No session setting (time zone, ANSI mode) changes a hash.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError
from capstan.storage.tape.schema import payload_of

_INTEGERS = (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_OTHERS = (
    T.FloatType, T.DoubleType, T.TimestampType, T.TimestampNTZType, T.DateType, T.DecimalType,
    T.BinaryType,
)  # fmt: skip
_SEEDS = (1, 2)
_HALF = 0xFFFFFFFF


def require_types(fields: Iterable[T.StructField]) -> None:
    """Check that Delta stores columns of these types, that they have a hash, and writers take them.

    Asked of a stream before its tape is made, and of the output of a replay before its target is.
    """
    for field in fields:
        refused = _refused(field.dataType)
        if refused is not None:
            inside = "" if refused is field.dataType else f" with {refused.simpleString()} in it"
            raise InvalidRequestError(
                "CAP-TYPE",
                f"column {field.name} has type {field.dataType.simpleString()}{inside}, which "
                "has no content hash or cannot be stored",
                "cast it in the source, or leave it out",
                column=field.name,
            )


def _refused(kind: T.DataType) -> T.DataType | None:
    """The first type in a type that is not taken; None when all are."""
    if isinstance(kind, T.StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, T.MapType):
        inner = [kind.keyType, kind.valueType]
    else:
        taken = isinstance(kind, _INTEGERS + _OTHERS) or kind == T.StringType()
        return None if taken else kind
    return next((found for each in inner if (found := _refused(each)) is not None), None)


def row_hashes(fields: Iterable[T.StructField], at: Column | None = None) -> tuple[Column, Column]:
    """Two BIGINT hash columns of fields in declared order, of the frame or of the struct `at`."""
    fields = list(fields)
    require_types(fields)
    parts: list[Column] = []
    for ordinal, field in enumerate(fields):
        value = F.col(quoted(field.name)) if at is None else at.getField(field.name)
        parts.append(F.when(value.isNotNull(), F.lit(ordinal)))
        parts.append(_canonical(value, field.dataType))
    first, second = (F.xxhash64(F.lit(seed), *parts) for seed in _SEEDS)
    return first, second


def record_hashes(records: DataFrame) -> tuple[Column, Column]:
    """Two BIGINT hash columns of the rows of a table that has the stream's columns as `data`."""
    return row_hashes(payload_of(records.schema).fields, F.col("data"))


def sum_mod64(value: Column) -> Column:
    """The sum of a BIGINT column modulo 2^64, as a BIGINT; NULL for no rows."""
    # Summed in two 32-bit halves, each of which stays within a BIGINT for 2^31 rows.
    low = F.sum(value.bitwiseAND(F.lit(_HALF)))
    high = F.sum(F.shiftrightunsigned(value, 32))
    carried = high + F.shiftrightunsigned(low, 32)
    return F.shiftleft(carried, 32).bitwiseOR(low.bitwiseAND(F.lit(_HALF)))


def fingerprint(h1: Column, h2: Column) -> Column:
    """The aggregate STRUCT<h1 BIGINT, h2 BIGINT> over rows with these two hashes."""
    return F.struct(sum_mod64(h1).alias("h1"), sum_mod64(h2).alias("h2"))


def _flagged(value: Column, kind: T.DataType) -> list[Column]:
    """A value inside another one, with the flag that is there also where it is null."""
    return [F.when(value.isNull(), F.lit(0)).otherwise(F.lit(1)), _canonical(value, kind)]


def _canonical(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, _INTEGERS):
        return value.cast("bigint")
    if isinstance(kind, T.FloatType | T.DoubleType):
        # xxhash64 takes -0.0 as 0.0 and every NaN as one; golden values in the tests hold it there.
        return value.cast("double")
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(value)
    if isinstance(kind, T.TimestampNTZType):
        # Hashed as its microseconds; a cast to TIMESTAMP would go by the session's time zone.
        return value - F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    if isinstance(kind, T.DateType):
        return F.unix_date(value).cast("bigint")
    if isinstance(kind, T.DecimalType):
        # At one precision: Spark hashes up to 18 digits as a long, more as bytes.
        return value.cast(T.DecimalType(38, kind.scale))
    if isinstance(kind, T.StringType | T.BinaryType):
        return value
    return _canonical_nested(value, kind)


def _canonical_nested(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.StructType):
        parts = [
            part.alias(f"p{index}")
            for index, part in enumerate(
                part
                for field in kind.fields
                for part in _flagged(value.getField(field.name), field.dataType)
            )
        ]
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        items = F.transform(value, lambda item: F.struct(*_flagged(item, element)))
        return F.when(value.isNotNull(), F.struct(F.size(value), items))
    assert isinstance(kind, T.MapType), kind
    keys, values = kind.keyType, kind.valueType
    items = F.transform(
        F.array_sort(F.map_keys(value)),
        lambda key: F.struct(_canonical(key, keys), *_flagged(value[key], values)),
    )
    return F.when(value.isNotNull(), F.struct(F.size(value), items))
