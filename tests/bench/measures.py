"""Results of the benchmark: a measure, its goal, and the underlying figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.cpu_clock import Cost


@dataclass(frozen=True, slots=True)
class Line:
    """One result.

    Attributes:
        name: The benchmark.
        against: The baseline.
        value: The measure; None if the figures do not give one.
        goal: Its upper, or lower, limit; None without a goal.
        unit: Unit of both; empty for a ratio.
        total: Ratio of whole runs at the larger size, including fixed costs.
        rounds: The measure of each round.
        detail: Further figures, as JSON.
        least: Whether the goal is a lower limit.
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
        """Whether the goal is met; None if unknown."""
        if self.value is None or self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal

    def to_json(self) -> dict[str, object]:
        """The result as in the benchmark's file."""
        return {
            "name": self.name,
            "against": self.against,
            "value": _rounded(self.value),
            "unit": self.unit,
            "goal": self.goal,
            "least": self.least,
            "met": self.met,
            "total": _rounded(self.total),
            "rounds": [_rounded(value) for value in self.rounds],
            **self.detail,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """The cost of a side in a round, for a number of rows."""

    side: str
    rows: int
    round: int
    cost: Cost


Side = Callable[[int, int], Cost]
"""A side: does its work for a number of rows in a round, and returns the cost."""


def interleave(
    sides: Mapping[str, Side], sizes: Sequence[int], rounds: int, tell: Callable[[Sample], None]
) -> list[Sample]:
    """Measure all sides alternately, each size in each round; the first round is a rehearsal.

    In the rehearsal the JVM compiles code that the sides have in common, which otherwise only the
    first side would pay for. It uses the smallest size, and is not among the samples.
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
    """The result of two sides: the ratio of their slopes between the sizes, in CPU seconds.

    A slope is the cost of additional rows; the fixed cost of a run is a separate result.
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
                "rounds": [cost.to_json() for cost in _costs(samples, side, rows)],
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
    """`ours` divided by `theirs`; None if `theirs` is zero or negative."""
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
