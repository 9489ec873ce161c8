"""What commands cost in processes of their own: their lines, and how the cost is taken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capstan.errors import SystemFailureError
from tests.bench.cold_start import CAPTURE, COMPARE, COPY, GOALS, REPLAY, VERIFY, _has, lines
from tests.bench.fresh_process import Fresh, fresh

NAMES = (COPY, REPLAY, CAPTURE, COMPARE, VERIFY)


def found(walls: tuple[float, float, float], jvms: int = 2) -> list[Fresh]:
    return [Fresh(wall, 2 * wall + 1, jvms, "") for wall in walls]


def test_the_median_round_is_compared_with_the_copy() -> None:
    costs = {name: found((9.0, 30.0, 10.0)) for name in NAMES}
    costs[REPLAY], costs[VERIFY] = found((15.0, 12.0, 40.0)), found((1.0, 3.0, 2.0), jvms=0)
    reported = {line.name: line for line in lines(costs)}
    both = [name for item in NAMES for name in (item, f"{item}, CPU")]
    assert list(reported) == [*both, "JVMs of a cold verify"]
    replay, cpu = reported[REPLAY], reported[f"{REPLAY}, CPU"]
    assert (replay.value, replay.unit, replay.total) == (15.0, "s", 15 / 10)
    assert (replay.against, replay.goal, replay.met) == (COPY, 20.0, True)
    assert replay.rounds == (15.0, 12.0, 40.0)
    assert (cpu.value, cpu.unit, cpu.goal, cpu.total) == (31.0, "CPU s", None, 31 / 21)
    assert replay.to_json()["processes"] == [
        {"cpu": 31.0, "wall": 15.0, "jvms": 2},
        {"cpu": 25.0, "wall": 12.0, "jvms": 2},
        {"cpu": 81.0, "wall": 40.0, "jvms": 2},
    ]
    assert (reported[COPY].against, reported[COPY].total, reported[COPY].met) == ("", None, None)
    assert (reported[VERIFY].value, reported[VERIFY].goal) == (2.0, None)
    assert {name: reported[name].goal for name in GOALS} == dict(GOALS)


@pytest.mark.parametrize(("jvms", "met"), [((0, 0), True), ((0, 1), False)])
def test_no_round_of_a_cold_verify_may_start_a_jvm(jvms: tuple[int, int], met: bool) -> None:
    costs = {name: found((1.0, 1.0, 1.0)) for name in NAMES}
    costs[VERIFY] = [Fresh(1.0, 1.0, count, "") for count in jvms]
    last = lines(costs)[-1]
    assert (last.value, last.met) == (max(jvms), met)


# It starts one that works on when it has ended itself, as a JVM does whose driver has.
LEAVING = """
import subprocess, sys
work = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.Popen([sys.executable, "-c", work])
print("said")
print("Picked up JAVA_TOOL_OPTIONS: -D", file=sys.stderr)
"""


def test_what_a_program_leaves_behind_is_on_its_bill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only pytest sets it; the benchmark runs without.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    cost = fresh([sys.executable, "-c", LEAVING], tmp_path)
    assert (cost.output, cost.jvms) == ("said\n", 1)
    assert cost.cpu > 0.5
    assert cost.wall > 0


def test_a_program_that_fails_is_no_measure(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('it broke')"]
    with pytest.raises(SystemFailureError, match="ended with 1: it broke"):
        fresh(program, tmp_path)


def test_answers_are_looked_into() -> None:
    printed = '{"valid": true, "source": {"records": 8}}\n'
    assert _has(printed, "valid", True)
    assert _has(printed, ("source", "records"), 8)
    assert not _has(printed, ("source", "records"), 7)
