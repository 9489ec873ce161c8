"""Verification of long recordings, and of many: exact, and in memory that does not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.core.protocol import Rule
from capstan.core.times import Time
from capstan.verify import verify
from tests.bench.cpu_clock import Clock
from tests.support.long_tape import PRODUCT, long_tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

MIB = 2**20


def test_a_million_progress_events_of_one_worker(spark: SparkSession, lake: Lake) -> None:
    clock = Clock.of(spark)
    peaks = []
    for events in (100_000, 1_000_000):
        tape = long_tape(spark, lake, f"long_{events}", PRODUCT, workers=1, events=events)
        clock.forget_peaks()
        (verdict,) = verify(spark, lake, tape).workers
        peaks.append(clock.peak())
        assert verdict.valid
        assert verdict.events == events
        assert verdict.holdings == ((Time((0, 0)), 1), (Time((events, 1)), 1))
    assert 0 < peaks[1] < peaks[0] + 32 * MIB


def test_a_thousand_workers_of_a_thousand_events(spark: SparkSession, lake: Lake) -> None:
    broken = "worker = 777 AND seq = 555"
    tape = long_tape(spark, lake, "many", PRODUCT, workers=1000, events=1000, broken=broken)
    actual = verify(spark, lake, tape).workers
    assert [item.worker for item in actual] == list(range(1000))
    assert sum(item.events for item in actual) == 1000 * 1000 - (1000 - 555)
    (wrong,) = [item for item in actual if not item.valid]
    assert (wrong.worker, wrong.events) == (777, 555)
    assert wrong.violation is not None
    assert (wrong.violation.rule, wrong.violation.time) == (Rule.NEGATIVE, Time((555, 446)))
    assert all(len(item.holdings) == 2 for item in actual)
