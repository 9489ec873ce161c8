"""The programs that the documentation shows do what it says of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from capstan.cli import main
from capstan.core.times import Kind, TimeType
from capstan.pipeline import TIME, DagBuilder, Pipeline, Pipelines, Sink
from capstan.pipeline.definition import register
from tests.support.docs import PAGES, blocks, page
from tests.support.local_runner import everything, run_locally

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_program_is_run_by_a_test() -> None:
    """Queries by `tests/spark/test_demo.py`, `attach` by `test_capture_into.py`, sources by
    `test_declared_sources.py`, readers of S3 by `test_object_store.py`, notebooks by
    `test_context.py`, DAGs by `tests/dags/test_guest.py` and `test_other_operators.py`, the others
    below."""
    looking = blocks(page("quickstart"), "python")
    assert all('"lake' in block for block in looking)
    pages = (
        "airflow", "attach", "configuration", "deployment", "interop", "notebook",
        "on-your-cluster", "pipelines",
    )  # fmt: skip
    others = [block for name in pages for block in blocks(page(name), "python")]
    every = [block for text in PAGES.values() for block in blocks(text, "python")]
    assert sorted([*looking, *others]) == sorted(every)
    for block in looking:
        compile(block, "quickstart.md", "exec")


def test_pipelines_run(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Pipelines()
    monkeypatch.setattr("capstan.pipeline.pipeline", known.pipeline)
    made: dict[str, Any] = {"__name__": "docs"}
    for block in blocks(page("pipelines"), "python"):
        exec(block, made)
    first = datetime(2024, 5, 1, tzinfo=UTC)
    orders = [("ada", 5, 7), ("bob", 20, 1), ("ada", 59, 2), ("ada", 60, 4), ("bob", 185, 8)]
    micros = [int(first.timestamp()) * 10**6 + minute * 60 * 10**6 for _, minute, _ in orders]
    customers, _, amounts = zip(*orders, strict=True)
    records = pa.table({TIME: micros, "customer": customers, "amount": amounts})

    def ran(pipeline: Pipeline, sink: str) -> list[dict[str, object]]:
        reach = everything(TimeType.of(event=Kind.TIMESTAMP))
        results = [
            run_locally(records, pipeline, reach, peers=peers).sinks[sink] for peers in (1, 2)
        ]
        one, other = (result.sort_by([(TIME, "ascending"), ("customer", "ascending")])
                      for result in results)  # fmt: skip
        assert one == other
        return one.drop_columns([TIME]).to_pylist()

    late = micros[1] + 4 * 3600 * 10**6
    sold = pa.table({TIME: micros[:2], "order": [1, 2], "amount": [5, 6]})
    paid = pa.table({TIME: [micros[1], late], "order": [1, 2], "paid": [5, 6]})
    reach = everything(TimeType.of(event=Kind.TIMESTAMP))
    both = run_locally({"orders": sold, "payments": paid}, known.get("paid_orders"), reach)
    [actual] = both.sinks["paid"].to_pylist()
    assert (actual["order"], actual["amount"], actual["payment_paid"]) == (1, 5, 5)

    countries = pa.array(["FR", "DE", "FR", "FR", None])
    completed = records.append_column("customer_country", countries)
    abroad = run_locally(completed, known.get("orders_abroad"), reach).sinks["abroad"]
    assert abroad.column("amount").to_pylist() == [1]

    hours = ran(known.get("hourly_revenue"), "hours")
    zero, hour = micros[0] - 5 * 60 * 10**6, 3600 * 10**6
    assert [(*row.values(),) for row in hours] == [
        ("ada", zero, zero + hour, 9),
        ("bob", zero, zero + hour, 1),
        ("ada", zero + hour, zero + 2 * hour, 4),
        ("bob", zero + 3 * hour, zero + 4 * hour, 8),
    ]

    running = DagBuilder().source("orders", made["orders"]).operator("total", made["total"])
    register("docs:totals", running.connect("orders", "total").sink_for("total", "out").build)
    totals = ran(Pipeline("totals", "docs:totals", (Sink("out"),)), "out")
    assert [(*row.values(),) for row in totals] == [
        ("ada", 7), ("bob", 1), ("ada", 9), ("ada", 13), ("bob", 9)
    ]  # fmt: skip


def test_the_example_of_recordings_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(page("interop"), "python")
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "True"
    assert {line for line in printed if line.endswith("is at []")} == {
        f"{n} is at []" for n in range(3)
    }
    assert sum("(" in line for line in printed) == 50
    types = ["--time-type", "u64", "--record-type", "u64"]
    assert main(["check", str(tmp_path), *types]) == 0
