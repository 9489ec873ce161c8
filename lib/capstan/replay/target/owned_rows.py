"""A SQL condition for the rows that runs have written, of a size independent of their number.

A condition per run would cost rows times runs for thousands of runs, and nest too deeply for Spark.
So the union of the covered regions is cut into contiguous strips, found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from pyspark.sql.types import StringType, StructType

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.target_layout import column_type
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_union import RegionStrip, merge_scopes
from capstan.storage.tape.region_sql import any_of

_COMPILED = 50
"""The most conditions that are left to Spark's code generation."""
_ALTERNATIONS = 20
"""The most alternations of two outputs in one table that are distinguished."""

Labels = Mapping[str, Mapping[int, str]]
"""Worker labels by number, by stream."""


def owned_rows_sql(
    plan: Plan,
    schema: StructType,
    covered: Iterable[Covered],
    labels: Labels | None = None,
    within: Scope | None = None,
) -> str:
    """The condition that this output has written a row; null for a row without a time.

    Rows that another output has covered since no longer count. Runs are in the order in which
    they were published; labels of other streams are those that are known.
    """
    parts = _in_turn(plan, _placed(plan, schema, covered, labels or {}, within or plan.scope))
    owned, regions = "false", 0
    for is_own, strips in parts:
        term = any_of([_inside(plan, schema, strip) for strip in strips])
        regions += sum(len(strip.regions) for strip in strips)
        if is_own:
            owned = term if owned == "false" else f"({owned} OR {term})"
        elif owned != "false":
            owned = f"({owned} AND NOT coalesce({term}, false))"
    if regions <= _COMPILED:
        return owned
    # Spark interprets a lambda over an array instead of generating Java for it. The Java of a
    # thousand conditions would take minutes to compile.
    return f"exists(array(true), one -> {owned})"


def _placed(
    plan: Plan, schema: StructType, covered: Iterable[Covered], labels: Labels, within: Scope
) -> Iterator[tuple[bool, Scope]]:
    """Covered scopes within a scope, in order, each with whether its output is the plan's."""
    everything = Region(Box.everything(plan.time_type))
    column = plan.layout.worker
    by_label = column is not None and isinstance(column_type(schema, column), StringType)
    for entry in covered:
        is_own, scope = entry.output == plan.output, entry.scope
        if not scope.region.is_in(plan.time_type):
            if is_own:
                continue
            scope = replace(scope, region=everything)
        workers = workers_here(plan, entry, labels, by_label=by_label)
        scope = replace(scope, workers=workers)
        if scope.overlaps(within):
            yield is_own, scope


def workers_here(
    plan: Plan, covered: Covered, labels: Labels, *, by_label: bool
) -> tuple[int, ...] | None:
    """The workers of a run in a plan's target, by the plan's numbers; None for all."""
    # A target that keeps labels may have a worker of another stream in common.
    workers = covered.scope.workers
    if covered.stream == plan.request.stream or not by_label:
        return workers
    known = labels.get(covered.stream)
    if workers is None or known is None:
        return None
    wanted = {known.get(worker) for worker in workers}
    return tuple(worker for worker, label in plan.layout.labels.items() if label in wanted)


def _in_turn(
    plan: Plan, placed: Iterable[tuple[bool, Scope]]
) -> list[tuple[bool, list[RegionStrip]]]:
    """Strips covered by the plan's output and by others, alternating, as far as they overlap."""
    scopes = list(placed)
    owned = [
        Scope(plan.target, None if strip.workers is None else tuple(strip.workers), region)
        for strip in merge_scopes(scope for is_own, scope in scopes if is_own)
        for region in strip.regions
    ]
    met = [
        (is_own, scope)
        for is_own, scope in scopes
        if is_own or any(scope.overlaps(other) for other in owned)
    ]
    turns = [
        (is_own, [scope for _, scope in group])
        for is_own, group in groupby(met, key=lambda turn: turn[0])
    ]
    if len(turns) > _ALTERNATIONS:
        # Each turn nests the condition deeper. Without the order, no row that others have covered
        # counts as owned.
        turns = [
            (True, [scope for is_own, scope in met if is_own]),
            (False, [scope for is_own, scope in met if not is_own]),
        ]
    return [(is_own, merge_scopes(group)) for is_own, group in turns]


def _inside(plan: Plan, schema: StructType, strip: RegionStrip) -> str:
    """The condition that a row of a plan's target lies in a strip."""
    times = _among(plan, schema, strip.regions)
    if strip.workers is None:
        return times
    by_worker = replace(plan.layout, time=None)
    workers = by_worker.predicate(schema, plan.time_type, strip.workers, strip.regions[0])
    return f"({workers} AND {times})"


def _among(plan: Plan, schema: StructType, regions: Sequence[Region]) -> str:
    """The condition that a time lies in one of these ordered regions, found by bisection."""
    if len(regions) == 1:
        return f"({plan.layout.predicate(schema, plan.time_type, None, regions[0])})"
    half = len(regions) // 2
    box = regions[half].box
    nothing = (None,) * (len(box.since) - 1)
    # Of pairs, the regions differ in their bounds as a whole, else in the last coordinate.
    until = box.since if box.order.lexicographic else (*nothing, box.since[-1])
    before = Region(replace(box, since=(None, *nothing), until=until))
    left, right = (_among(plan, schema, part) for part in (regions[:half], regions[half:]))
    return f"if({plan.layout.predicate(schema, plan.time_type, None, before)}, {left}, {right})"
