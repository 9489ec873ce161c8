"""Counters: planned and executed reads of Spark, and commits. They do not depend on load.

They come from Spark's own status store, so the measured work needs no changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9.,]+) (B|KiB|MiB|GiB|TiB)\b")
_LOCATION = re.compile(r"Location: [^\[]*\[([^\],]*)")
_SCHEMA = re.compile(r"ReadSchema: (struct<.*>)")
_PYTHON = re.compile("Python|Pandas|InArrow")
_groups = count()
BOOKKEEPING = "recordDeltaOperationInternal"
"""Where jobs are started in which Delta reads its log."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan of files in an executed plan.

    Attributes:
        path: The table, or the first of its files.
        files: Number of files read.
        bytes: Their size, as precisely as Spark reports it: three digits.
        rows: Number of rows returned.
        columns: The columns read, in Spark's notation of a schema.
    """

    path: str
    files: int
    bytes: int
    rows: int
    columns: str


@dataclass(frozen=True, slots=True)
class Execution:
    """An executed query: its jobs, the names of its operators, its scans of tables."""

    number: int
    jobs: int
    operators: tuple[str, ...]
    scans: tuple[Scan, ...]

    @property
    def python(self) -> tuple[str, ...]:
        """The operators that pass rows to Python."""
        return tuple(name for name in self.operators if _PYTHON.search(name))


class Watch:
    """Counts the executions of a session; a context manager.

    Attributes:
        executions: The executions inside the `with` block, once it has ended.
        jobs: Number of Spark jobs inside it, including Delta's bookkeeping.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._plan_text = "spark.sql.maxMetadataStringLength"
        self.executions: tuple[Execution, ...] = ()
        self.jobs = 0

    def __enter__(self) -> Self:
        # Show the complete path and schema of scans, which Spark truncates to 100 characters.
        self._shown = self._spark.conf.get(self._plan_text, None)
        self._spark.conf.set(self._plan_text, "100000")
        self._last, self._jobs = self._newest(), self._next_job()
        return self

    def __exit__(self, *_: object) -> None:
        self.jobs = self._next_job() - self._jobs
        self.executions = tuple(self._executed())
        if self._shown is None:
            self._spark.conf.unset(self._plan_text)
        else:
            self._spark.conf.set(self._plan_text, self._shown)

    def scans(self, path: str | Path) -> tuple[Scan, ...]:
        """All scans of the table at `path`, or of its files, including scans without files."""
        table = str(path).rstrip("/")
        scans = (scan for execution in self.executions for scan in execution.scans)
        return tuple(scan for scan in scans if _is_of(scan.path.removeprefix("file:"), table))

    def _next_job(self) -> int:
        return int(self._spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def _store(self) -> JavaObject:
        # Executions are reported on a bus; wait for their arrival.
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return self._spark._jsparkSession.sharedState().statusStore()

    def _newest(self) -> int:
        store = self._store()
        count = int(store.executionsCount())
        executions = store.executionsList(max(count - 1, 0), 1) if count else None
        return (
            int(executions.apply(0).executionId())
            if executions is not None and executions.size()
            else -1
        )

    def _executed(self) -> Iterator[Execution]:
        store = self._store()
        listed = store.executionsList()
        for index in range(listed.size()):
            execution = listed.apply(index)
            number = int(execution.executionId())
            if number > self._last:
                yield _execution(store, number, int(execution.jobs().size()))


def _is_of(place: str, table: str) -> bool:
    if f"{table}/_delta_log/" in place:
        return False
    return place.rstrip("/") == table or place.startswith(f"{table}/")


def _execution(store: JavaObject, number: int, jobs: int) -> Execution:
    nodes = store.planGraph(number).allNodes()
    metrics = store.executionMetrics(number)
    listed = [nodes.apply(index) for index in range(nodes.size())]
    names = tuple(str(node.name()).strip() for node in listed)
    scans = tuple(scan for node in listed if (scan := _scan(node, metrics)) is not None)
    return Execution(number, jobs, names, scans)


def _scan(node: JavaObject, metrics: JavaObject) -> Scan | None:
    text = str(node.desc())
    location = _LOCATION.search(text)
    if location is None:
        return None
    schema = _SCHEMA.search(text)
    values: dict[str, str] = {}
    kinds = node.metrics()
    for index in range(kinds.size()):
        metric = kinds.apply(index)
        value = metrics.get(metric.accumulatorId())
        if value.isDefined():
            values[str(metric.name())] = str(value.get())
    return Scan(
        location.group(1),
        count_in(values.get("number of files read", "")),
        size_in(values.get("size of files read", "")),
        count_in(values.get("number of output rows", "")),
        schema.group(1) if schema else "",
    )


def count_in(text: str) -> int:
    """The number in the text of a counting metric: `1,234`; 0 for none."""
    digits = text.strip().replace(",", "")
    return int(digits) if digits.isdecimal() else 0


def size_in(text: str) -> int:
    """The bytes in the text of a size metric: the total at the start of its last line."""
    match = _SIZE.search(text.splitlines()[-1]) if text else None
    if match is None:
        return 0
    return round(float(match.group(1).replace(",", "")) * _UNITS[match.group(2)])


@contextmanager
def own_jobs(spark: SparkSession) -> Iterator[list[str]]:
    """What the Spark jobs are for that this thread starts inside the `with` block.

    Filled in at its end: a job's description, and where it was started.
    """
    context, group, jobs = spark.sparkContext, f"counted-{next(_groups)}", list[str]()
    context.setJobGroup(group, group)
    try:
        yield jobs
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        store = context._jsc.sc()
        # Jobs are reported on a bus.
        store.listenerBus().waitUntilEmpty()
        numbers = sorted(context.statusTracker().getJobIdsForGroup(group))
        started = (store.statusStore().job(number) for number in numbers)
        jobs.extend(f"{job.description().toString()}, {job.name()}" for job in started)


def commits(root: str | Path) -> frozenset[Path]:
    """The commits of all Delta tables under a local folder, as log files."""
    return frozenset(Path(root).rglob("_delta_log/*.json"))
