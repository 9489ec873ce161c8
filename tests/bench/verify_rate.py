"""Events checked per second: by the reference, by the pure checker, and on Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from capstan.core.protocol import Progress, StreamChecker
from capstan.core.times import TimeType
from capstan.storage.lake import Lake
from capstan.verify import verify
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import WORKERS, Bench
from tests.bench.measures import Line, rate
from tests.support.long_tape import PRODUCT, TOTAL, long_tape
from tests.support.reference_checker import check

_TIMES: Final = 10
"""Number of events, as a multiple of the rows of the smaller size: ten million."""
_TENTH: Final = 10
"""Share for the reference, which states the rules one by one: a tenth of the smaller size."""
_ORDERS: Final = {"total order": TOTAL, "product order": PRODUCT}


def judging(bench: Bench) -> list[Line]:
    """The results `events judged`, for both orders; by the reference, the checker and Spark."""
    lines = []
    for order, time_type in _ORDERS.items():
        count = bench.options.small
        few = count // _TENTH
        reference = [_reference(bench, time_type, few) for _ in range(bench.options.rounds)]
        pure = [_pure(bench, time_type, count) for _ in range(bench.options.rounds)]
        spark = _on_spark(bench, time_type)
        lines.append(rate(f"judge, reference, {order}", "events/s", few, reference))
        lines.append(rate(f"judge, {order}", "events/s", count, pure))
        lines.append(rate(f"judge on Spark, {order}", "events/s", _TIMES * count, spark))
    return lines


def _on_spark(bench: Bench, time_type: TimeType) -> list[Cost]:
    """The cost of verifying ten times as many events, by round."""
    total = _TIMES * bench.options.small
    lake = Lake.at(bench.place("judging"))
    bench.say(f"laying down {total:,} events")
    events = total // WORKERS
    tape = long_tape(bench.spark, lake, "long", time_type, workers=WORKERS, events=events)

    def work() -> None:
        verify(bench.spark, lake, tape, remember=False).raise_for_violations()

    costs = []
    for _ in range(bench.options.rounds):
        bench.tidy()
        costs.append(bench.clock.measure(work))
        bench.say(f"{total:,} events judged: {costs[-1].cpu:.1f} CPU s")
    shutil.rmtree(Path(lake.root))
    return costs


def _pure(bench: Bench, time_type: TimeType, events: int) -> Cost:
    judge = StreamChecker(time_type.minimum)
    moves = list(_moves(time_type, events))

    def work() -> None:
        for move in moves:
            assert judge.progress(move) is None

    return bench.clock.measure(work)


def _reference(bench: Bench, time_type: TimeType, events: int) -> Cost:
    items = [Progress.of(move) for move in _moves(time_type, events)]

    def work() -> None:
        assert check(items, time_type.minimum).valid

    return bench.clock.measure(work)


def _moves(time_type: TimeType, events: int) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """The updates of each event, as in `long_tape`."""
    if time_type == TOTAL:
        for n in range(events):
            yield [((n,), -1), ((n + 1,), 1)]
        return
    yield [((1, events), 1)]
    for n in range(1, events):
        yield [((n, events - n + 1), -1), ((n + 1, events - n), 1)]
