"""The changes that publishing would make: rows added, removed and changed. Nothing is written.

As in audits, cells are compared first, and rows only when cells differ. For a copy, the expected
cells come from the tape's index, so that records of unchanged cells are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from capstan.audit import Finding, FloatTolerance, Shape, cells
from capstan.audit.float_tolerance import exceeding
from capstan.audit.result import render
from capstan.audit.row_diff import NO_ROWS, RowDifferences, Side, row_differences
from capstan.audit.row_view import View, table_view
from capstan.audit.table_shape import common_fields, stored_fields
from capstan.core.config import Mode
from capstan.core.times import TimeType
from capstan.replay.order.order_dependence import close_of, require_comparable
from capstan.replay.output.change_rows import require_rule_fits
from capstan.replay.output.latest_rows import rows_to_publish
from capstan.replay.output.rows import playing
from capstan.replay.planning.plan import Plan
from capstan.replay.publish.change_merges import images_after
from capstan.replay.target import target_table
from capstan.replay.target.foreign_rows import (
    foreign_rows,
    require_columns_kept,
    require_restorable,
)
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.row_restore import rows_with_keys
from capstan.storage.delta import delta
from capstan.storage.lake import is_table

SAMPLE = 20
_KINDS = {"missing": "added", "extra": "removed", "changed": "changed"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of a replay to the present rows of its target."""

    added: int
    removed: int
    changed: int  # rows replaced by others: in a cell, or with declared keys by key in a cell
    cells: int  # (worker, time) with rows before or after
    differing: int  # cells that change; for `append` and `merge`, of the replayed ones
    new_columns: tuple[str, ...]  # that the target does not have yet; they are not compared
    foreign: int  # rows of other outputs that it would replace or merge over; that needs --adopt
    findings: tuple[Finding, ...]  # a sample of the rows: new as `expected`, present as `actual`

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The difference as the object that `--json` prints."""
        return {
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "cells": self.cells,
            "differing": self.differing,
            "new_columns": list(self.new_columns),
            "foreign": self.foreign,
            "sample": [
                {
                    "kind": _KINDS[row.kind],
                    "worker": row.worker,
                    "time": render(time_type, row.time),
                    "before": row.actual,
                    "after": row.expected,
                }
                for row in self.findings
            ],
        }


def difference(spark: SparkSession, plan: Plan, staged: DataFrame | None = None) -> Difference:
    """Compare the output of a replay, staged or computed now, with the present rows."""
    owner = Ownership(plan)
    if staged is not None:
        return _compared(spark, owner, staged, from_index=False)
    with playing(spark, plan) as output:
        require_comparable(plan, output.rows)
        require_columns_kept(spark, owner, output.rows.schema)
        require_restorable(spark, plan)
        return _compared(spark, owner, output.rows, from_index=True)


def _compared(
    spark: SparkSession, owner: Ownership, wanted: DataFrame, *, from_index: bool
) -> Difference:
    plan, rule = owner.plan, owner.plan.change_rule
    if rule is not None:
        if from_index:
            require_rule_fits(rule, wanted)
        wanted, present = images_after(spark, owner, rule, wanted)
    else:
        wanted = rows_to_publish(plan, wanted)
        present = _present(spark, plan, wanted)
    cells_, differing, rows = _compare(spark, plan, wanted, present, from_index=from_index)
    added, removed, changed = (rows.totals[kind] for kind in _KINDS)
    if plan.request.mode is Mode.MERGE and rule is None:
        # A plain merge removes no row: it updates every row of a key.
        removed, changed = 0, changed + removed
    new = tuple(name for name in wanted.columns if name not in present.columns)
    foreign = foreign_rows(spark, owner, wanted)
    return Difference(added, removed, changed, cells_, differing, new, foreign, rows.findings)


def _present(spark: SparkSession, plan: Plan, wanted: DataFrame) -> DataFrame:
    """The rows of the target that the replay may change."""
    if not is_table(plan.target):
        return wanted.limit(0)
    rows = delta.load(spark, plan.target)
    if plan.request.mode is Mode.APPEND:
        return rows.limit(0)
    if plan.request.mode is Mode.REPLACE:
        return rows.where(target_table.predicate(plan, rows.schema))
    return rows_with_keys(rows, wanted, plan.keys)


def _compare(
    spark: SparkSession, plan: Plan, wanted: DataFrame, present: DataFrame, *, from_index: bool
) -> tuple[int, int, RowDifferences]:
    """The number of cells, of differing cells, and the differing rows."""
    shape = _shape(plan, wanted)
    common = [name for name in shape.columns if name in present.columns]
    fields = common_fields(common, wanted.schema, present.schema)
    after, before = (
        Side(_view(plan, rows, shape), kept, [f for f in kept if f.name in plan.row_keys])
        for rows, kept in ((wanted, fields), (present, stored_fields(fields, present.schema)))
    )
    promised = None
    if from_index:
        inputs, region = plan.inputs, plan.region
        promised = plan.computation.promised_cells(spark, inputs, region, shape, common)
    if promised is None:
        promised = cells.view_cells(after.view, {"h": after.fields})
    joined = cells.gather(
        {"wanted": promised, "present": cells.view_cells(before.view, {"h": before.fields})}
    ).persist()
    try:
        wrong = cells.differs("wanted", "present")
        totals = cells.count_cells(joined, ("wanted", "present"), {"bad": wrong})
        rows = NO_ROWS
        close = close_of(spark, plan) if totals["bad"] else FloatTolerance()
        with exceeding(after, before, joined.where(wrong), totals["bad"], close) as apart:
            if apart.count:
                rows = row_differences(apart.expected, apart.actual, apart.cells, SAMPLE)
    finally:
        joined.unpersist()
    return totals["cells"], apart.count, rows


def _shape(plan: Plan, wanted: DataFrame) -> Shape:
    """The columns of worker and time on both sides; `merge` identifies rows by keys alone."""
    if plan.request.mode is Mode.MERGE:
        return Shape(None, (), tuple(wanted.columns))
    of_records = target_table.record_shape(plan, wanted.columns)
    return of_records or target_table.output_shape(plan, wanted.schema, wanted.columns)


def _view(plan: Plan, rows: DataFrame, shape: Shape) -> View:
    inputs = plan.inputs
    tagged = target_table.tagged(plan, rows)
    return table_view(tagged, shape, inputs.tape.time_type, inputs.workers)
