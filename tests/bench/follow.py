"""Cost of following: the same new rows, on two tapes of very different length."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.errors import SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from tests.bench.counters import Watch
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench, lay, nothing_declared, stream
from tests.bench.measures import Line, ratio
from tests.bench.workloads import nexmark

if TYPE_CHECKING:
    from pyspark.sql import Column

NAME, GOAL = "followed", 1.05
BATCHES = 4
"""Micro-batches of the shorter tape before new rows arrive."""

PARTS = 100
"""New rows are one of this many parts of the shorter tape."""

PACE = 1
"""Events per second: a thousand bids are 18 minutes, so each part completes some times."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A growing tape, followed into a table.

    Attributes:
        bench: The bench.
        lake: Its lake.
        times: Length of the tape before new rows arrive, as a multiple.
        part: Number of new rows each time.
    """

    bench: Bench
    lake: Lake
    times: int
    part: int

    def begin(self) -> None:
        """Capture the old rows, and play them."""
        self.bench.say(f"capturing and playing {self._old:,} bids before following")
        files = BATCHES * self.times
        self._lay(0, self._old, files)
        # One file per micro-batch: the longer tape has more of both.
        self._capture(self._old)
        self._follow()

    def grow(self, number: int) -> tuple[Cost, int]:
        """Capture the next part, and follow it; returns the cost, and the number of files read."""
        known = self._old + number * self.part
        self._lay(known, self.part, 1)
        self._capture(self.part)
        self.bench.tidy()
        with Watch(self.bench.spark) as watch:
            cost = self.bench.clock.measure(self._follow)
        records = watch.scans(self.lake.stream(NAME).records)
        return cost, sum(scan.files for scan in records)

    @property
    def _old(self) -> int:
        return PARTS * self.times * self.part

    @property
    def _source(self) -> Path:
        return Path(self.lake.root) / "source"

    def _lay(self, known: int, rows: int, files: int) -> None:
        bids = nexmark.bids(
            self.bench.spark, known + rows, events_per_second=PACE, partitions=files
        )
        lay(bids.where(F.col("dateTime") >= _moment(known)), self._source)

    def _capture(self, rows: int) -> None:
        declared = stream(NAME, self._source, 1, timedelta(minutes=10))
        self.bench.captured(self.lake, declared, rows)

    def _follow(self) -> None:
        request = Request(NAME, "copy", follow="bench")
        outcome = replay(self.bench.spark, self.lake, nothing_declared(self.bench.folder), request)
        if outcome.unchanged:
            raise SystemFailureError(
                "CAP-BENCH", "no time became complete to follow", "give more rows"
            )


def follow(bench: Bench) -> list[Line]:
    """The results `follow` and `files read by a follow`."""
    part = max(1_000, bench.options.small // 500)
    times = (1, bench.options.longer)
    tapes = {
        factor: Followed(bench, Lake.at(bench.place("follow")), factor, part) for factor in times
    }
    for tape in tapes.values():
        tape.begin()
    costs: dict[int, list[Cost]] = {factor: [] for factor in times}
    files: dict[int, list[int]] = {factor: [] for factor in times}
    for number in range(bench.options.rounds + 1):
        for factor, tape in tapes.items():
            cost, read = tape.grow(number)
            bench.say(
                f"following {part:,} new on a tape x{factor}: {cost.cpu:.1f} CPU s, {read} files"
            )
            # In the first round, the first tape would pay for work that both have in common.
            if number:
                costs[factor].append(cost)
                files[factor].append(read)
    return _lines(times, part, costs, files)


def _lines(
    times: tuple[int, int], part: int, costs: dict[int, list[Cost]], files: dict[int, list[int]]
) -> list[Line]:
    short, long = times
    pairs = zip(costs[long], costs[short], strict=True)
    middle = ratio(*(median(cost.cpu for cost in costs[factor]) for factor in (long, short)))
    wall = ratio(*(median(cost.wall for cost in costs[factor]) for factor in (long, short)))
    detail: dict[str, object] = {
        "new_rows": part,
        "wall_total": None if wall is None else round(wall, 4),
        "costs": {f"x{factor}": [cost.to_json() for cost in costs[factor]] for factor in times},
    }
    rounds = tuple(a.cpu / b.cpu for a, b in pairs)
    more = max(a - b for a, b in zip(files[long], files[short], strict=True))
    read = {"files": {f"x{factor}": files[factor] for factor in times}}
    against = f"a tape x{short}"
    return [
        Line(f"follow, tape x{long}", against, middle, GOAL, rounds=rounds, detail=detail),
        Line("more files read by a follow", against, float(more), 0.0, "files", detail=read),
    ]


def _moment(row: int) -> Column:
    """The event time of the `row`-th bid, counted from 0."""
    turn, place = divmod(row, nexmark.BIDS)
    event = turn * nexmark.ROUND + nexmark.PEOPLE + nexmark.AUCTIONS + place
    return F.timestamp_micros(F.lit(nexmark.START_US + event * 1_000_000 // PACE))
