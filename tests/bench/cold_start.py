"""Cost of a command from start to end, in its own process, on its own lake."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from capstan.capture.run import capture
from capstan.core.config import load_config
from capstan.demo.flights import feed
from capstan.errors import SystemFailureError
from capstan.spark.setup.jars import delta_jars
from capstan.spark.setup.jvm import driver_memory
from capstan.spark.setup.local_submit import pyspark_home
from capstan.storage.delta.delta import open_table
from capstan.storage.lake import Lake
from tests.bench.fresh_process import Fresh, fresh
from tests.bench.inputs import Bench, drop
from tests.bench.measures import Line, ratio
from tests.bench.submit import DECLARED

REPLAY, CAPTURE, COMPARE, VERIFY = (
    "cold replay of a day",
    "cold capture of a file",
    "cold verify --source",
    "cold verify",
)
COPY: Final = "plain copy of the day"
GOALS: Final[Mapping[str, float]] = {REPLAY: 20.0, CAPTURE: 15.0, COMPARE: 12.0}
"""Goals in wall-clock seconds."""

_STREAM, _WORKER = "flights", "EWR"
_DAY, _NEXT = "2013-04-10", "2013-04-11"
# Days since January 1: arrivals from the day before to the day after.
_FED: Final = range(98, 101)
ROWS: Final = 369
"""Departures of the day."""

_EIGHT = "eight"
_DECLARED: Final = """
streams:
  eight:
    source: {format: parquet, path: "SOURCE"}
    workers: {by: column, column: house, labels: [north, south]}
    time: {domain: event, column: at, every: 1 hour}
"""
_COPYING: Final = """
import sys
from pyspark.sql import SparkSession

source, target, rows = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
day = spark.read.format("delta").load(source).where(rows)
day.write.format("delta").save(target)
spark.stop()
"""
_PLAIN: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A measured program.

    Attributes:
        name: Name of its result.
        lake: Folder of which it gets a copy.
        program: Its command line, for the copy.
        right: Whether its output and its changes to the copy are correct.
    """

    name: str
    lake: Path
    program: Callable[[Path], Sequence[str]]
    right: Callable[[str, Path], bool]


def cold(bench: Bench) -> list[Line]:
    """The results `cold replay of a day` and so on.

    Raises:
        SystemFailureError: `CAP-BENCH` if a program does not succeed, or its result is wrong.
    """
    jobs = _jobs(bench)
    costs: dict[str, list[Fresh]] = {job.name: [] for job in jobs}
    for number in range(bench.options.rounds):
        # Each round starts with another program: the first has the fewest files in memory.
        turn = number % len(jobs)
        for job in [*jobs[turn:], *jobs[:turn]]:
            cost = _done(bench, job)
            costs[job.name].append(cost)
            summary = f"{cost.wall:.1f} s, {cost.cpu:.1f} CPU s, {cost.jvms} JVMs"
            bench.say(f"round {number + 1}: {job.name}: {summary}")
    return lines(costs)


def lines(costs: Mapping[str, Sequence[Fresh]]) -> list[Line]:
    """The results of programs by name: two for each, in wall-clock and in CPU seconds.

    The ratio of whole runs is the one to `COPY`, of the median rounds.
    """
    results = [line for name in costs for line in _of(costs, name)]
    jvms = float(max(cost.jvms for cost in costs[VERIFY]))
    return [*results, Line("JVMs of a cold verify", "", jvms, 0.0, "JVMs")]


def _of(costs: Mapping[str, Sequence[Fresh]], name: str) -> list[Line]:
    made = []
    detail = {"processes": [cost.to_json() for cost in costs[name]]}
    for about, unit, goal, figure in (
        ("", "s", GOALS.get(name), _wall),
        (", CPU", "CPU s", None, _cpu),
    ):
        rounds = tuple(figure(cost) for cost in costs[name])
        against, total = "", None
        if name != COPY:
            against = COPY
            total = ratio(median(rounds), median(figure(cost) for cost in costs[COPY]))
        middle = median(rounds)
        made.append(Line(f"{name}{about}", against, middle, goal, unit, total, rounds, detail))
    return made


def _wall(cost: Fresh) -> float:
    return cost.wall


def _cpu(cost: Fresh) -> float:
    return cost.cpu


def _done(bench: Bench, job: Job) -> Fresh:
    """Run a job on a new copy of its lake, and check its output."""
    folder = bench.place("cold")
    lake = folder / "lake"
    shutil.copytree(job.lake, lake)
    cost = fresh(job.program(lake), folder)
    if not job.right(cost.output, lake):
        message = f"{job.name} had a wrong result, and printed: {cost.output.strip()}"
        raise SystemFailureError("CAP-BENCH", message, "its figures are meaningless; report this")
    drop(folder)
    return cost


def _jobs(bench: Bench) -> list[Job]:
    folder = bench.place("cold-inputs")
    flights, filed, plain = (folder / name for name in ("flights", "filed", "plain"))
    fed = feed(flights / "sources" / _STREAM, days=_FED)
    feed(filed / "sources" / _STREAM, days=_FED[:1])
    _captured(bench, flights, DECLARED, _STREAM)
    files = [str(file) for file in fed.files]
    bench.spark.read.parquet(*files).write.format("delta").save(str(plain / "departures"))
    eight, declared = _eight(bench, folder)
    options = ["--workers", _WORKER, "--since", _DAY, "--until", _NEXT, "--into", "day"]
    script = folder / "copying.py"
    script.write_text(_COPYING, encoding="utf-8")
    one_file = parquet.read_metadata(fed.files[0]).num_rows
    return [
        # The copy's rows are counted outside the program: a copy does not read back.
        Job(COPY, plain, lambda lake: _submit(script, lake), lambda _, lake: _copied(lake)),
        Job(
            REPLAY,
            flights,
            lambda lake: _command(lake, DECLARED, "replay", _STREAM, *options),
            lambda output, _: _has(output, "records", ROWS) and _has(output, "published", True),
        ),
        Job(
            CAPTURE,
            filed,
            lambda lake: _command(lake, DECLARED, "capture", _STREAM),
            lambda output, _: _has(output, "fed", one_file),
        ),
        Job(
            COMPARE,
            eight,
            lambda lake: _command(lake, declared, "verify", _EIGHT, "--source"),
            lambda output, _: (
                _has(output, "valid", True) and _has(output, ("source", "records"), 8)
            ),
        ),
        Job(
            VERIFY,
            eight,
            lambda lake: _command(lake, declared, "verify", _EIGHT),
            lambda output, _: _has(output, "valid", True),
        ),
    ]


def _eight(bench: Bench, folder: Path) -> tuple[Path, Path]:
    """A lake with a stream of eight rows, with its source beside it; and its declarations."""
    source, lake, declared = folder / "rows", folder / "eight", folder / "streams.yaml"
    source.mkdir()
    first = datetime(2013, 3, 1, tzinfo=UTC)
    hours = [first + timedelta(hours=hour) for hour in range(4) for _ in range(2)]
    rows = pa.table({"house": ["north", "south"] * 4, "at": hours, "price": list(range(8))})
    parquet.write_table(rows, source / "1.parquet")
    declared.write_text(_DECLARED.replace("SOURCE", str(source)), encoding="utf-8")
    _captured(bench, lake, declared, _EIGHT)
    return lake, declared


def _captured(bench: Bench, lake: Path, declared: Path, stream: str) -> None:
    place = Lake.at(lake)
    capture(bench.spark, place, load_config(declared, lake=place.root).stream(stream))


def _command(lake: Path, declared: Path, *words: str) -> list[str]:
    program = str(Path(sys.executable).with_name("capstan"))
    return [program, "--lake", str(lake), "--config", str(declared), "--json", *words]


def _submit(script: Path, folder: Path) -> list[str]:
    """The command line of a `spark-submit` that copies the day, as in Delta's manual."""
    conf = [word for key, value in _PLAIN.items() for word in ("--conf", f"{key}={value}")]
    rows = f"origin = '{_WORKER}' AND sched_dep >= '{_DAY}' AND sched_dep < '{_NEXT}'"
    jars = ",".join(str(jar) for jar in delta_jars())
    program = [str(pyspark_home() / "bin" / "spark-submit"), "--master", "local[*]", "--jars", jars]
    program += ["--driver-memory", driver_memory(), *conf, str(script)]
    return [*program, str(folder / "departures"), str(folder / "day"), rows]


def _copied(folder: Path) -> bool:
    return bool(open_table(str(folder / "day")).to_pyarrow_table().num_rows == ROWS)


def _has(output: str, key: str | tuple[str, ...], value: object) -> bool:
    """Whether the JSON output of a command has a value under a key, or under nested keys."""
    answer = json.loads(output)
    for name in (key,) if isinstance(key, str) else key:
        answer = answer[name]
    return bool(answer == value)
