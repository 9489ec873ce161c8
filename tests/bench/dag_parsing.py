"""Airflow's time to parse the DAG files with a hundred declared streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final

from capstan.spark.project_home import project_home
from tests.bench.inputs import Bench
from tests.bench.measures import Line
from tests.support.many_streams import many_streams

GOAL: Final = 2.0
"""Goal for all files together, in CPU seconds."""

STREAMS: Final = 100

# As in Airflow: each file in its own process, forked from one that has imported Airflow.
PARSE: Final = """
import os, runpy, sys, time
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit
for file in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    before = time.process_time()
    found = runpy.run_path(file)
    spent = time.process_time() - before
    dags = len({id(each) for each in found.values() if isinstance(each, airflow.sdk.DAG)})
    loaded = [name for name in ("pyspark", "delta", "py4j", "deltalake", "pyarrow", "pandas")
              if name in sys.modules]
    print("parsed", spent, dags, *loaded, flush=True)
    os._exit(0)
"""
"""Program that prints, for each DAG file, its CPU seconds, its DAGs, and heavy packages."""


def parsing(bench: Bench) -> list[Line]:
    """The result `parse`: CPU seconds for all DAG files with 100 declared streams."""
    folder = bench.place("parse")
    declared = folder / "streams.yaml"
    declared.parent.mkdir(parents=True, exist_ok=True)
    declared.write_text(many_streams(STREAMS), encoding="utf-8")
    rounds, dags = [], 0
    for _ in range(bench.options.rounds):
        parsed = parse(declared, folder)
        rounds.append(sum(seconds for seconds, _, _ in parsed.values()))
        dags = sum(count for _, count, _ in parsed.values())
        bench.say(f"parsed {dags} DAGs: {rounds[-1]:.2f} s")
    detail = {"streams": STREAMS, "dags": dags}
    return [Line("parse", "", median(rounds), GOAL, "s", None, tuple(rounds), detail)]


def parse(declared: Path, home: Path) -> dict[str, tuple[float, int, tuple[str, ...]]]:
    """Parse the project's DAG files with a file of declarations.

    Args:
        declared: The declarations.
        home: Folder for Airflow's files.

    Returns:
        By file, the CPU seconds, the number of DAGs, and the heavy packages loaded.
    """
    files = sorted((project_home() / "dags").glob("*.py"))
    given = {
        "AIRFLOW_HOME": str(home),
        "CAPSTAN_LAKE": str(home / "lake"),
        "CAPSTAN_CONFIG": str(declared),
    }
    done = subprocess.run(
        [sys.executable, "-c", PARSE, *map(str, files)],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("parsed ")]
    return {
        file.name: (float(words[0]), int(words[1]), tuple(words[2:]))
        for file, words in zip(files, rows, strict=True)
    }
