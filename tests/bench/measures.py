"""The benchmark's lines: a measure, its goal, and the figures that it was told from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.cpu_clock import Cost


@dataclass(frozen=True, slots=True)
class Line:
    """One measure.

    Attributes:
        name: What was measured.
        against: Beside what.
        value: The measure; None where the figures do not give one.
        goal: What it should be at most, or at least; None where nothing is asked.
        unit: Of both; empty for a ratio.
        total: The ratio of whole runs at the larger size, fixed costs included.
        rounds: The measure of each round.
        detail: What else was found, as JSON.
        least: Whether the goal is what it should be at least.
    """

    name: str
    against: str
    value: float | None
    goal: float | None
    unit: str = ""
    total: float | None = None
    rounds: tuple[float, ...] = ()
    detail: Mapping[str, object] = field(default_factory=dict)
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where it cannot be told."""
        if self.value is None or self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal

    def to_json(self) -> dict[str, object]:
        """The line as the benchmark's file has it."""
        return {
            "name": self.name,
            "against": self.against,
            "value": _rounded(self.value),
            "unit": self.unit,
            "goal": self.goal,
            "least": self.least,
            "met": self.met,
            "total": _rounded(self.total),
            "rounds": [_rounded(each) for each in self.rounds],
            **self.detail,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """What a side cost in a round, over so many rows."""

    side: str
    rows: int
    round: int
    cost: Cost


Side = Callable[[int, int], Cost]
"""Does its work over so many rows in that round, and says what it cost."""


def interleave(
    sides: Mapping[str, Side], sizes: Sequence[int], rounds: int, tell: Callable[[Sample], None]
) -> list[Sample]:
    """Measure all sides in turn, each size in each round; the first round is a rehearsal.

    In the rehearsal the JVM compiles what the sides have in common, for which the first one would
    pay alone; it is over the smallest size, and is not among the samples.
    """
    samples = []
    for number in range(rounds + 1):
        for rows in sizes if number else sizes[:1]:
            for name, work in sides.items():
                sample = Sample(name, rows, number, work(rows, number))
                tell(sample)
                if number:
                    samples.append(sample)
    return samples


def compared(samples: Sequence[Sample], ours: str, theirs: str, goal: float | None) -> Line:
    """The line of two sides: the ratio of their slopes between the sizes, in CPU seconds.

    A slope is what further rows cost; a run's fixed cost is a line of its own.
    """
    sizes = sorted({sample.rows for sample in samples})
    small, large = sizes[0], sizes[-1]
    numbers = sorted({sample.round for sample in samples})
    slopes = [
        ratio(_slope(samples, ours, (small, large), n), _slope(samples, theirs, (small, large), n))
        for n in numbers
    ]
    middle = ratio(_slope(samples, ours, (small, large)), _slope(samples, theirs, (small, large)))
    costs = {
        side: {
            str(rows): {
                **_middle(samples, side, rows).to_json(),
                "rounds": [each.to_json() for each in _costs(samples, side, rows)],
            }
            for rows in sizes
        }
        for side in (ours, theirs)
    }
    whole = ratio(_middle(samples, ours, large).cpu, _middle(samples, theirs, large).cpu)
    walls = ratio(_middle(samples, ours, large).wall, _middle(samples, theirs, large).wall)
    return Line(
        name=ours,
        against=theirs,
        value=middle,
        goal=goal,
        total=whole,
        rounds=tuple(slope for slope in slopes if slope is not None),
        detail={"rows": sizes, "wall_total": _rounded(walls), "costs": costs},
    )


def ratio(ours: float, theirs: float) -> float | None:
    """The one by the other; None where the other is nothing that one could be measured by."""
    return ours / theirs if theirs > 0 else None


def _slope(
    samples: Sequence[Sample], side: str, sizes: tuple[int, int], number: int | None = None
) -> float:
    """CPU seconds of the rows between the sizes, in a round or by the middle of all."""
    least, most = (_middle(samples, side, rows, number).cpu for rows in sizes)
    return most - least


def _costs(
    samples: Sequence[Sample], side: str, rows: int, number: int | None = None
) -> list[Cost]:
    return [
        sample.cost
        for sample in samples
        if (sample.side, sample.rows) == (side, rows) and number in (None, sample.round)
    ]


def _middle(samples: Sequence[Sample], side: str, rows: int, number: int | None = None) -> Cost:
    costs = _costs(samples, side, rows, number)
    return Cost(
        median(cost.jvm for cost in costs),
        median(cost.python for cost in costs),
        median(cost.wall for cost in costs),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def rate(
    name: str,
    unit: str,
    count: int,
    costs: Sequence[Cost],
    bare: Sequence[Cost] = (),
    goal: float | None = None,
) -> Line:
    """The line of what one core does in a second.

    Args:
        name: What was measured.
        unit: What is counted.
        count: How many each of `costs` was for.
        costs: What it cost, by round.
        bare: What the bare job beside it cost; `total` is the ratio of both.
        goal: What it should be at least; None where nothing is asked.
    """
    middle = median(cost.cpu for cost in costs)
    beside = median(cost.cpu for cost in bare) if bare else None
    return Line(
        name=name,
        against="" if beside is None else "bare Spark",
        value=count / middle if middle > 0 else None,
        goal=goal,
        unit=unit,
        least=goal is not None,
        total=None if beside is None else ratio(middle, beside),
        rounds=tuple(count / cost.cpu for cost in costs if cost.cpu > 0),
        detail={
            "count": count,
            "cost": [cost.to_json() for cost in costs],
            "bare": [cost.to_json() for cost in bare],
        },
    )
