"""Cost of a backfill in one job, compared with one replay of everything, and with a job each.

By default a backfill makes one run of adjoining intervals, which is the same work as one replay
over them. The goal applies to one run per interval, in one job: its cost above a single run is
mostly the files and the commit of each run, as all of them share their Spark jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

from capstan.backfill.planner import BackfillRequest
from capstan.capture.run import close
from capstan.core.config import ProjectConfig, Replay
from capstan.errors import SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.lake import Lake
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import FILES, Bench, drop, lay, stream
from tests.bench.measures import Line, ratio
from tests.bench.submit import submitted
from tests.bench.workloads import nexmark
from tests.support.contexts import backfill

GOAL: Final = 1.3
"""Goal for one run per interval, as a ratio to one run over everything."""
INTERVALS: Final = 30
"""Number of intervals, one hour each; fewer if there are too few bids."""
JOBS: Final = 3
"""Number of jobs with one interval that are run, from which the cost of all is extrapolated."""
_NAME: Final = "hours"
_DECLARED: Final = """
streams:
  {name}:
    source: {{format: parquet, path: "{{lake}}/source", schema: "auction BIGINT"}}
    workers: {{by: key, columns: [auction], count: 1}}
    time: {{domain: event, column: auction, every: 1 second, lateness: 1 second}}
replays:
  {name}: {{stream: {name}, target: together, since: {since}, until: {until}}}
"""
_WHOLE, _STRETCH, _EACH = "one run over all", "one run a stretch", "a run each"


def backfills(bench: Bench) -> list[Line]:
    """The results of a backfill with a run per interval, of a default one, and of a job each."""
    folder = bench.place("backfills")
    lake = Lake.at(folder / "lake")
    hours = _captured(bench, lake)
    sides: dict[str, Callable[[int], int]] = {
        _WHOLE: lambda number: _replayed(bench, lake, hours, number),
        _STRETCH: lambda number: _filled(bench, lake, hours, number, None),
        _EACH: lambda number: _filled(bench, lake, hours, number, 1),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    # The first round is a rehearsal.
    for number in range(bench.options.rounds + 1):
        rows = set()
        for name, side in sides.items():
            cost, wrote = _measured(bench, side, number)
            bench.say(f"{hours} intervals, {name}: {cost.cpu:.1f} CPU s, {cost.wall:.1f} s")
            rows.add(wrote)
            if number:
                costs[name].append(cost)
        if len(rows) != 1:
            raise SystemFailureError(
                "CAP-BENCH", f"the sides wrote different rows: {rows}", "report this"
            )
    alone = _apart(bench, folder, hours)
    drop(folder)
    return [
        _line("backfill, a run for each interval", hours, _EACH, costs, GOAL),
        _line("backfill, one run as they adjoin", hours, _STRETCH, costs, None),
        alone,
    ]


def _measured(bench: Bench, side: Callable[[int], int], number: int) -> tuple[Cost, int]:
    """The cost of a side in a round, and the number of rows written."""
    rows: list[int] = []
    bench.tidy()
    return bench.clock.measure(lambda: rows.append(side(number))), rows[0]


def _captured(bench: Bench, lake: Lake) -> int:
    """Capture a stream of several hours; returns their number."""
    rows = bench.options.small
    events = rows * nexmark.ROUND // nexmark.BIDS
    pace = max(1, events // (INTERVALS * 3600))
    hours = min(INTERVALS, events // (pace * 3600))
    if hours < 2:
        raise SystemFailureError(
            "CAP-BENCH", f"{rows} bids do not cover two hours", "give more rows"
        )
    bench.say(f"capturing {rows:,} bids of {hours} hours for backfills")
    source = Path(lake.root) / "source"
    lay(nexmark.bids(bench.spark, rows, events_per_second=pace, partitions=FILES), source)
    bench.captured(lake, stream(_NAME, source, FILES), rows)
    close(bench.spark, lake, _NAME)
    return hours


def _apart(bench: Bench, folder: Path, hours: int) -> Line:
    """One job that backfills all intervals, by default settings, and a job for each of them.

    Only `JOBS` of the latter are run, at intervals that do not adjoin; their median is multiplied.
    All jobs are submitted as the DAGs do it, including the start of their JVMs.
    """
    since, until = _bounds(hours)
    declared = _declared(folder, since, until)
    request: dict[str, object] = {"replay": _NAME, "every": "1 hour"}
    one = submitted(folder, "backfill", request, declared)
    costs = []
    for number in range(JOBS):
        begin = since + timedelta(hours=number * hours // JOBS)
        part = {"since": begin.isoformat(), "until": (begin + timedelta(hours=1)).isoformat()}
        single = {"stream": _NAME, "into": "alone", **part}
        costs.append(submitted(folder, "replay", single, declared))
        bench.say(f"a job for one interval: {costs[-1].cpu:.1f} CPU s, {costs[-1].wall:.1f} s")
    cpu, wall = (median(getattr(cost, name) for cost in costs) * hours for name in ("cpu", "wall"))
    bench.say(f"one job for {hours}: {one.cpu:.1f} CPU s, {one.wall:.1f} s")
    detail: dict[str, object] = {
        "apps_measured": JOBS,
        "wall_total": round(one.wall / wall, 4),
        "costs": {"one app": [one.to_json()], "an app costs": [cost.to_json() for cost in costs]},
    }
    against = f"one app for each of {hours}, extrapolated from {JOBS}"
    return Line("backfill, one app", against, one.cpu / cpu, None, detail=detail)


def _declared(folder: Path, since: datetime, until: datetime) -> Path:
    """The declarations of the jobs; they use only the name of the stream, as it is on tape."""
    path = folder / "streams.yaml"
    bounds = {"since": since.isoformat(), "until": until.isoformat()}
    path.write_text(_DECLARED.format(name=_NAME, **bounds), encoding="utf-8")
    return path


def _bounds(hours: int) -> tuple[datetime, datetime]:
    start = datetime.fromtimestamp(nexmark.START_US // 1_000_000, UTC)
    return start, start + timedelta(hours=hours)


def _replayed(bench: Bench, lake: Lake, hours: int, number: int) -> int:
    """Replay everything in one run; returns the number of rows written."""
    since, until = (bound.isoformat() for bound in _bounds(hours))
    declared = ProjectConfig(bench.folder / "streams.yaml", {}, {}, {}, {})
    request = Request(_NAME, f"whole_{number}", since=since, until=until)
    replay(bench.spark, lake, declared, request)
    return _rows(lake, request.into)


def _filled(bench: Bench, lake: Lake, hours: int, number: int, chunk: int | None) -> int:
    """Backfill all intervals; returns the number of rows written."""
    since, until = _bounds(hours)
    target = f"filled_{number}_{chunk or 'all'}"
    declared = Replay(name=_NAME, stream=_NAME, target=target, since=since, until=until)
    declarations = ProjectConfig(bench.folder / "streams.yaml", {}, {}, {}, {_NAME: declared})
    request = BackfillRequest(_NAME, every="1 hour", chunk=chunk)
    result = backfill(bench.spark, lake, declarations, request)
    if result.error is not None:
        raise result.error
    if len(result.survey.intervals) != hours:
        wrong = f"{len(result.survey.intervals)} intervals in {hours} hours"
        raise SystemFailureError("CAP-BENCH", wrong, "report this")
    return _rows(lake, target)


def _rows(lake: Lake, target: str) -> int:
    return int(rows_of(lake.table(target)).count_rows())


def _line(
    name: str, hours: int, side: str, costs: dict[str, list[Cost]], goal: float | None
) -> Line:
    middles = {s: median(cost.cpu for cost in measured) for s, measured in costs.items()}
    walls = {s: median(cost.wall for cost in measured) for s, measured in costs.items()}
    wall = ratio(walls[side], walls[_WHOLE])
    detail: dict[str, object] = {
        "intervals": hours,
        "wall_total": None if wall is None else round(wall, 4),
        "costs": {s: [cost.to_json() for cost in costs[s]] for s in (side, _WHOLE)},
    }
    rounds = tuple(a.cpu / b.cpu for a, b in zip(costs[side], costs[_WHOLE], strict=False))
    value = ratio(middles[side], middles[_WHOLE])
    against = f"{_WHOLE} {hours}"
    return Line(name, against, value, goal, rounds=rounds, detail=detail)
