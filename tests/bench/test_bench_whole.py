"""The whole benchmark, on a few rows: every result is present, and goals of counters are met."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.spark_operators import JOIN, OPERATORS

BACKFILLS = {
    "backfill, a run for each interval", "backfill, one run as they adjoin", "backfill, one app",
}  # fmt: skip
BY_ROW = {
    "executor, linear", "executor, fan-out 3", "executor, diamond", "executor, deep chain",
    "two Arrow operators, 10,000 rows a batch", "nexmark q1", "nexmark q5", "nexmark q7",
    "keyed sum, batch form", "keyed sum, by record", "sessions, batch form",
    "keyed sum, 10,000,000 rows", "sessions, 10,000,000 rows", "snapshot, a million keys",
    "snapshot and restore, a million keys", "rescale on Spark, a million keys",
    "restore from Delta, a million keys", "restore from Delta and snapshot into it, a million keys",
}  # fmt: skip
COLD = {
    "cold replay of a day", "cold capture of a file", "cold verify --source", "cold verify",
}  # fmt: skip
RATIOS = {
    "capture", "capture without read-back", "capture_into", "replay", "transform",
    "verify", "merge by sequence", "look at JSON lines, flat", "look at JSON lines, nested",
    *(f"replay of a pipeline: {name}" for name in [*JOIN, *OPERATORS]),
}  # fmt: skip


@pytest.mark.timeout(2400)
def test_every_line_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "document.json"
    words = ["--rows=100000,300000", "--rounds=1", "--longer=2", f"--output={output}"]
    program = [sys.executable, "-m", "tests.bench", *words]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(output.read_text(encoding="utf-8"))
    lines = {line["name"]: line for line in document["lines"]}
    assert set(lines) >= RATIOS
    for name in RATIOS:
        assert name in ended.stdout
        assert all(
            cost["cpu"] > 0 for side in lines[name]["costs"].values() for cost in side.values()
        )
    for name in BACKFILLS:
        assert lines[name]["value"] > 0
    # Only one run per interval has the goal.
    assert {name for name in BACKFILLS if lines[name]["goal"]} == {
        "backfill, a run for each interval"
    }
    assert {name for name in lines if name.startswith("page")}
    assert all(lines[name]["value"] > 0 for name in BY_ROW)
    # Both sides process the same rows, with the same results.
    against = {(line["name"], line["against"]) for line in document["lines"]}
    assert against >= {
        ("nexmark q5", "bytewax"),
        ("keyed sum, batch form", "bytewax reduce_final"),
        ("sessions, batch form", "bytewax fold_window"),
        ("sessions of more keys, batch form", "bytewax fold_window"),
        ("keyed sum, by record", "transformWithState"),
        ("sessions, batch form", "transformWithState"),
    }
    assert lines["commits of a run"]["met"]
    assert lines["more files read by a follow"]["met"]
    assert 0 < lines["replay of 1 worker of 16: bytes read"]["value"] < 0.5
    assert lines["bytes written anew"]["met"]
    assert lines["bytes written anew"]["a_second_time"] == 0
    assert lines["Airflow"]["wall"]["bare"][0] > 0
    assert lines["parsing a DAG file"]["value"] > 0
    assert {name for name in lines if name.startswith("cold ")} >= COLD
    assert all(lines[name]["value"] > 0 for name in COLD)
    assert lines["JVMs of a cold verify"]["met"]
    drivers = lines["capture, 2 cores"]["drivers"]
    assert [driver["cores"] for driver in drivers] == [1, 2]
    assert all(peak > 2**20 for driver in drivers for peak in driver["peaks"].values())
    assert document["machine"]["cores"] >= 1
    assert document["sources"][0]["bytes"] > 0
