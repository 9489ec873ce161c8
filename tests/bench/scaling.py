"""The same work on one core and on two, or over very many rows: duration and memory.

    python -m tests.bench.scaling --rows 100000000 --cores 2 --folder ./scale

Each number of cores has its own driver, which is pinned to those cores with its child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from capstan.capture.run import close
from capstan.errors import SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.spark.session import build_session
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.bench.cpu_clock import Clock, Cost
from tests.bench.inputs import STREAM, Bench, Options, drop, nothing_declared, stream
from tests.bench.measures import Line, ratio

WORK = ("capture", "verify", "replay")


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak resident memory, in bytes.

    Attributes:
        jvm: Peak of the driver's JVM, including its executors.
        worker: Highest peak of a Python worker.
    """

    jvm: int
    worker: int


@dataclass(frozen=True, slots=True)
class Found:
    """Cost of a driver's work.

    Attributes:
        cores: Number of cores.
        costs: Costs by name, see `WORK`.
        peaks: Its memory over all work.
    """

    cores: int
    costs: Mapping[str, Cost]
    peaks: Peaks


def scaling(bench: Bench) -> list[Line]:
    """The results `capture, 2 cores` and so on: speed-up over one core, in wall-clock time."""
    rows = bench.options.large
    for size in bench.options.sizes:
        bench.batches(size)
    actual: dict[int, list[Found]] = {1: [], 2: []}
    for number in range(bench.options.rounds):
        for cores, rounds in actual.items():
            rounds.append(_driver(bench, cores))
            walls = {name: round(cost.wall, 1) for name, cost in rounds[-1].costs.items()}
            bench.say(f"round {number + 1}: {cores} cores, {rows:,} rows: {walls} s")
    return lines(actual)


def lines(found: Mapping[int, Sequence[Found]]) -> list[Line]:
    """A result for each of `WORK`, from drivers by their number of cores: 1 and 2."""
    return [_line(name, found) for name in WORK]


def _line(name: str, found: Mapping[int, Sequence[Found]]) -> Line:
    walls = {cores: [item.costs[name].wall for item in found[cores]] for cores in found}
    rounds = [ratio(one, two) for one, two in zip(walls[1], walls[2], strict=True)]
    return Line(
        f"{name}, 2 cores",
        "1 core",
        ratio(median(walls[1]), median(walls[2])),
        None,
        unit="times as fast",
        rounds=tuple(item for item in rounds if item is not None),
        detail={"drivers": [_as_json(item) for cores in found for item in found[cores]]},
    )


def _driver(bench: Bench, cores: int) -> Found:
    """Run all of `WORK` in a driver with a number of cores."""
    folder, (small, large) = bench.place("scale"), bench.options.sizes
    (folder / "sources").symlink_to(bench.folder / "sources")
    words = [f"--rows={large}", f"--first={small}", f"--cores={cores}", f"--folder={folder}"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench.scaling", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    drop(folder)
    if ended.returncode:
        message = f"a driver on {cores} cores ended with {ended.returncode}"
        raise SystemFailureError("CAP-BENCH", message, "see its output above")
    actual = json.loads(ended.stdout.strip().rpartition("\n")[2])
    costs = {
        name: Cost(cost["jvm"], cost["python"], cost["wall"])
        for name, cost in actual["costs"].items()
    }
    return Found(actual["cores"], costs, Peaks(**actual["peaks"]))


def _as_json(found: Found) -> dict[str, object]:
    costs = {name: cost.to_json() for name, cost in found.costs.items()}
    return {"cores": found.cores, "costs": costs, "peaks": asdict(found.peaks)}


def work(bench: Bench, cores: int) -> Found:
    """Do all of `WORK` in this driver, and measure it; the first rows are not measured.

    With those the JVM compiles code that all work has in common, which takes as long for few rows.
    """
    dict(_done(bench, bench.options.small))
    costs, worker = {}, 0
    for name, cost in _done(bench, bench.options.large):
        costs[name], worker = cost, max(worker, bench.clock.peak())
        bench.say(f"{cores} cores, {name}: {cost.cpu:.1f} CPU s, {cost.wall:.1f} s")
    return Found(cores, costs, Peaks(bench.clock.peak_of_jvm(), worker))


def _done(bench: Bench, rows: int) -> Iterator[tuple[str, Cost]]:
    """Do each of `WORK` over a number of rows, and yield its cost."""
    spark, lake, name = bench.spark, Lake.at(bench.folder / "lake"), f"{STREAM}_{rows}"
    declared = stream(name, *bench.batches(rows))

    def verified() -> None:
        tape = open_tape(lake, name)
        verify(spark, lake, tape, remember=False).raise_for_violations()

    def replayed() -> None:
        request = Request(name, "replay")
        replay(spark, lake, nothing_declared(bench.folder), request)

    parts: dict[str, Callable[[], None]] = {
        "capture": lambda: bench.captured(lake, declared, rows),
        "verify": verified,
        "replay": replayed,
    }
    for part in WORK:
        bench.tidy()
        yield part, bench.clock.measure(parts[part])
        if part == "capture":
            close(spark, lake, name)
        # The disk has room for only one of the tables.
        drop(Path(lake.table(part)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the work in this driver; the last line of its output is the result, as JSON."""
    parser = argparse.ArgumentParser(prog="scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="rows before the measurement")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("scale"), help="a new folder")
    given = parser.parse_args(arguments)
    # Before Spark starts: its JVM and all child processes get only the cores of this process.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    spark = build_session("capstan-scaling", master=f"local[{given.cores}]")
    try:
        options = Options(given.first, given.rows)

        def say(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        bench = Bench(spark, Clock.of(spark), given.folder.absolute(), options, say)
        result = work(bench, given.cores)
    finally:
        spark.stop()
    print(json.dumps(_as_json(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
