"""What a query that runs for days costs per micro-batch, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import deltalake
import pytest

from capstan.capture.synthetic import synthetic_batch
from capstan.storage import lake
from capstan.storage.delta import delta
from capstan.storage.tape.index_totals import EVERY
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.bench.counters import Watch
from tests.support.attached_job import ORDERS, Job, finish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

TEN = 10
"""Micro-batches that are counted together: Delta and Spark do some things at each tenth one."""


@dataclass
class Cost:
    """What micro-batches have cost.

    Attributes:
        jobs: Spark jobs.
        scanned: Files that these have read, with those of Delta's logs.
        openings: Tables that delta-rs has opened, or brought up to date.
        reached: Files and folders that were read or looked for without Spark.
    """

    jobs: int = 0
    scanned: int = 0
    openings: int = 0
    reached: int = 0


@contextmanager
def counted(spark: SparkSession, cost: Cost) -> Iterator[None]:
    """Add what is done inside the `with` block to a cost."""
    opened, open_path = deltalake.DeltaTable, lake._open

    def counting(read: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any, **named: Any) -> None:
            cost.openings += 1
            read(*arguments, **named)

        return counted

    def reaching(path: str) -> Any:
        cost.reached += 1
        return open_path(path)

    with (
        patch.object(opened, "__init__", counting(opened.__init__)),
        patch.object(opened, "update_incremental", counting(opened.update_incremental)),
        patch.object(lake, "_open", reaching),
        Watch(spark) as watch,
    ):
        yield
    cost.jobs += watch.jobs
    scans = (scan for execution in watch.executions for scan in execution.scans)
    cost.scanned += sum(scan.files for scan in scans)


@dataclass
class Meter:
    """A function for `foreachBatch` that counts what some micro-batches cost."""

    record: Callable[[DataFrame, int], None]
    costs: dict[range, Cost] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Record a micro-batch."""
        for window, cost in self.costs.items():
            if batch in window:
                with counted(frame.sparkSession, cost):
                    self.record(frame, batch)
                return
        self.record(frame, batch)


@pytest.mark.parametrize("batches", [40, pytest.param(300, marks=pytest.mark.nightly)])
def test_a_micro_batch_costs_the_same_after_many(
    spark: SparkSession, tmp_path: Path, batches: int
) -> None:
    job = Job(spark, tmp_path)
    for number in range(batches):
        hour, minute = divmod(number, 60)
        job.arrive(f"{number:04}", (number + 1, "ann", f"{10 + hour}:{minute:02}"))
    # Up to 50 files, Delta does one more job for each checkpoint: its checksum lists all files.
    # Totals are stored with batch 63 and with each 64th one after it.
    first = TEN if batches <= 50 else 7 * TEN
    early, late = range(first, first + TEN), range(batches - TEN, batches)
    meter = Meter(job.into(), {early: Cost(), late: Cost()})
    finish(job.start_with(meter, processingTime="0 seconds"))
    assert job.numbers() == list(range(1, batches + 1))
    assert job.is_sound()
    before, after = meter.costs.values()
    assert before.jobs > TEN
    assert min(before.scanned, before.openings, before.reached) > 0
    assert after == before


def test_an_idle_query_costs_the_same_after_many_advances(
    spark: SparkSession, tmp_path: Path
) -> None:
    time = {**ORDERS["time"], "every": "1 second", "lateness": "1 second", "idle_after": "1 second"}
    job = Job(spark, tmp_path)
    job.arrive("a", (1, "ann", "10:10"))
    into = job.into(time=time)
    finish(job.start_with(into))
    tape, costs, now = open_tape(job.lake, "orders"), [], datetime.now(UTC)

    def advance() -> None:
        # The clock goes ahead of the present: nobody waits.
        moment = now + timedelta(minutes=delta.open_table(tape.paths.events).version())
        synthetic_batch.advance_idle(job.spark, tape, into.stream, moment)

    for number in range(1, 4):
        # With the batch that follows, as many commits as there are between two totals.
        for _ in range(EVERY - 2):
            advance()
        advancing, recording = Cost(), Cost()
        with counted(job.spark, advancing):
            advance()
        job.arrive(f"{number}", (2, "ann", "10:10"))
        finish(job.start_with(Meter(into, {range(number, number + 1): recording})))
        costs.append((advancing, recording))
    # A table that this process alone has written to is not opened again.
    assert costs[0][1].openings > 0
    assert min(cost.reached for cost in costs[0]) > 0
    # How much of Delta's log Spark reads depends on how long ago its last checkpoint was.
    assert max(cost.scanned for pair in costs for cost in pair) <= TEN
    second, third = ([replace(cost, scanned=0) for cost in pair] for pair in costs[1:])
    assert third == second
    assert newest_cut(tape).commit == 3 * EVERY
    assert job.is_sound()
