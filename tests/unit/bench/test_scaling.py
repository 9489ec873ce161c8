"""What two cores do beside one."""

from __future__ import annotations

import os

import pytest

from tests.bench.cpu_clock import Clock, Cost
from tests.bench.scaling import WORK, Found, Peaks, lines


def found(cores: int, wall: float) -> Found:
    costs = {name: Cost(jvm=9, python=1, wall=wall + place) for place, name in enumerate(WORK)}
    return Found(cores, costs, Peaks(jvm=2**30, worker=2**27))


def test_the_middle_of_one_core_by_the_middle_of_two() -> None:
    one, two = [found(1, wall) for wall in (8, 12, 10)], [found(2, wall) for wall in (5, 5, 8)]
    reported = {line.name: line for line in lines({1: one, 2: two})}
    assert list(reported) == [f"{name}, 2 cores" for name in WORK]
    capture = reported["capture, 2 cores"]
    assert capture.value == 10 / 5
    assert capture.rounds == (8 / 5, 12 / 5, 10 / 8)
    assert reported["replay, 2 cores"].value == 12 / 7
    drivers = capture.to_json()["drivers"]
    assert isinstance(drivers, list)
    assert [driver["cores"] for driver in drivers] == [1, 1, 1, 2, 2, 2]
    assert drivers[0]["peaks"] == {"jvm": 2**30, "worker": 2**27}
    assert drivers[0]["costs"]["verify"]["cpu"] == pytest.approx(10)


def test_a_process_that_has_ended_has_no_peak() -> None:
    assert Clock(os.getpid()).peak_of_jvm() > 2**20
    assert Clock(2**22 + 1).peak_of_jvm() == 0
