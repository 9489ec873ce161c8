"""Fixed cost of a run: seconds, and commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.telemetry import instrumentation
from tests.bench.counters import commits
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import SMALL_STREAM, WORKERS, Bench, nothing_declared
from tests.bench.measures import Line
from tests.bench.replay import lake_with_ledgers
from tests.bench.workloads import nexmark

SECONDS_GOAL, COMMITS_GOAL = 1.2, 3.0


def fixed(bench: Bench) -> list[Line]:
    """The results `fixed cost` and `commits of a run`: replays of one minute of one worker."""
    # Its ledgers record the tape as verified: only the cost of every run remains.
    lake = lake_with_ledgers(bench, "fixed")
    costs: list[Cost] = []
    made: list[int] = []
    # The first replay creates the table, the second is a rehearsal.
    for number in range(bench.options.rounds + 2):
        cost, count = counted(bench, lake, a_minute(number))
        bench.say(f"one minute of one worker: {cost.wall:.1f} s, {count} commits")
        if number > 1:
            costs.append(cost)
            made.append(count)
    walls = tuple(cost.wall for cost in costs)
    detail = {"costs": [cost.to_json() for cost in costs]}
    return [
        Line("fixed cost of a run", "", median(walls), SECONDS_GOAL, "s", None, walls, detail),
        Line("commits of a run", "", float(max(made)), COMMITS_GOAL, "commits"),
    ]


def a_minute(number: int) -> Request:
    """The replay of one minute of one worker of the small stream; `number` selects the minute."""
    minute, worker = divmod(number, WORKERS)
    start = datetime.fromtimestamp(nexmark.START_US // 1_000_000, UTC)
    since = start + timedelta(minutes=minute)
    until = since + timedelta(minutes=1)
    return Request(
        SMALL_STREAM,
        "minutes",
        workers=(str(worker),),
        since=since.isoformat(),
        until=until.isoformat(),
    )


def counted(bench: Bench, lake: Lake, request: Request) -> tuple[Cost, int]:
    """The cost of a replay, and its commits; counts those of staging before its deletion."""
    root, declared = Path(lake.root), nothing_declared(bench.folder)
    before = commits(root)
    seen: set[Path] = set()

    def listen(point: str, _: dict[str, object]) -> None:
        if point == "replay.staging":
            seen.update(commits(root))

    bench.tidy()
    with instrumentation.subscribe(listen):
        cost = bench.clock.measure(lambda: replay(bench.spark, lake, declared, request))
    return cost, len((seen | commits(root)) - before)
