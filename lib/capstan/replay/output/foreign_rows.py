"""Rows of a target that are not the replay's own: counted, and replaced only if it adopts them.

Rows belong to an output: what a transform, a sink of a pipeline, or a copy makes of a stream.
`coverage` tells which output last covered which workers and times of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from capstan.core.config import Mode
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.output.file_bounds import region_of, workers_of
from capstan.replay.output.owned_rows import owned_rows_sql
from capstan.replay.output.row_restore import rows_with_keys
from capstan.replay.output.target_table import predicate, require_placed
from capstan.replay.planning.plan import Plan
from capstan.storage import delta
from capstan.storage.data_files import is_empty
from capstan.storage.lake import is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_union import RegionStrip, merge_scopes
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def require_own_rows(spark: SparkSession, plan: Plan) -> None:
    """Check that a replay replaces or merges no foreign row before it plays, where that is known.

    A merge into a target that keeps times is checked by `require_own_keys`, once it has rows.

    Args:
        spark: The session.
        plan: The replay.

    Raises:
        InvalidRequestError: `CAP-ADOPT`, with the number of foreign rows and the runs of other
            outputs; `CAP-TARGET-SCHEMA` when the table lacks the column of the worker or the time.
    """
    if plan.request.mode is Mode.MERGE and plan.layout.time is not None:
        return
    count = 0 if plan.request.adopt else foreign_rows(spark, plan)
    if count:
        raise _foreign(plan, count, f"has {count} rows in the range")


def require_own_keys(plan: Plan, rows: DataFrame) -> None:
    """Check that a merge matches no foreign row by its key.

    Args:
        plan: The replay; of other modes than `merge` nothing is checked.
        rows: What it will merge, staged.

    Raises:
        InvalidRequestError: `CAP-ADOPT`, with the number of foreign rows and the runs of other
            outputs.
    """
    if plan.request.mode is not Mode.MERGE or plan.layout.time is None or plan.request.adopt:
        return
    count = foreign_rows(rows.sparkSession, plan, rows)
    if count:
        raise _foreign(plan, count, f"has {count} rows with keys of this replay")


def foreign_rows(spark: SparkSession, plan: Plan, rows: DataFrame | None = None) -> int:
    """How many rows a replay would replace or merge over that its own output has not put there.

    Args:
        spark: The session.
        plan: The replay; one of mode `append` replaces none.
        rows: What it will merge. Without them, and in a target without times, where old and new
            rows cannot be told apart by their place, all foreign rows count.
    """
    if plan.request.mode is Mode.APPEND or not is_table(plan.target) or is_empty(plan.target):
        return 0
    merges = plan.request.mode is Mode.MERGE
    within = plan.whole if merges else plan.scope
    there = delta.load(spark, plan.target)
    require_placed(plan, there.schema)
    covered = coverage.current(plan.lake, plan.target)
    if _are_all_own(plan, covered, within):
        return 0
    known = owned_rows_sql(plan, there.schema, covered, _labels(plan, covered), within)
    foreign = there.where(f"NOT coalesce({known}, false)")
    if not merges:
        foreign = foreign.where(predicate(plan, there.schema))
    elif rows is not None and plan.layout.time is not None:
        foreign = rows_with_keys(foreign, rows, plan.keys)
    return foreign.count()


def _are_all_own(plan: Plan, covered: Sequence[Covered], within: Scope) -> bool:
    """Whether the bounds of the target's files tell that all rows within a scope are its own."""
    if any(each.output != plan.output or not plan.tells(each.scope.region) for each in covered):
        return False
    own = merge_scopes(each.scope for each in covered)
    for bounds in pa.table(delta.open_table(plan.target).get_add_actions(flatten=True)).to_pylist():
        workers = workers_of(plan, bounds)
        numbers = None if workers is None else tuple(workers)
        file = Scope(plan.target, numbers, region_of(plan, bounds))
        if file.overlaps(within) and not any(_holds(strip, file) for strip in own):
            return False
    return True


def _holds(strip: RegionStrip, file: Scope) -> bool:
    """Whether all rows of a file lie in a strip."""
    if strip.workers is not None and not (file.workers and set(file.workers) <= strip.workers):
        return False
    boxes = [region.box for region in map(Region.simplified, strip.regions) if _is_plain(region)]
    return any(box.intersect(file.region.box) == file.region.box for box in boxes)


def _is_plain(region: Region) -> bool:
    return region.above is None and (region.below is None or not region.below.elements)


def _foreign(plan: Plan, count: int, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-ADOPT",
        f"target {plan.request.into} {what} that no replay of this output put there{_others(plan)}",
        "look at them, then replace them with --adopt",
        target=plan.target,
        rows=count,
    )


def _labels(plan: Plan, covered: Iterable[Covered]) -> dict[str, Mapping[int, str]]:
    """What the workers of the other streams stand for that have rows in the target."""
    found: dict[str, Mapping[int, str]] = {}
    for stream in {each.stream for each in covered} - {plan.tape.name}:
        with suppress(InvalidRequestError):
            tape = open_tape(plan.lake, stream)
            found[stream] = index.worker_labels(tape, newest_cut(tape))
    return found


def _others(plan: Plan) -> str:
    """The runs of other outputs that have covered some of the range, as part of a sentence."""
    within = plan.whole if plan.request.mode is Mode.MERGE else plan.scope
    covered = coverage.current(plan.lake, plan.target)
    met = (x for x in covered if x.output != plan.output and x.scope.overlaps(within))
    named = dict.fromkeys(f"{each.run} of stream {each.stream}" for each in met)
    return f"; runs of others there: {', '.join(list(named)[:3])}" if named else ""
