"""Cost of a capture compared with a plain streaming sink, and the share of reading back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from capstan.storage.lake import Lake
from capstan.telemetry import instrumentation
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import SMALL_BATCHES, SMALL_ROWS, Bench, drop, plain_sink, stream
from tests.bench.measures import Line, compared, interleave

CAPTURE, INDEX_LEFT_OUT, SINK = "capture", "capture without read-back", "plain sink"
WHOLE_GOAL, LEFT_OUT_GOAL = 1.2, 1.15


class Phases:
    """Listener that measures the time between the late rows of a micro-batch and its events.

    This is the read-back of stored rows, and the commit of the index computed from them.
    """

    def __init__(self, read: Callable[[], Cost]) -> None:
        self._read = read
        self._since = Cost()
        self.events: list[Cost] = []

    def __call__(self, point: str, facts: dict[str, object]) -> None:
        """Handle a named point."""
        if point == "capture.late":
            self._since = self._read()
        elif point == "capture.events":
            self.events.append(self._read() - self._since)

    @property
    def total(self) -> Cost:
        """The cost over all micro-batches."""
        return sum(self.events, Cost())


def captures(bench: Bench) -> list[Line]:
    """The results `capture`, `capture without read-back` and `capture, small batches`."""
    small, commit = _small(bench)
    read_back: dict[tuple[int, int], Cost] = {}

    def ours(rows: int, number: int) -> Cost:
        cost, phases = _captured(bench, *bench.batches(rows), rows)
        # The commit of the index is not part of reading back; small batches measure its cost.
        commits = commit.times(len(phases.events))
        read_back[rows, number] = phases.total - commits
        return cost

    samples = interleave(
        {CAPTURE: ours, SINK: lambda rows, _: _sunk(bench, *bench.batches(rows))},
        bench.options.sizes,
        bench.options.rounds,
        bench.tell,
    )
    without = [
        replace(s, side=INDEX_LEFT_OUT, cost=s.cost - read_back[s.rows, s.round])
        if s.side == CAPTURE
        else s
        for s in samples
    ]
    return [
        compared(samples, CAPTURE, SINK, WHOLE_GOAL),
        compared(without, INDEX_LEFT_OUT, SINK, LEFT_OUT_GOAL),
        small,
    ]


def _small(bench: Bench) -> tuple[Line, Cost]:
    """Small micro-batches on both sides; and the cost of the index commit in one of them."""
    rows, ratios, commits = SMALL_ROWS * SMALL_BATCHES, [], []
    costs: dict[str, list[dict[str, float]]] = {CAPTURE: [], SINK: []}
    for number in range(bench.options.rounds + 1):
        ours, phases = _captured(bench, *bench.small_batches(), rows)
        theirs = _sunk(bench, *bench.small_batches())
        bench.say(f"{SMALL_BATCHES} small batches: {ours.cpu:.1f} and {theirs.cpu:.1f} CPU s")
        if number:
            ratios.append(ours.cpu / theirs.cpu)
            # Not the first micro-batch of a stream: it has more to plan.
            commits += phases.events[1:]
            costs[CAPTURE].append(ours.times(1 / SMALL_BATCHES).to_json())
            costs[SINK].append(theirs.times(1 / SMALL_BATCHES).to_json())
    middle = Cost(
        median(cost.jvm for cost in commits),
        median(cost.python for cost in commits),
        median(cost.wall for cost in commits),
    )
    line = Line(
        name=f"capture, batches of {SMALL_ROWS:,}",
        against=SINK,
        value=median(ratios),
        goal=None,
        rounds=tuple(ratios),
        detail={"rows": [rows], "per_batch": costs, "index_commit": middle.to_json()},
    )
    return line, middle


def _captured(bench: Bench, source: Path, files: int, rows: int) -> tuple[Cost, Phases]:
    lake = Lake.at(bench.place("capture"))
    phases = Phases(bench.clock.read)
    bench.tidy()
    with instrumentation.subscribe(phases):
        cost = bench.clock.measure(
            lambda: bench.captured(lake, stream("bids", source, files), rows)
        )
    drop(Path(lake.root))
    return cost, phases


def _sunk(bench: Bench, source: Path, files: int) -> Cost:
    place = bench.place("sink")
    bench.tidy()
    cost = bench.clock.measure(lambda: plain_sink(bench, source, files, place / "table"))
    drop(place)
    return cost
