"""Foreign rows of a target: counted, and replaced only with `--adopt`.

Rows belong to an output: a stream, and a copy, a transform or a sink of a pipeline. The coverage
ledger names the output that last covered given workers and times of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from capstan.core.config import Mode
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.target.foreign_changes import region_of, workers_of
from capstan.replay.target.owned_rows import owned_rows_sql
from capstan.replay.target.row_restore import rows_with_keys
from capstan.replay.target.target_table import predicate, require_placed
from capstan.storage.delta import delta
from capstan.storage.delta.data_files import is_empty
from capstan.storage.lake import is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_union import RegionStrip, merge_scopes
from capstan.storage.tape import index
from capstan.storage.tape.bounds import fit
from capstan.storage.tape.tape import newest_cut, open_tape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def require_own_rows(spark: SparkSession, plan: Plan) -> None:
    """Check that a replay replaces no foreign row, as far as that is known before it computes.

    A merge into a target that keeps times is checked by `require_own_keys`, once it has rows.
    """
    if plan.request.mode is Mode.MERGE and plan.layout.time is not None:
        return
    count = 0 if plan.request.adopt else foreign_rows(spark, plan)
    if count:
        raise _foreign(plan, count, f"has {count} rows in the range")


def require_own_keys(plan: Plan, rows: DataFrame) -> None:
    """Check that a merge matches no foreign row by its key.

    Other modes than `merge` are not checked.
    """
    if plan.request.mode is not Mode.MERGE or plan.layout.time is None or plan.request.adopt:
        return
    count = foreign_rows(rows.sparkSession, plan, rows)
    if count:
        raise _foreign(plan, count, f"has {count} rows with keys of this replay")


def foreign_rows(spark: SparkSession, plan: Plan, rows: DataFrame | None = None) -> int:
    """The number of rows of other outputs that a replay would replace or merge over.

    Args:
        plan: The replay; mode `append` replaces no rows.
        rows: The rows to merge. Without them, or in a target without times, all foreign rows count,
            as their range is unknown.
    """
    if plan.request.mode is Mode.APPEND or not is_table(plan.target) or is_empty(plan.target):
        return 0
    merges = plan.request.mode is Mode.MERGE
    within = plan.reach
    present = delta.load(spark, plan.target)
    require_placed(plan, present.schema)
    covered = coverage.current(plan.lake, plan.target)
    if _are_all_own(plan, covered, within):
        return 0
    owned = owned_rows_sql(plan, present.schema, covered, labels_of_others(plan, covered), within)
    foreign = present.where(f"NOT coalesce({owned}, false)")
    if not merges:
        foreign = foreign.where(predicate(plan, present.schema))
    elif rows is not None and plan.layout.time is not None:
        foreign = rows_with_keys(foreign, rows, plan.keys)
    return foreign.count()


def _are_all_own(plan: Plan, covered: Sequence[Covered], within: Scope) -> bool:
    """Whether the bounds of the target's files show that this output owns all rows of a scope."""
    if any(
        entry.output != plan.output or not entry.scope.region.is_in(plan.time_type)
        for entry in covered
    ):
        return False
    strips = merge_scopes(entry.scope for entry in covered)
    for bounds in pa.table(delta.open_table(plan.target).get_add_actions(flatten=True)).to_pylist():
        workers = workers_of(plan, bounds)
        numbers = None if workers is None else tuple(workers)
        file = Scope(plan.target, numbers, region_of(plan, bounds))
        if file.overlaps(within) and not any(_holds(strip, file) for strip in strips):
            return False
    return True


def _holds(strip: RegionStrip, file: Scope) -> bool:
    """Whether all rows of a file lie in a strip."""
    if strip.workers is not None and not (file.workers and set(file.workers) <= strip.workers):
        return False
    return any(fit(file.region.box, region) for region in strip.regions)


def _foreign(plan: Plan, count: int, rows: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-ADOPT",
        f"target {plan.request.into} {rows} that this output was not the last to write"
        f"{_others(plan)}",
        "inspect them, then replace them with --adopt"
        if plan.change_rule is None
        else "replay into a table of its own: these rows have no sequence to compare",
        target=plan.target,
        rows=count,
    )


def labels_of_others(plan: Plan, covered: Iterable[Covered]) -> dict[str, Mapping[int, str]]:
    """The worker labels of the other streams with rows in the target."""
    labels: dict[str, Mapping[int, str]] = {}
    for stream in {entry.stream for entry in covered} - {plan.request.stream}:
        with suppress(InvalidRequestError):
            tape = open_tape(plan.lake, stream)
            labels[stream] = index.worker_labels(tape, newest_cut(tape))
    return labels


def _others(plan: Plan) -> str:
    """A clause that names runs of other outputs in the range; empty when there are none."""
    within = plan.reach
    covered = coverage.current(plan.lake, plan.target)
    others = (c for c in covered if c.output != plan.output and c.scope.overlaps(within))
    names = dict.fromkeys(f"{other.run} of stream {other.stream}" for other in others)
    return f"; runs of other outputs: {', '.join(list(names)[:3])}" if names else ""
