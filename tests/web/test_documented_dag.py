"""The daily DAG of docs/airflow.md under a scheduler: two scheduled runs and a manual one."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.airflow.local import processes
from capstan.cli.scaffold import write_project
from tests.support.airflow_api import until
from tests.support.docs import blocks, page, section
from tests.support.live_airflow import launch
from tests.support.small_spark import SUBMITTED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.airflow_api import Rest

SCHEDULE = "schedule=daily, "
BOUNDED = (
    "schedule=daily, start_date=datetime(2026, 1, 6), end_date=datetime(2026, 1, 7), catchup=True, "
)
"""The intervals of January 6 and 7, which are complete in the orders of `capstan init`."""


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_the_daily_dag_replays_one_day_after_the_other(tmp_path: Path) -> None:
    """Each run adds its day; nobody is there to approve."""
    folder, lake = tmp_path.resolve(), tmp_path.resolve() / "lake"
    lake.mkdir()
    write_project(folder / "project", airflow=folder / "dags")
    [text] = blocks(section(page("airflow"), "In a DAG of your own"), "python")
    assert SCHEDULE in text
    text = text.replace(SCHEDULE, BOUNDED).replace('"approve": True', '"approve": False')
    (folder / "dags" / "shop.py").write_text(f"from datetime import datetime\n{text}", "utf-8")
    arguments = ["--lake", str(lake), "--dags", str(folder / "dags")]
    launched = launch(folder, arguments=arguments, environment=SUBMITTED)
    try:
        rest = launched.rest
        rest.wait_for_dag("shop")
        rest.unpause("shop")
        for number in range(2):
            run = until(lambda n=number: scheduled(rest, n), 240)
            rest.require("shop", run, 1200)
        require_days(lake, {6, 7})
        # Its interval is the day before; other dates are not those of the DAG.
        body = {"conf": {}, "logical_date": "2026-01-06T06:00:00Z"}
        run = str(rest.call("POST", "/dags/shop/dagRuns", body)["dag_run_id"])
        rest.require("shop", run, 1200)
        require_days(lake, {5, 6, 7})
        launched.stop(signal.SIGINT)
    finally:
        processes.end(launched.home.left)


def scheduled(rest: Rest, number: int) -> str | None:
    """The name of a scheduled run, once it is there."""
    runs = rest.runs("shop")
    assert all(run["run_type"] == "scheduled" for run in runs)
    return str(runs[number]["dag_run_id"]) if number < len(runs) else None


def require_days(lake: Path, days: set[int]) -> None:
    """Check that both tables have the orders of some days in January, and no others."""
    tape = pl.read_delta(str(lake / "streams" / "orders" / "records"))["data"].struct.unnest()
    orders = tape.filter(
        pl.col("placed_at").is_between(
            datetime(2026, 1, min(days), tzinfo=UTC),
            datetime(2026, 1, max(days) + 1, tzinfo=UTC),
            closed="left",
        )
    )
    copied = pl.read_delta(str(lake / "tables" / "oslo_orders"))
    assert sorted(copied["id"]) == sorted(orders.filter(pl.col("shop") == "oslo")["id"])
    revenue = pl.read_delta(str(lake / "tables" / "revenue_by_day"))
    assert revenue.height == 3 * len(days)
    assert revenue["cents"].sum() == orders["cents"].sum()
