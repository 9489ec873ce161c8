"""Labels of workers by the values of a column: no two values are one, and none is lost."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, _parse_datatype_string

from capstan.capture.batch.worker_labels import label_of
from capstan.capture.run import capture
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.sample_streams import START, little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WORDS = ["null", "", " ", "a", "A", "a ", " a", "é", "e\u0301", "a\nb", "a\0b", "x'ff'", "\ufffd"]
VALUES: dict[str, list[Any]] = {
    "string": WORDS,
    "string COLLATE UTF8_LCASE": WORDS,
    "binary": [*map(str.encode, WORDS), b"\xff", b"\xfe", b"\xff\xfe", b"x'fe'", b"a\xff"],
    "boolean": [True, False],
    "tinyint": [-1, 0, 1],
    "bigint": [-(2**63), -1, 0, 1, 2**63 - 1],
    "float": [1.0, 1.5, 1e30, -0.0, 0.0, math.inf, -math.inf, math.nan, 16777216.0],
    "double": [1.0, 0.1, 0.1 + 0.2, 0.3, 1e300, 1e-300, -0.0, 0.0, math.inf, -math.inf, math.nan],
    "decimal(38,2)": [Decimal("1.00"), Decimal("1.01"), Decimal("-0.01"), Decimal(10) ** 30],
    "decimal(20,20)": [Decimal("1E-20"), Decimal("1E-19")],
    "date": [date(1, 1, 1), date(2024, 5, 1), date(9999, 12, 31)],
    "timestamp": [START, START + timedelta(microseconds=1), datetime(1, 1, 2, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2024, 3, 31, 2, 30), datetime(2024, 3, 31, 3, 30)],  # noqa: DTZ001
    "interval day to second": [timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)],
}
LABELS = {
    "double": ["1.0", "-0.0", "NaN", "Infinity"],
    "boolean": ["true"],
    "decimal(38,2)": ["1.00"],
    "binary": ["a", "null", "x'ff'", "x'7827666527'"],
    "string": ["null", "", "a "],
}
"""Some labels as tapes have them."""


@pytest.mark.parametrize("kind", VALUES)
def test_labels_are_distinct_and_round_trip(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    values = VALUES[kind]
    schema = _parse_datatype_string(f"w {kind}")
    assert isinstance(schema, StructType)
    rows = spark.createDataFrame([(value,) for value in [*values, None]], schema)
    labelled = rows.select(label_of(little_stream(tmp_path), schema["w"]).alias("label"))
    labels = [row["label"] for row in labelled.where("label IS NOT NULL").distinct().collect()]
    assert len(labels) == len(values)
    assert set(LABELS.get(kind, ())) <= set(labels)
    roster = spark.createDataFrame(pa.table({"label": labels, "number": range(len(labels))}))
    lost = labelled.join(F.broadcast(roster), "label", "left").where("number IS NULL")
    assert [row["label"] for row in lost.collect()] == [None]


@pytest.mark.parametrize(
    "kind", ["array<string>", "map<string,int>", "struct<a:int>", "void", "variant"]
)
def test_a_type_without_labels_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    [field] = spark.sql(f"SELECT CAST(NULL AS {kind}) AS w").schema
    with pytest.raises(InvalidRequestError, match="CAP-WORKERS: .* column w, which is"):
        label_of(little_stream(tmp_path), field)


def test_bytes_that_are_no_text_are_workers_and_nothing_is_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    places = [b"a", b"\xff", b"\xfe"]
    table = pa.table(
        {
            "id": pa.array(range(3), pa.int64()),
            "place": pa.array(places, pa.binary()),
            "at": pa.array([START] * 3, pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, folder / "0.parquet")
    stream = little_stream(folder)
    source = replace(stream.source, schema="id BIGINT, place BINARY, at TIMESTAMP")
    lake = Lake.at(tmp_path / "lake")
    done = capture(spark, lake, replace(stream, source=source))
    assert (done.records, dict(done.late)) == (3, {})
    tape = open_tape(lake, stream.name)
    assert set(index.worker_labels(tape, newest_cut(tape)).values()) == {"a", "x'ff'", "x'fe'"}
