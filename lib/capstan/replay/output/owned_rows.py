"""The rows of a target that runs have put there, as one condition whatever their number.

A condition for each of thousands of runs would cost rows times runs, and nest deeper than Spark
can follow. So what runs cover together is told by its stretches, each found by halving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pyspark.sql.types import StringType, StructType

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_union import RegionStrip, merge_scopes
from capstan.storage.tape.region_sql import any_of

_COMPILED = 50
"""The most conditions that Spark shall compile."""
_TURNS = 20
"""The most turns of two outputs in one table that are told apart."""

Labels = Mapping[str, Mapping[int, str]]
"""What the workers of streams stand for, by number."""


def owned_rows_sql(
    plan: Plan,
    schema: StructType,
    covered: Iterable[Covered],
    labels: Labels | None = None,
    within: Scope | None = None,
) -> str:
    """The condition that a row is one that this output has put there; null where it has no time.

    An output is what a transform, a sink of a pipeline, or nothing, makes of a stream's records.
    What another one has covered since is not known any more.

    Args:
        plan: Whose rows are asked for.
        schema: The target's columns.
        covered: What stands in the target, in the order it was published.
        labels: What the workers of other streams stand for, where that is known.
        within: What is covered beside it is left out; the plan's own workers and times by default.
    """
    parts = _in_turn(plan, _placed(plan, schema, covered, labels or {}, within or plan.scope))
    terms = _Terms(plan, schema)
    known, regions = "false", 0
    for own, strips_ in parts:
        told = any_of([terms.of(strip) for strip in strips_])
        regions += sum(len(strip.regions) for strip in strips_)
        if own:
            known = told if known == "false" else f"({known} OR {told})"
        elif known != "false":
            known = f"({known} AND NOT coalesce({told}, false))"
    if regions <= _COMPILED:
        return known
    # Spark makes no Java of what is in a function of arrays, but evaluates it as it stands: the
    # Java of a thousand conditions takes minutes to compile.
    return f"exists(array(true), one -> {known})"


def _placed(
    plan: Plan, schema: StructType, covered: Iterable[Covered], labels: Labels, within: Scope
) -> Iterator[tuple[bool, Scope]]:
    """What is covered within a scope, and whether by its own output, in the order given."""
    everything = Region(Box.everything(plan.time_type))
    column = plan.layout.worker
    by_label = column is not None and isinstance(schema[column].dataType, StringType)
    for each in covered:
        own, scope = each.output == plan.output, each.scope
        if not plan.tells(scope.region):
            if own:
                continue
            scope = replace(scope, region=everything)
        if not own and by_label:
            scope = replace(scope, workers=_numbers(plan, scope, labels.get(each.stream)))
        if scope.overlaps(within):
            yield own, scope


def _numbers(plan: Plan, scope: Scope, theirs: Mapping[int, str] | None) -> tuple[int, ...] | None:
    """The plan's numbers of the workers that have the labels of another stream's."""
    if scope.workers is None or theirs is None:
        return None
    wanted = {theirs.get(worker) for worker in scope.workers}
    return tuple(worker for worker, label in plan.layout.labels.items() if label in wanted)


def _in_turn(
    plan: Plan, placed: Iterable[tuple[bool, Scope]]
) -> list[tuple[bool, list[RegionStrip]]]:
    """What its own output and what others have covered, in turn, as far as they meet."""
    listed = list(placed)
    mine = [
        Scope(plan.target, None if strip.workers is None else tuple(strip.workers), region)
        for strip in merge_scopes(scope for own, scope in listed if own)
        for region in strip.regions
    ]
    met = [
        (own, scope) for own, scope in listed if own or any(scope.overlaps(each) for each in mine)
    ]
    turns = [
        (own, [scope for _, scope in group])
        for own, group in groupby(met, key=lambda each: each[0])
    ]
    if len(turns) > _TURNS:
        # Each turn is a level of the condition: rather none is known of what others have covered.
        turns = [
            (True, [scope for own, scope in met if own]),
            (False, [scope for own, scope in met if not own]),
        ]
    return [(own, merge_scopes(scopes)) for own, scopes in turns]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Conditions over the columns of a plan's target."""

    plan: Plan
    schema: StructType

    def of(self, strip: RegionStrip) -> str:
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
