"""Texts as times: those that are none, and those that become moments of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from capstan.capture.batch.classify import event_time
from capstan.core.times.moment_text import moment
from capstan.spark.clock_literals import clock_literal
from tests.support.moment_texts import TEXTS, random_texts
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


def test_a_text_is_a_time_as_iso_8601_has_it(spark: SparkSession, tmp_path: Path) -> None:
    stream = little_stream(tmp_path)
    both = [(text, _moment(text)) for text in [*TEXTS, *random_texts(2013, 3000)]]
    rows = spark.createDataFrame(both, "at: string, right: bigint")
    read = F.unix_micros(event_time(stream, rows)).alias("read")
    wrong = rows.select("at", read, "right").where("NOT read <=> right").collect()
    assert wrong == []


def _moment(text: str) -> int | None:
    try:
        return moment(text)
    except ValueError:
        return None
