"""Cost of replays and verification, compared with a bare copy of the same records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capstan.core.config import Transform
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import newest_cut, open_tape, read_records
from capstan.verify import verify
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import SMALL_STREAM, STREAM, Bench, drop, nothing_declared, plain_copy
from tests.bench.measures import Line, Side, compared, interleave

REPLAY, TRANSFORM, VERIFY = "replay", "transform", "verify"
COPY = "bare copy"
GOALS = {REPLAY: 1.35, TRANSFORM: None, VERIFY: 0.01}
# Of each record a row, so that nothing is saved where it is sorted for the second computation.
EACH = Transform(
    name="each",
    sql="SELECT _worker, _time.event AS at, auction, bidder, price * 2 AS price FROM records",
    time="at",
    worker="_worker",
)


def replays(bench: Bench, wanted: frozenset[str]) -> list[Line]:
    """The selected ones of the results `replay`, `transform` and `verify`."""
    peaks: dict[tuple[int, int], int] = {}
    sides: dict[str, Side] = {
        name: side for name, side in _sides(bench, peaks).items() if name in wanted or name == COPY
    }
    samples = interleave(sides, bench.options.sizes, bench.options.rounds, bench.tell)
    lines = [compared(samples, name, COPY, GOALS[name]) for name in sides if name != COPY]
    by_size = {
        str(rows): max((peak for (size, _), peak in peaks.items() if size == rows), default=0)
        for rows in bench.options.sizes
    }
    return [
        replace(line, detail={**line.detail, "peak_python_bytes": by_size})
        if line.name == VERIFY
        else line
        for line in lines
    ]


def _sides(bench: Bench, peaks: dict[tuple[int, int], int]) -> dict[str, Side]:
    def copied(rows: int, _: int) -> Cost:
        lake = bench.lake_of_tapes("copy")
        tape = open_tape(lake, f"{STREAM}_{rows}")
        records = read_records(bench.spark, tape, newest_cut(tape))
        return _measured(bench, lake.root, lambda path: plain_copy(records, path))

    def verified(rows: int, number: int) -> Cost:
        lake = bench.lake_of_tapes("verify")
        tape = open_tape(lake, f"{STREAM}_{rows}")
        bench.clock.forget_peaks()

        def work(_: Path) -> None:
            verify(bench.spark, lake, tape, remember=False).raise_for_violations()

        cost = _measured(bench, lake.root, work)
        peaks[rows, number] = bench.clock.peak()
        return cost

    return {
        REPLAY: lambda rows, _: _replayed(bench, rows),
        TRANSFORM: lambda rows, _: _replayed(bench, rows, EACH.name),
        VERIFY: verified,
        COPY: copied,
    }


def _replayed(bench: Bench, rows: int, transform: str | None = None) -> Cost:
    """The cost of a replay into a new table, with its verification and its audit."""
    declared = replace(nothing_declared(bench.folder), transforms={EACH.name: EACH})
    lake = lake_with_ledgers(bench, "replay")
    request = Request(f"{STREAM}_{rows}", "table", transform=transform)
    return _measured(bench, lake.root, lambda _: replay(bench.spark, lake, declared, request))


def lake_with_ledgers(bench: Bench, name: str) -> Lake:
    """A new lake with the tapes, and with ledgers started by a replay of `small`."""
    begun = bench.folder / "ledger"
    if not begun.exists():
        first = bench.lake_of_tapes("first")
        request = Request(SMALL_STREAM, "first")
        replay(bench.spark, first, nothing_declared(bench.folder), request)
        shutil.copytree(Path(first.root) / "ledger", begun)
    lake = bench.lake_of_tapes(name)
    shutil.copytree(begun, Path(lake.root) / "ledger")
    return lake


def _measured(bench: Bench, root: str, work: Callable[[Path], object]) -> Cost:
    bench.tidy()
    cost = bench.clock.measure(lambda: work(Path(root) / "plain"))
    drop(Path(root))
    return cost
