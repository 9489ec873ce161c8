"""The rows of a target that runs have put there, as one condition whatever their number.

A condition for each of thousands of runs would cost rows times runs, and nest deeper than Spark
can follow. So what runs cover together is told by its stretches, each found by halving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from capstan.ledger.coverage import Covered
from capstan.ledger.uniting import Strip, strips
from capstan.replay.plan import Plan
from capstan.times import Box
from capstan.times.region import Region

_COMPILED = 50
"""The most conditions that Spark shall compile."""


def known_sql(plan: Plan, schema: StructType, covered: Iterable[Covered]) -> str:
    """The condition that a row is one that a run has covered; null where a row has no time.

    Args:
        plan: Whose rows are asked for: what is covered beside them is left out.
        schema: The target's columns.
        covered: What stands in the target, in the order it was published.
    """
    met = (
        each.scope
        for each in covered
        if plan.tells(each.scope.region) and each.scope.meets(plan.scope)
    )
    terms, told = _Terms(plan, schema), strips(met)
    known = _any_of([terms.of(strip) for strip in told])
    if sum(len(strip.regions) for strip in told) <= _COMPILED:
        return known
    # Spark makes no Java of what is in a function of arrays, but evaluates it as it stands: the
    # Java of a thousand conditions takes minutes to compile.
    return f"exists(array(true), one -> {known})"


@dataclass(frozen=True, slots=True)
class _Terms:
    """Conditions over the columns of a plan's target."""

    plan: Plan
    schema: StructType

    def of(self, strip: Strip) -> str:
        """That a row lies in a strip."""
        times = self._among(strip.regions)
        if strip.workers is None:
            return times
        plan = self.plan
        whose = replace(plan.layout, time=None).predicate(
            self.schema, plan.time_type, strip.workers, strip.regions[0]
        )
        return f"({whose} AND {times})"

    def _among(self, regions: Sequence[Region]) -> str:
        """That a time lies in one of these regions, which are in order: asked half by half."""
        if len(regions) == 1:
            return f"({self._inside(regions[0])})"
        half = len(regions) // 2
        until = regions[half].box.since
        before = Region(Box((None,) * len(until), (*((None,) * (len(until) - 1)), until[-1])))
        left, right = self._among(regions[:half]), self._among(regions[half:])
        return f"if({self._inside(before)}, {left}, {right})"

    def _inside(self, region: Region) -> str:
        plan = self.plan
        return plan.layout.predicate(self.schema, plan.time_type, None, region)


def _any_of(conditions: Sequence[str]) -> str:
    """One of some conditions holds, nested no deeper than the logarithm of their number."""
    if not conditions:
        return "false"
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"({_any_of(conditions[:half])} OR {_any_of(conditions[half:])})"
