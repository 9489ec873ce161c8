"""Soak test: a stream of many micro-batches, and its cost at the end compared with the start.

    python -m tests.bench.soak --batches 2000 --folder ./soak

The batches come in ten stages. After each stage the tape is verified, followed into a table,
maintained and listed. A stage is measured by counters that do not depend on load: Spark jobs, files
and bytes read, files present. The soak exits with 1 and reports each counter that is larger in the
second half than in the first, or over its limit. CPU seconds are reported but have no limit: at the
end, a tenth of a stage is appended alternately to this tape and to one that is a stage long.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from capstan.capture.run import capture
from capstan.maintenance.run import maintain
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from capstan.verify import verify
from tests.bench.counters import Watch
from tests.bench.cpu_clock import Clock
from tests.support.sample_streams import NAME, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = 10
ROUNDS = 3
MOST_GROWTH = 1.3
COUNTED = ("capture_jobs", "follow_jobs", "follow_files", "bytes")
MOST = {"list_files": 64, "files": 256}
"""Limits of files that wait for compaction, and of compacted files of each size."""
_ROWS = 6


@dataclass(frozen=True, slots=True)
class Stage:
    """Cost of a stage.

    Attributes:
        batches: Micro-batches so far.
        capture_jobs: Spark jobs per micro-batch.
        follow_jobs, follow_files: Jobs of a followed replay, and files of records it read.
        list_files: Files opened by a listing without a JVM: of the index, and of its log.
        files: Files of the tape's tables after maintenance.
        bytes: Their size per micro-batch.
        cpu: CPU seconds by kind of work, per micro-batch for `capture`.
    """

    batches: int
    capture_jobs: float
    follow_jobs: int
    follow_files: int
    list_files: int
    files: int
    bytes: float
    cpu: dict[str, float]


def grown(stages: Sequence[Stage]) -> list[str]:
    """Costs that are higher in the second half than in the first, or over their limit: a line each.

    The medians of both halves count: at every tenth commit of a table Delta writes a checkpoint, so
    a stage now and then takes a few more jobs.
    """
    half = len(stages) // 2
    problems = []
    for name in COUNTED:
        before, after = (
            median(getattr(stage, name) for stage in part)
            for part in (stages[:half], stages[half:])
        )
        if after > MOST_GROWTH * before:
            problems.append(f"{name}: {before:.1f} -> {after:.1f}")
    for name, most in MOST.items():
        count = max(getattr(stage, name) for stage in stages)
        if count > most:
            problems.append(f"{name}: {count}, of at most {most}")
    return problems


def in_turns(
    young: Callable[[], Stage], old: Callable[[], Stage], rounds: int = ROUNDS
) -> Mapping[str, tuple[float, float]]:
    """CPU seconds by kind of work: the medians of a young tape and of an old one, alternately.

    Args:
        young: Lets a short tape grow.
        old: Lets a long tape grow by as much.
        rounds: Repetitions.
    """
    costs = [(young().cpu, old().cpu) for _ in range(rounds)]
    return {
        name: (median(one[name] for one, _ in costs), median(other[name] for _, other in costs))
        for name in costs[0][0]
    }


class Soak:
    """A stream in a folder that grows stage by stage."""

    def __init__(self, spark: SparkSession, folder: Path, batches: int) -> None:
        self._spark, self._source = spark, folder / "source"
        self._lake = Lake.at(folder / "lake")
        self._stream = little_stream(self._source)
        self.each = max(1, batches // STAGES)
        self._laid = 0
        self._clock = Clock.of(spark)

    def stages(self, say: Callable[[str], None] = print) -> list[Stage]:
        """Let the stream grow to its end; returns the cost of each stage."""
        stages = []
        for _ in range(STAGES):
            stages.append(self.grow(self.each))
            say(json.dumps(asdict(stages[-1])))
        return stages

    def grow(self, batches: int) -> Stage:
        """Let the stream grow by a number of micro-batches; returns their cost."""
        for number in range(self._laid, self._laid + batches):
            part = rows(range(number * _ROWS, (number + 1) * _ROWS))
            lay(self._source, f"{number:06}", part, START + timedelta(seconds=number))
        self._laid += batches
        cpu: dict[str, float] = {}
        capturing = self._watched("capture", lambda: self._capture(batches), cpu)
        cpu["capture"] = round(cpu["capture"] / batches, 3)
        tape = open_tape(self._lake, NAME)
        # With so few new events it runs no job: CPU time shows whether it grows.
        self._watched("verify", lambda: self._verify(tape), cpu)
        following = self._watched("follow", self._follow, cpu)
        self._watched("maintain", lambda: maintain(self._spark, self._lake, [NAME]), cpu)
        self._watched("list", lambda: worker_states(tape, newest_cut(tape)), cpu)
        files, index = _files(tape), _files_of(tape.paths.events)
        return Stage(
            batches=self._laid,
            capture_jobs=capturing.jobs / batches,
            follow_jobs=following.jobs,
            follow_files=sum(scan.files for scan in following.scans(tape.paths.records)),
            list_files=len(index) + _log_files(tape.paths.events),
            files=len(files),
            bytes=sum(files) / self._laid,
            cpu=cpu,
        )

    def _capture(self, batches: int) -> None:
        assert capture(self._spark, self._lake, self._stream).batches == batches

    def _verify(self, tape: Tape) -> None:
        assert verify(self._spark, self._lake, tape).valid

    def _follow(self) -> None:
        request = Request(NAME, "followed", follow="soak")
        replay(self._spark, self._lake, declared(self._stream), request)

    def _watched(self, name: str, work: Callable[[], object], cpu: dict[str, float]) -> Watch:
        before = self._clock.read()
        with Watch(self._spark) as watch:
            work()
        cpu[name] = round((self._clock.read() - before).cpu, 3)
        return watch


def _files(tape: Tape) -> list[int]:
    """The sizes of all files of a tape's tables."""
    paths = tape.paths
    tables = (paths.events, paths.records, paths.workers, paths.late, paths.feed)
    return [size for path in tables for size in _files_of(path)]


def _files_of(path: str) -> list[int]:
    actions = pa.table(delta.open_table(path).get_add_actions(flatten=True))
    sizes: list[int] = actions["size_bytes"].to_pylist()
    return sizes


def _log_files(path: str) -> int:
    """Number of files of a table's log that a reader opens: from the last checkpoint on."""
    log = Path(path) / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))
    since = checkpoints[-1].name[:20] if checkpoints else ""
    return len(checkpoints[-1:]) + sum(file.name[:20] > since for file in log.glob("*.json"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak test from a shell; returns the exit code."""
    from capstan.spark.session import build_session
    from tests.support.small_spark import LASTING, MASTER

    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("soak"))
    options = parser.parse_args(arguments)
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: delete it, or name another folder")
    spark = build_session("soak", master=MASTER, extra=LASTING)
    try:
        folder = options.folder.absolute()
        old, young = (Soak(spark, place, options.batches) for place in (folder, folder / "young"))
        stages = old.stages()
        young.grow(young.each)
        extra = max(1, old.each // STAGES)
        took = in_turns(lambda: young.grow(extra), lambda: old.grow(extra))
    finally:
        spark.stop()
    first, last = stages[1], stages[-1]
    print("from the second stage to the last:")
    for name in (*COUNTED, *MOST):
        print(f"  {name:14} {getattr(first, name):8.1f} -> {getattr(last, name):8.1f}")
    print(f"CPU seconds on a tape of {young.each:,} batches, and on one of {options.batches:,}:")
    for name, (one, other) in took.items():
        print(f"  {name:14} {one:8.3f} -> {other:8.3f}")
    more = grown(stages)
    for line in more:
        print(f"over its limit: {line}")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
