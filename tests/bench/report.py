"""The benchmark's report: a table for people, and JSON with all figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet
from rich import box
from rich.table import Table

from tests.bench.inputs import Bench
from tests.bench.measures import Line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
_WHOLE = ("commits", "files", "events/s", "records/s")
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow")


def machine() -> dict[str, object]:
    """The machine, and its load: average runnable processes over 1, 5 and 15 minutes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "load": [round(item, 2) for item in os.getloadavg()],
    }


def versions(spark: SparkSession) -> dict[str, str]:
    """Versions of the software used."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return {
        "capstan": version("capstan-replay"),
        "python": platform.python_version(),
        "java": str(jvm.java.lang.System.getProperty("java.runtime.version")),
        **{name: version(name) for name in _PACKAGES},
    }


def sources(bench: Bench) -> list[dict[str, object]]:
    """Rows, files and bytes of the input."""
    inputs = []
    for path in sorted((bench.folder / "sources").glob("*")):
        files = sorted(path.glob("*.parquet"))
        inputs.append(
            {
                "rows": sum(parquet.read_metadata(file).num_rows for file in files),
                "files": len(files),
                "bytes": sum(file.stat().st_size for file in files),
            }
        )
    return inputs


def to_json(
    bench: Bench, lines: Sequence[Line], before: dict[str, object], seconds: float
) -> dict[str, object]:
    """The content of the benchmark's file; CPU seconds come before wall-clock seconds."""
    options = bench.options
    return {
        "format": FORMAT,
        "machine": before,
        "load_after": machine()["load"],
        "versions": versions(bench.spark),
        "master": bench.spark.sparkContext.master,
        "rows": list(options.sizes),
        "rounds": options.rounds,
        "sources": sources(bench),
        "lines": [line.to_json() for line in lines],
        "seconds": round(seconds, 1),
    }


def table(lines: Sequence[Line]) -> Table:
    """The results for people: slopes with their goals, then whole runs at the larger size."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what", "against", "measure", "goal", "met", "whole run", "by round"):
        made.add_column(name, justify="left" if name in ("what", "against") else "right")
    for line in lines:
        met = {True: "yes", False: "no", None: ""}[line.met]
        made.add_row(
            line.name,
            line.against,
            _number(line.value, line.unit),
            ""
            if line.goal is None
            else f"{'>=' if line.least else '<='} {_number(line.goal, line.unit)}",
            met,
            _number(line.total),
            " ".join(_number(item, line.unit).split(" ")[0] for item in line.rounds),
        )
    return made


def costs(lines: Sequence[Line]) -> Table:
    """CPU seconds and wall-clock seconds of each side and size, as medians of all rounds."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("side", "rows", "CPU s", "of them Python", "wall s"):
        made.add_column(name, justify="left" if name == "side" else "right")
    shown: set[str] = set()
    for line in lines:
        sides = line.detail.get("costs")
        for side, sizes in sides.items() if isinstance(sides, dict) else ():
            if side in shown or not isinstance(sizes, dict):
                continue
            shown.add(side)
            for rows, cost in sizes.items():
                figures = [f"{cost[name]:.2f}" for name in ("cpu", "python", "wall")]
                made.add_row(side, f"{int(rows):,}", *figures)
    return made


def write(path: Path, text: str) -> None:
    """Write the benchmark's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:,.0f}" if unit in _WHOLE else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
