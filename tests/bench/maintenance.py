"""Cost of maintenance, the bytes it rewrites, and the reads of one-worker replays after it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median

from capstan.capture.run import close
from capstan.core.config import ByKey
from capstan.maintenance.run import MaintenanceResult, maintain
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from tests.bench.counters import Watch
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench, drop, nothing_declared, stream
from tests.bench.measures import Line, ratio

NAME = "kept_up"
WORKERS, CHOSEN = 16, "5"
READ_GOAL, BUDGET = 1 / 12, 1.2


def maintains(bench: Bench) -> list[Line]:
    """The results `replay of 1 worker of 16`, `maintenance` and `rewritten bytes`."""
    rows = bench.options.large
    home = _captured(bench, rows)
    unkept = _copied(bench, home)
    before = _read(bench, unkept)
    drop(Path(unkept.root))
    costs: list[Cost] = []
    for number in range(bench.options.rounds + 1):
        lake = _copied(bench, home)
        results: list[MaintenanceResult] = []
        bench.tidy()
        cost = bench.clock.measure(
            lambda: results.append(maintain(bench.spark, lake, [NAME]))  # noqa: B023
        )
        bench.say(f"maintaining {rows:,} bids: {cost.cpu:.1f} CPU s, {cost.wall:.1f} s")
        # The first round pays for the JVM's compilation.
        costs += [cost] if number else []
        if number < bench.options.rounds:
            drop(Path(lake.root))
    again = maintain(bench.spark, lake, [NAME]).to_json()["rewritten"]
    after = _read(bench, lake)
    return _lines(rows, results[0], int(str(again)), costs, before, after)


def _captured(bench: Bench, rows: int) -> Lake:
    """A closed tape of bids, with sixteen workers."""
    lake = Lake.at(bench.place("maintain"))
    bench.say(f"capturing {rows:,} bids of {WORKERS} workers")
    declared = replace(stream(NAME, *bench.batches(rows)), workers=ByKey(("auction",), WORKERS))
    bench.captured(lake, declared, rows)
    close(bench.spark, lake, NAME)
    return lake


def _copied(bench: Bench, home: Lake) -> Lake:
    lake = Lake.at(bench.place("maintained"))
    shutil.copytree(home.root, lake.root, dirs_exist_ok=True)
    return lake


def _read(bench: Bench, lake: Lake) -> dict[str, int]:
    """Bytes of records read by a replay of all workers, and by one of a single worker."""
    sizes = {}
    for name, workers in (("all", None), ("one", (CHOSEN,))):
        request = Request(NAME, name, workers=workers)
        with Watch(bench.spark) as watch:
            replay(bench.spark, lake, nothing_declared(bench.folder), request)
        scans = watch.scans(lake.stream(NAME).records)
        sizes[name] = sum(scan.bytes for scan in scans)
    return sizes


def _lines(
    rows: int,
    done: MaintenanceResult,
    again: int,
    costs: list[Cost],
    before: dict[str, int],
    after: dict[str, int],
) -> list[Line]:
    records = next(table for table in done.tables[NAME] if table.table == "records")
    tape = sum(table.bytes for table in done.tables[NAME])
    rewritten = sum(table.rewritten for table in done.tables[NAME])
    million = rows / 1_000_000
    detail: dict[str, object] = {
        "before": before,
        "after": after,
        "ratio_before": ratio(before["one"], before["all"]),
        "files_before": records.files_before,
        "files": records.files,
        "mean_file_bytes": records.bytes // max(1, records.files),
    }
    rounds = tuple(cost.cpu / million for cost in costs)
    return [
        Line(
            f"replay of 1 worker of {WORKERS}: bytes read",
            "replay of all",
            ratio(after["one"], after["all"]),
            READ_GOAL,
            detail=detail,
        ),
        Line(
            "maintenance of a million records",
            "",
            median(rounds),
            None,
            "CPU s",
            rounds=rounds,
            detail={"rows": rows, "costs": {"maintain": {str(rows): _middle(costs)}}},
        ),
        Line(
            "bytes written anew",
            "bytes of the tape",
            ratio(rewritten, tape),
            BUDGET,
            detail={"rewritten": rewritten, "tape": tape, "a_second_time": again},
        ),
    ]


def _middle(costs: list[Cost]) -> dict[str, object]:
    middle = sorted(costs, key=lambda cost: cost.cpu)[len(costs) // 2]
    return {**middle.to_json(), "rounds": [cost.to_json() for cost in costs]}
