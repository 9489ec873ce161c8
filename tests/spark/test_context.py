"""The Python API, on the project that `capstan init` writes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkConf

import capstan
from capstan.cli.scaffold import write_project
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.spark.guest_session import guest_session
from tests.support.docs import blocks, page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

WEEK = {"since": "2026-01-05", "until": "2026-01-12"}
ORDERS = 7 * 72


@pytest.fixture
def ctx(spark: SparkSession, tmp_path: Path) -> capstan.Context:
    write_project(tmp_path)
    return capstan.Context(tmp_path / "lake", config=tmp_path / "dags" / "streams.yaml")


@pytest.fixture
def berlin() -> Iterator[None]:
    """A process whose clock is not UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def test_from_a_capture_to_a_rollback(ctx: capstan.Context) -> None:
    captured = ctx.capture("orders")
    assert captured.fed == ORDERS + 3
    assert ctx.verify("orders").raise_for_violations().valid
    plan = ctx.plan("orders", into="oslo", workers=["oslo"], **WEEK)
    assert (plan.complete, plan.records) == (True, ORDERS // 3)
    assert plan.comparison is None
    compared = ctx.plan("orders", into="oslo", compare=True, workers=["oslo"], **WEEK)
    assert compared.comparison is not None
    assert compared.comparison.added == ORDERS // 3

    run = ctx.replay(plan)
    assert run.certificate is not None
    assert (run.certificate.records, run.unchanged) == (ORDERS // 3, False)
    assert run.to_arrow().num_rows == run.to_spark().count() == ORDERS // 3
    assert ctx.replay(plan).unchanged
    assert ctx.audit(run.name).raise_for_differences().passed

    ctx.rollback(run.name)
    assert ctx.table("oslo").count() == 0
    assert [row["state"] for row in ctx.runs(target="oslo")] == ["rolled back"]
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        ctx.audit_table("orders", "oslo").raise_for_differences()


def test_a_backfill_and_a_pipeline_beside_the_declarations(ctx: capstan.Context) -> None:
    ctx.capture("orders")
    assert ctx.gaps("revenue_by_day").counts["gap"] == 7
    filled = ctx.backfill("revenue_by_day").raise_for_errors()
    assert filled.to_json()["done"] == 1
    assert ctx.gaps("revenue_by_day").counts["gap"] == 0
    run = ctx.replay("orders", into="orders_by_hour", pipeline="orders_by_hour", **WEEK)
    orders = run.to_arrow()
    assert sum(orders["orders"].to_pylist()) == ORDERS
    revenue = ctx.table("revenue_by_day").toArrow()
    assert sum(orders["cents"].to_pylist()) == sum(revenue["cents"].to_pylist())


def test_every_result_shows_itself_in_a_notebook(ctx: capstan.Context) -> None:
    ctx.capture("orders")
    run = ctx.replay("orders", into="oslo", workers=["oslo"], **WEEK)
    shown = {
        "Streams of": ctx.streams(),
        "Runs of": ctx.runs(),
        "orders, commit 0: valid": ctx.verify("orders"),
        "Plan": ctx.plan("orders", into="oslo", compare=True, workers=["oslo"], **WEEK),
        "done": run,
        "Audit passed": ctx.audit(run.name),
        "revenue_by_day: 7 gap": ctx.gaps("revenue_by_day"),
        "0 failed": ctx.backfill("revenue_by_day", dry_run=True),
    }
    for title, result in shown.items():
        html = result._repr_html_()
        assert html.startswith("<table>") and title in html, html


def test_the_notebook_of_the_documentation_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    [program] = blocks(page("notebook"), "python")
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["orders"].num_rows == ORDERS // 3


def test_a_session_of_the_caller_keeps_its_settings(
    spark: SparkSession, tmp_path: Path, berlin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.spark.session._STARTED", set())
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    theirs.conf.set("spark.sql.ansi.enabled", "false")
    write_project(tmp_path)
    place = tmp_path / "lake"
    with capstan.Context(place, config=tmp_path / "dags" / "streams.yaml", spark=theirs) as ctx:
        ctx.capture("orders")
        run = ctx.replay("orders", into="berlin", workers=["berlin"], **WEEK)
        assert ctx.audit(run.name).passed
        assert run.certificate is not None
        assert run.certificate.since == "2026-01-05T00:00:00.000000Z"
    assert theirs.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert theirs.conf.get("spark.sql.ansi.enabled") == "false"
    assert os.environ["TZ"] == "Europe/Berlin"
    # The session goes on: it was the caller's.
    assert theirs.range(3).count() == 3


def test_a_session_without_delta_is_told_what_it_lacks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    monkeypatch.setattr("capstan.spark.session._STARTED", set())
    bare = SparkConf(loadDefaults=False)
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: bare)
    with pytest.raises(SystemFailureError, match="CAP-DELTA") as without:
        capstan.Context(tmp_path / "lake", spark=spark).maintain()
    assert "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in (
        without.value.hint or ""
    )
    with pytest.raises(InvalidRequestError, match="CAP-CONNECT"):
        guest_session(object())  # type: ignore[arg-type]


def test_a_replay_says_what_it_lacks(ctx: capstan.Context) -> None:
    ctx.capture("orders")
    with pytest.raises(InvalidRequestError, match="CAP-REQUEST"):
        ctx.replay("orders")
    with pytest.raises(InvalidRequestError, match="CAP-REQUEST"):
        ctx.replay("orders", into="oslo", worker="oslo")
    plan = ctx.plan("orders", into="oslo", **WEEK)
    with pytest.raises(InvalidRequestError, match="CAP-REQUEST"):
        ctx.replay(plan, workers=["oslo"])
