"""A stream of one's own, as the pages have it: its declaration, its pipeline, its commands."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import polars as pl
import pytest

import capstan.pipeline
from capstan.cli import main
from capstan.pipeline import Pipelines, registry
from tests.support.docs import PAGES, blocks, commands, page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = datetime(2024, 5, 1, tzinfo=UTC)
# The last one moves the frontier beyond all that is replayed.
ORDERS = [
    (minutes, f"customer {minutes % 7}", minutes % 100)
    for minutes in (*range(0, 40 * 60, 11), 32 * 24 * 60)
]


def given(text: str) -> list[list[str]]:
    """The commands of a page for the stream `orders`, in their order, each as it stands there."""
    actual = [shlex.split(line, comments=True) for line in commands(text)]
    return [
        words
        for words in actual
        if re.match("orders$|hourly", " ".join(words[1:2])) and "--rescale" not in words
    ]


def at(minutes: int) -> datetime:
    return FIRST + timedelta(minutes=minutes)


@pytest.mark.slow
def test_it_is_captured_verified_and_replayed_as_the_pages_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Pipelines()
    monkeypatch.setattr(registry, "registered", known)
    monkeypatch.setattr(capstan.pipeline, "pipeline", known.pipeline)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("CAPSTAN_CONFIG", str(tmp_path / "streams.yaml"))
    (tmp_path / "shop").mkdir()
    text = "".join(blocks(page("pipelines"), "python"))
    (tmp_path / "shop" / "pipelines.py").write_text(text, encoding="utf-8")
    declared = blocks(page("configuration"), "yaml")[0]
    (reference,) = re.findall(r"`(hourly_revenue: [\w.]+:\w+)`", page("pipelines"))
    place = "/data/shop/orders"
    assert declared.count(place) == 1
    (tmp_path / "streams.yaml").write_text(
        declared.replace(place, str(tmp_path / "orders")) + f"pipelines:\n  {reference}\n",
        encoding="utf-8",
    )
    fed = pl.DataFrame(
        [(customer, at(minutes), amount) for minutes, customer, amount in ORDERS],
        {"customer": pl.String, "ordered_at": pl.Datetime("us", "UTC"), "amount": pl.Int64},
        orient="row",
    )
    deltalake.write_deltalake(tmp_path / "orders", fed)

    own, readme, piped = (
        given(text) for text in (page("configuration"), PAGES["README.md"], page("pipelines"))
    )
    assert [words[0] for words in readme] == ["capture", "verify", "plan", "replay"]
    assert own == [words for words in readme if words[0] != "plan"]
    assert [words[0] for words in piped] == ["explain", "replay"]
    try:
        for words in (*readme, *piped):
            assert main(words) == 0, words
    finally:
        for name in ("shop", "shop.pipelines"):
            sys.modules.pop(name, None)

    complete = fed.filter(pl.col("ordered_at") < at(32 * 24 * 60))
    # A tape has the beginnings of quarters of an hour; the days and hours are those of the orders.
    by_day = complete.group_by(pl.col("ordered_at").dt.truncate("1d").alias("day"))
    days = by_day.agg(pl.col("amount").sum()).sort("day")
    actual = pl.read_delta(tmp_path / "lake" / "tables" / "revenue").sort("day")
    assert actual.select("day", "amount").rows() == days.rows()
    by_hour = complete.group_by("customer", pl.col("ordered_at").dt.truncate("1h").alias("hour"))
    hours = by_hour.agg(pl.col("amount").sum()).sort("customer", "hour")
    table = pl.read_delta(tmp_path / "lake" / "tables" / "hourly_revenue")
    start = pl.from_epoch("window_start", "us").dt.replace_time_zone("UTC")
    actual = table.with_columns(start).sort("customer", "window_start")
    amounts = [name for name in actual.columns if "amount" in name]
    assert actual.select("customer", "window_start", *amounts).rows() == hours.rows()
