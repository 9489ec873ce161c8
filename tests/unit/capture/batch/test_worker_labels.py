"""Allowed names of source columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from capstan.capture.batch.worker_labels import require_names
from capstan.core.config import ByKey, EpochTime, Source, Stream
from capstan.errors import InvalidRequestError

STREAM = Stream(
    name="orders",
    source=Source(format="parquet", path="/src"),
    workers=ByKey(("id",), 1),
    time=EpochTime(),
)


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    "name", ["id", "Id", "a.b", "a`b", "a-b", "ä", "1", "select", "worker", "_id", "a/b", "'", '"']
)
def test_names_that_delta_allows_are_accepted(name: str) -> None:
    require_names(STREAM, columns(**{name: StringType()}))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["Order Total (EUR)"],
            "'Order Total (EUR)': a Delta table allows no name that is empty or has a blank",
        ),
        (["id", "a,b"], "'a,b'"),
        (["a\tb"], r"'a\tb'"),
        (["a=b"], "'a=b'"),
        (["a;b"], "'a;b'"),
        (["{a}"], "'{a}'"),
        ([""], "''"),
        (["id", "_WORKER"], "'_WORKER': Capstan uses that name itself"),
        (["_Time"], "'_Time': Capstan uses that name itself"),
        (["id", "amount", "ID"], "'ID': Spark treats it as the same name as id"),
    ],
)
def test_other_names_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        require_names(STREAM, columns(**dict.fromkeys(names, StringType())))
    assert caught.value.code == "CAP-COLUMN"
    assert said in caught.value.message
    assert caught.value.fields["column"] in names


@pytest.mark.parametrize(
    "kind",
    [
        StructType([StructField("a b", IntegerType())]),
        ArrayType(StructType([StructField("a b", IntegerType())])),
        MapType(StringType(), StructType([StructField("a b", IntegerType())])),
    ],
)
def test_nested_fields_are_checked(kind: DataType) -> None:
    with pytest.raises(InvalidRequestError, match=r"column 'place\.a b'"):
        require_names(STREAM, columns(place=kind))
