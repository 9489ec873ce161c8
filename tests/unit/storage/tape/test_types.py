"""Types that a tape and a target take: asked by one function, before anything is made."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from capstan.errors import InvalidRequestError
from capstan.storage.tape.fingerprint import require_types

TAKEN = [
    T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
    T.DoubleType(), T.DecimalType(38, 38), T.StringType(), T.BinaryType(), T.DateType(),
    T.TimestampType(), T.TimestampNTZType(),
]  # fmt: skip


class Point(T.UserDefinedType):
    """A type of a user."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.StringType()


REFUSED = [
    T.NullType(), T.VariantType(), T.DayTimeIntervalType(), T.YearMonthIntervalType(),
    T.CalendarIntervalType(), T.TimeType(), T.StringType("UTF8_LCASE"), T.StringType("UNICODE_CI"),
    T.CharType(3), T.VarcharType(3), T.GeometryType(4326), T.GeographyType(4326), Point(),
]  # fmt: skip


def inside(kind: T.DataType) -> list[T.DataType]:
    """A type alone, and at each place in others."""
    struct = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", kind)])
    return [
        kind,
        T.ArrayType(kind),
        struct,
        T.MapType(kind, T.LongType()),
        T.MapType(T.LongType(), kind),
        T.ArrayType(T.MapType(T.LongType(), struct)),
    ]


@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: kind.simpleString())
def test_these_are_taken_wherever_they_are(kind: T.DataType) -> None:
    for whole in inside(kind):
        require_types([T.StructField("v", whole)])


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_these_are_refused_wherever_they_are(kind: T.DataType) -> None:
    for whole in inside(kind):
        with pytest.raises(InvalidRequestError, match="CAP-TYPE: column v has type") as caught:
            require_types([T.StructField("u", T.LongType()), T.StructField("v", whole)])
        assert kind.simpleString() in caught.value.message
