"""Texts that become moments of the clock where they meet a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.tape.moments import moment_in

if TYPE_CHECKING:
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
    assert moment_in(query, spark.sql(query)) == moment
