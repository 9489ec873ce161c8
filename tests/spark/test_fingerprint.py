"""Content hashes: golden values, and the laws that make them worth comparing."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import CalendarIntervalType, StructField, StructType

from capstan.errors import InvalidRequestError
from capstan.pipeline.state.key_hash import key_hashes
from capstan.storage.tape.fingerprint import fingerprint, row_hashes, sum_mod64
from tests.reference.key_placement import Modulo, Rendezvous
from tests.support.golden_hashes import GOLDEN, Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

few = settings(max_examples=8)
WORKERS = (0, 1, 2, 5)


def hashes(frame: DataFrame) -> list[Pair]:
    h1, h2 = row_hashes(frame.schema.fields)
    return [tuple(row) for row in frame.select(h1, h2).collect()]


def of(spark: SparkSession, *rows: str) -> list[Pair]:
    """Hashes of rows given as lists of SQL values."""
    return hashes(spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows)))


def one(spark: SparkSession, row: str) -> Pair:
    return of(spark, row)[0]


def whole(frame: DataFrame) -> Pair:
    h1, h2 = row_hashes(frame.schema.fields)
    actual = frame.select(h1.alias("a"), h2.alias("b")).agg(
        fingerprint(F.col("a"), F.col("b")).alias("f")
    )
    return tuple(actual.first()["f"])


@pytest.mark.parametrize("row", GOLDEN)
def test_golden(spark: SparkSession, row: str) -> None:
    assert one(spark, row) == GOLDEN[row]


KEYS = (
    "CAST(id % 7 - 3 AS INT)", "id * 7919 - 9000", "concat('k', id)", "id % 2 = 0",
    "CAST(concat('b', id) AS BINARY)", "date_add(DATE '1969-12-01', CAST(id AS INT))",
    "timestamp_micros(id * 1000003 - 500000)", "CAST(id AS DECIMAL(20, 3)) / 8",
    "IF(id % 3 = 0, NULL, id)",
)  # fmt: skip


def test_owners_are_the_same_in_sql_and_in_python(spark: SparkSession) -> None:
    frame = spark.range(400).selectExpr("id", *[f"{k} AS k{n}" for n, k in enumerate(KEYS)])
    every = [(field.name,) for field in frame.schema.fields[1:]]
    keys = [*every, ("k8", "k2"), ("k0", "k3", "k6", "k7")]
    placed = []
    for number, names in enumerate(keys):
        h = row_hashes([frame.schema[name] for name in names])[0]
        hashed = frame.select(F.lit(number).alias("number"), "id", h.alias("h"))
        hashed = hashed.withColumn("ws", F.array(*map(F.lit, WORKERS)))
        placed.append(hashed.selectExpr("*", f"{Modulo.sql} AS m", f"{Rendezvous.sql} AS r"))
    actual = (
        reduce(DataFrame.unionAll, placed)
        .toArrow()
        .sort_by([("number", "ascending"), ("id", "ascending")])
    )
    rows = frame.toArrow().sort_by("id")
    for number, names in enumerate(keys):
        mine = actual.filter(pc.equal(actual["number"], number))
        hashed = key_hashes([rows[name].combine_chunks() for name in names])
        assert mine["h"].to_pylist() == hashed.to_pylist(), names
        for column, placement in (("m", Modulo()), ("r", Rendezvous())):
            owners = placement.owners(hashed, WORKERS).to_pylist()
            assert mine[column].to_pylist() == owners, (names, placement)
    assert set(actual["r"].to_pylist()) == set(actual["m"].to_pylist()) == set(WORKERS)


@pytest.mark.parametrize(
    ("one_row", "other_row"),
    [
        ("CAST(NULL AS INT), 1", "1, CAST(NULL AS INT)"),
        ("array(NULL, 1)", "array(1, NULL)"),
        ("array(1, 2)", "array(2, 1)"),
        ("array(CAST(NULL AS INT))", "CAST(array() AS ARRAY<INT>)"),
        ("CAST(NULL AS ARRAY<INT>)", "CAST(array() AS ARRAY<INT>)"),
        ("array(array(1), array(2, 3))", "array(array(1, 2), array(3))"),
        ("map('a', 1, 'b', NULL)", "map('a', NULL, 'b', 1)"),
        ("map('a', CAST(NULL AS INT))", "CAST(map() AS MAP<STRING, INT>)"),
        ("CAST(NULL AS STRUCT<x: INT>)", "named_struct('x', CAST(NULL AS INT))"),
        ("named_struct('x', NULL, 'y', 1)", "named_struct('x', 1, 'y', NULL)"),
        # An inner field's place must not be taken for that of the next outer field.
        (
            "named_struct('a', named_struct('x', INT(NULL), 'y', 5), 'b', INT(NULL))",
            "named_struct('a', named_struct('x', INT(NULL), 'y', INT(NULL)), 'b', 5)",
        ),
        (
            "named_struct('x', CAST(NULL AS INT), 'y', 5), CAST(NULL AS INT)",
            "named_struct('x', CAST(NULL AS INT), 'y', CAST(NULL AS INT)), 5",
        ),
        ("'a', 'bc'", "'ab', 'c'"),
        ("''", "CAST(NULL AS STRING)"),
        ("0.0D", "CAST(NULL AS DOUBLE)"),
        ("CAST(1.5 AS DECIMAL(30, 10))", "CAST(15 AS DECIMAL(30, 10))"),
        ("TIMESTAMP '2013-03-01 00:00:00.000001Z'", "TIMESTAMP '2013-03-01 00:00:00.000002Z'"),
    ],
)
def test_different_rows_differ(spark: SparkSession, one_row: str, other_row: str) -> None:
    first, second = of(spark, one_row, other_row)
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("one_row", "other_row"),
    [
        ("CAST(7 AS TINYINT)", "CAST(7 AS BIGINT)"),
        ("CAST(7 AS SMALLINT)", "7"),
        ("CAST(0.5 AS FLOAT)", "0.5D"),
        ("-0.0D", "0.0D"),
        ("CAST('-0.0' AS FLOAT)", "CAST(0 AS FLOAT)"),
        ("CAST('NaN' AS DOUBLE)", "CAST('NaN' AS FLOAT)"),
        ("array(-0.0D)", "array(0.0D)"),
        ("CAST(12.50 AS DECIMAL(10, 2))", "CAST(12.50 AS DECIMAL(38, 2))"),
        ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
        ("array(1, NULL)", "array(1L, NULL)"),
        ("TIMESTAMP '2013-03-01 00:00:00Z'", "TIMESTAMP '2013-03-01 05:00:00+05:00'"),
        ("1, 'x'", "1, 'x', CAST(NULL AS STRING), CAST(NULL AS MAP<STRING, INT>)"),
        ("CAST(NULL AS INT)", "CAST(NULL AS STRING)"),
    ],
)
def test_equal_values_are_equal(spark: SparkSession, one_row: str, other_row: str) -> None:
    assert one(spark, one_row) == one(spark, other_row)


@pytest.mark.parametrize(
    ("key", "value"),
    [("spark.sql.session.timeZone", "America/New_York"), ("spark.sql.ansi.enabled", "false")],
)
def test_settings_of_the_session_change_nothing(spark: SparkSession, key: str, value: str) -> None:
    row = (
        "TIMESTAMP '2013-03-10 02:30:00Z', TIMESTAMP_NTZ '2013-03-10 02:30:00', "
        "DATE '2013-03-10', CAST(0 AS DECIMAL(30, 10)), CAST(1E-9 AS DECIMAL(12, 10)), 1.5D"
    )
    before, kept = one(spark, row), spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        assert one(spark, row) == before
    finally:
        spark.conf.set(key, kept)


def test_local_timestamps_hash_as_their_microseconds(spark: SparkSession) -> None:
    text = "2013-03-01 06:30:00.000001"
    assert one(spark, f"TIMESTAMP_NTZ '{text}'") == one(spark, f"TIMESTAMP '{text}Z'")


def test_hashes_in_a_struct_equal_those_of_columns(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS `a``b`, 'x' AS `c.d`, CAST(NULL AS INT) AS `e f`, 2 AS `g'h`")
    nested = frame.select(F.struct("*").alias("data"))
    inside = row_hashes(frame.schema.fields, F.col("data"))
    assert [tuple(row) for row in nested.select(*inside).collect()] == hashes(frame)


def test_a_type_without_a_hash_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        row_hashes([StructField("wait", StructType([StructField("x", CalendarIntervalType())]))])
    assert caught.value.code == "CAP-TYPE"
    assert caught.value.fields["column"] == "wait"
    assert "interval" in caught.value.message


def test_order_and_files_change_nothing(spark: SparkSession) -> None:
    frame = spark.range(500).selectExpr("id % 40 AS a", "IF(id % 3 = 0, NULL, id) AS b")
    assert whole(frame) == whole(frame.orderBy(F.desc("b")).repartition(7))
    assert whole(frame) != whole(frame.where("a <> 0 OR b <> 40"))


def test_a_doubled_row_shows(spark: SparkSession) -> None:
    frame = spark.range(3)
    assert whole(frame.unionAll(frame)) != whole(frame)
    assert whole(frame.unionAll(frame).unionAll(frame)) != whole(frame)


def test_no_rows_have_no_fingerprint(spark: SparkSession) -> None:
    assert whole(spark.range(0)) == (None, None)


@few
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), min_size=1, max_size=8))
def test_sums_are_modulo_two_to_the_64(spark: SparkSession, groups: list[list[int]]) -> None:
    rows = [(i, value) for i, group in enumerate(groups) for value in group]
    actual = (
        spark.createDataFrame(rows, "g INT, v BIGINT")
        .groupBy("g")
        .agg(sum_mod64(F.col("v")).alias("s"))
        .collect()
    )
    assert {row["g"]: row["s"] for row in actual} == {
        i: _signed(sum(group)) for i, group in enumerate(groups)
    }


@few
@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.data())
def test_fingerprints_of_parts_add_up(
    spark: SparkSession, values: list[int], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(values) - 1))
    whole_of = [
        whole(spark.createDataFrame([(v,) for v in part], "v INT"))
        for part in (values, values[:at], values[at:])
    ]
    total, first, second = whole_of
    assert total == tuple(_signed(a + b) for a, b in zip(first, second, strict=True))


_SMALL = st.none() | st.integers(0, 2)
_NESTED = st.tuples(
    _SMALL,
    st.none() | st.lists(_SMALL, max_size=2),
    st.none() | st.tuples(_SMALL, st.none() | st.tuples(_SMALL, _SMALL), _SMALL),
    st.none() | st.lists(st.none() | st.tuples(_SMALL, _SMALL), max_size=2),
    st.none() | st.dictionaries(st.sampled_from("ab"), _SMALL, max_size=2),
    _SMALL,
)
_NESTED_DDL = (
    "a INT, b ARRAY<INT>, c STRUCT<x: INT, y: STRUCT<p: INT, q: INT>, z: INT>, "
    "d ARRAY<STRUCT<p: INT, q: INT>>, e MAP<STRING, INT>, f INT"
)


@few
@given(st.lists(_NESTED, min_size=30, max_size=120))
def test_rows_are_equal_exactly_when_their_hashes_are(
    spark: SparkSession, rows: list[tuple[object, ...]]
) -> None:
    frame = spark.createDataFrame(rows, _NESTED_DDL)
    actual = hashes(frame)
    distinct = len({repr(_plain(row)) for row in rows})
    assert len({h1 for h1, _ in actual}) == distinct
    assert len({h2 for _, h2 in actual}) == distinct


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return sorted(value.items())
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
