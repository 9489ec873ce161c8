"""Texts as times: those that are none, and those that become moments of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.capture.classify import event_time
from capstan.spark.clock_literals import clock_literal
from tests.support.sample_streams import little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RECORDS = "(SELECT TIMESTAMP '2024-05-01 00:00:00' AS at, 'a name' AS name)"


@pytest.mark.parametrize(
    ("condition", "moment"),
    [
        ("at > 'today'", "'today'"),
        ("name = 'a' AND at IN (' Yesterday')", "' Yesterday'"),
        ("date_trunc('DAY', \"tomorrow\") = at", '"tomorrow"'),
        ("try_to_timestamp('now') > at", "'now'"),
        ("EXISTS (SELECT 1 FROM records WHERE at > 'today')", "'today'"),
        ("(SELECT max(at) FROM records) > 'now'", "'now'"),
        ("name = 'today' AND at > '2024-05-01'", None),
        ("EXISTS (SELECT 1 FROM records WHERE name IN ('now', 'today'))", None),
        ("at > 'epoch'", None),
    ],
)
def test_a_text_is_a_moment_only_where_it_becomes_a_time(
    spark: SparkSession, condition: str, moment: str | None
) -> None:
    query = f"WITH records AS {RECORDS} SELECT * FROM records WHERE {condition}"
    assert clock_literal(query, spark.sql(query)) == moment


TEXTS = {
    "2024-05-20T10:00:00Z": "2024-05-20T10:00:00Z",
    "2024-05-20T10:00:00.25+02:00": "2024-05-20T08:00:00.25Z",
    # As Java writes a whole minute, and others a whole hour.
    "2024-05-20T10:00Z": "2024-05-20T10:00:00Z",
    "2024-05-20T10:00": "2024-05-20T10:00:00Z",
    " 2024-05-20 10:30 ": "2024-05-20T10:30:00Z",
    "2024-05-20T10:30-05:00": "2024-05-20T15:30:00Z",
    "2024-05-20T10:30 Europe/Berlin": "2024-05-20T08:30:00Z",
    "2024-05-20T10Z": "2024-05-20T10:00:00Z",
    "2024-05-20T10+02:00": "2024-05-20T08:00:00Z",
    "2024-05-20": "2024-05-20T00:00:00Z",
    "2024-05-20T10:00:00+18:00": "2024-05-19T16:00:00Z",
    "2024-05-20T10:00:00+18:01": None,
    "2024-05-20T10:00+25:00": None,
    "10:30": None,
    "now": None,
    "2024-05-20T25:00Z": None,
    "2024-05-20T10:61Z": None,
    "2024-05-20 10:00 AM": None,
    "2024-05-20T10:00:61Z": None,
    "20/05/2024 10:00": None,
    "2024-05-20T10:": None,
}


def test_a_text_is_a_time_as_iso_8601_has_it(spark: SparkSession, tmp_path: Path) -> None:
    stream = little_stream(tmp_path)
    rows = spark.createDataFrame(list(TEXTS.items()), "at: string, right: string")
    read = event_time(stream, rows).alias("read")
    right = rows["right"].cast("timestamp").alias("right")
    wrong = rows.select("at", read, right).where("NOT read <=> right").collect()
    assert wrong == []
