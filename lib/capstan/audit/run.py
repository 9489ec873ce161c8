"""The audits: of a copy, of a table with some of the columns, of what was computed from a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from capstan.audit import cells, in_process_cells
from capstan.audit.float_tolerance import Close, beyond
from capstan.audit.result import Audit, Near
from capstan.audit.retired_cells import is_lost, lost_differences, merge
from capstan.audit.row_checks import Prepared
from capstan.audit.row_diff import RowDifferences, Side, row_differences, within
from capstan.audit.scope import NO_ROWS, AuditScope, Found, OnTape, measures, results_in
from capstan.audit.table_shape import Shape, columns_error, common_fields, stored_fields
from capstan.core.config.row_checks import Check
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.ledger.retirements import gone
from capstan.storage.tape.tape import Cut, Tape, stored_payload

SAMPLE = 20
_EXACT = Close()
_SHARED = (("s1", "h1"), ("s2", "h2"))


def audit_copy(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    frame: DataFrame,
    shape: Shape,
    *,
    limit: int = SAMPLE,
    checks: Sequence[Check] = (),
    retired: Sequence[Box] = (),
) -> Audit:
    """Compare a table with what the stream said.

    With all of the stream's columns (`copy`) the table's cells are compared with those of the
    tape's index. With some (`shared-columns`) they are compared with those of the tape's records,
    which the same scan holds against the index.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels of the audited workers, by number.
        region: The audited times.
        frame: The table's rows of these workers and times.
        shape: Where the table has its worker, time and data columns.
        limit: How many findings to give at most.
        checks: What every row of the table must meet; they are counted in the same scan of it.
        retired: Audited times whose records were deleted. A copy is held against the index there
            as well; only which of its rows differ cannot be told.

    Raises:
        InvalidRequestError: `CAP-RETIRED` when records that were deleted are needed;
            `CAP-AUDIT-COLUMNS` when the table has no column of the stream, or one of
            another type, or a time column that cannot hold the stream's times;
            `CAP-CHECK-COLUMN` for a check that does not fit the table.
    """
    scope = AuditScope(spark, tape, cut, workers, region, limit, checks)
    payload = stored_payload(tape)
    fields = common_fields(shape.columns, payload, frame.schema)
    sides = _CopySides(scope, payload, fields, frame, shape, scope.prepared(frame), retired)
    if len(fields) == len(payload.fields):
        return sides.copy()
    if retired:
        hint = (
            "audit all columns of the stream, or later times alone "
            "(--against {stream} --since {since})"
        )
        raise gone(tape, retired[0], "an audit of some of the columns", hint)
    return sides.shared()


@dataclass(frozen=True, slots=True)
class _CopySides:
    """A tape and a table that should hold the same rows, or the same columns of them."""

    scope: AuditScope
    payload: StructType
    fields: list[StructField]
    frame: DataFrame
    shape: Shape
    checks: tuple[Prepared, ...]
    retired: Sequence[Box] = ()

    def copy(self) -> Audit:
        """The table's cells against the index; the records are read only where they differ."""
        scope, stored, counted = self.scope, self._stored(), measures(self.checks)
        promised = in_process_cells.promised(
            scope.tape, scope.cut, scope.workers, scope.region, self.shape
        )
        equal = in_process_cells.totals_if_equal(promised, stored, tuple(counted))
        if equal is not None:
            met = results_in(self.checks, self._table.view, equal)
            return scope.passed("copy", equal["cells"], equal["table"], met)
        sides = {"events": scope.promised(self.shape), "table": stored}
        joined = cells.gather(sides).persist()
        try:
            wrong = cells.differs("events", "table")
            totals = cells.count_cells(joined, tuple(sides), {"bad": wrong}, counted)
            met = results_in(self.checks, self._table.view, totals)
            if not totals["bad"]:
                return self.scope.passed("copy", totals["cells"], totals["table"], met)
            bad, lost = joined.where(wrong), is_lost(self.retired)
            kept = bad.where(~lost) if self.retired else bad
            rows = self._rows_in(kept)
            if self.retired:
                told = lost_differences(bad.where(lost), "events", "table", self.scope.limit)
                rows = merge(rows, told)
            found = Found(
                cells=totals["cells"],
                differing=totals["bad"],
                records=totals["table"],
                tape=self._tape_in(kept),
                table=cells.sample_cells(bad, "events", "table", 1),
                rows=rows,
                checks=met,
            )
        finally:
            joined.unpersist()
        return self.scope.failed("copy", found)

    def shared(self) -> Audit:
        """One scan of the records gives their full fingerprints and those of the shared columns."""
        records = self.scope.records(self.shape)
        sides = {
            "events": self.scope.promised(self.shape),
            "tape": cells.view_cells(records, {"h": self.payload.fields, "s": self.fields}),
            "table": self._stored(),
        }
        joined = cells.gather(sides).persist()
        try:
            on_tape = cells.differs("events", "tape")
            in_table = cells.differs("tape", "table", _SHARED)
            wrong, counted = {"bad_tape": on_tape, "bad_table": in_table}, measures(self.checks)
            totals = cells.count_cells(joined, tuple(sides), wrong, counted)
            met = results_in(self.checks, self._table.view, totals)
            if not totals["any"]:
                return self.scope.passed("shared-columns", totals["cells"], totals["table"], met)
            bad, worst = joined.where(in_table), joined.where(on_tape)
            limit = self.scope.limit
            sample = cells.sample_cells(worst, "events", "tape", limit)
            found = Found(
                cells=totals["cells"],
                differing=totals["any"],
                records=totals["table"],
                tape=OnTape(totals["bad_tape"], sample),
                table=cells.sample_cells(bad, "tape", "table", 1),
                rows=self._rows_in(bad) if totals["bad_table"] else NO_ROWS,
                checks=met,
            )
        finally:
            joined.unpersist()
        return self.scope.failed("shared-columns", found)

    @property
    def _table(self) -> Side:
        view = self.scope.table(self.frame, self.shape)
        return Side(view, stored_fields(self.fields, self.frame.schema))

    def _stored(self) -> DataFrame:
        table = self._table
        return cells.view_cells(table.view, {"h": table.fields}, self.checks)

    def _rows_in(self, bad: DataFrame) -> RowDifferences:
        records = Side(self.scope.records(self.shape), self.fields)
        return row_differences(records, self._table, bad, self.scope.limit)

    def _tape_in(self, bad: DataFrame) -> OnTape:
        """Whether the tape's own records are what its index says, in some cells."""
        records = self.scope.records(self.shape)
        stored = cells.view_cells(records, {"h": self.payload.fields})
        promised = self.scope.promised(self.shape)
        found = cells.compare(within(promised, bad), within(stored, bad), self.scope.limit)
        return OnTape(found.differing, found.sample)


def audit_computed(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    frame: DataFrame,
    shape: Shape,
    computed: DataFrame,
    keys: Sequence[str] = (),
    *,
    kind: str = "transform",
    limit: int = SAMPLE,
    checks: Sequence[Check] = (),
    close: Close = _EXACT,
) -> Audit:
    """Compare stored output of a transform or pipeline with a second computation from the tape.

    The records that are read for it are held against the tape's index as well.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels of the audited workers, by number.
        region: The times of the records that it was given.
        frame: The stored rows that it gave for them.
        shape: Where the output has its worker, time and data columns, as far as it keeps them.
        computed: The rows of the second computation, made as independently as may be.
        keys: Data columns that identify an output row within its cell; may be none.
        kind: `transform` or `pipeline`.
        limit: How many findings to give at most.
        checks: What every stored row must meet; they are counted in the same scan of them.
        close: Columns that are compared within a tolerance, in cells whose fingerprints differ.

    Raises:
        InvalidRequestError: `CAP-AUDIT-COLUMNS` when stored and computed output have no column in
            common, or one of different types, or a key is not a data column; `CAP-CHECK-COLUMN` for
            a check that does not fit the output.
    """
    scope = AuditScope(spark, tape, cut, workers, region, limit, checks)
    prepared = scope.prepared(frame)
    records = cells.view_cells(scope.records(), {"h": stored_payload(tape).fields})
    fields = common_fields(shape.columns, computed.schema, frame.schema)
    stored = stored_fields(fields, frame.schema)
    wanted = Side(scope.table(computed, shape), fields, _keys(keys, fields))
    found = Side(scope.table(frame, shape), stored, _keys(keys, stored))
    sides = {
        "computed": cells.view_cells(wanted.view, {"h": wanted.fields}),
        "table": cells.view_cells(found.view, {"h": found.fields}, prepared),
    }
    joined = cells.gather(sides).persist()
    try:
        given = cells.compare(scope.promised(), records, limit)
        wrong = cells.differs("computed", "table")
        totals = cells.count_cells(joined, tuple(sides), {"bad": wrong}, measures(prepared))
        met = results_in(prepared, found.view, totals)
        checked = given.cells + totals["cells"]
        bad, count = joined.where(wrong), totals["bad"]
        with beyond(wanted, found, bad, count, close) as apart:
            near = Near(close.columns, close.tolerance, count - apart.count)
            if not given.differing and not apart.count:
                passed = scope.passed(kind, checked, totals["table"], met)
                return replace(passed, near=near)
            rows = NO_ROWS
            if apart.count:
                rows = row_differences(apart.expected, apart.actual, apart.cells, limit)
            outcome = Found(
                cells=checked,
                differing=given.differing + apart.count,
                records=totals["table"],
                tape=OnTape(given.differing, given.sample),
                table=cells.sample_cells(apart.cells, "computed", "table", 1),
                rows=rows,
                checks=met,
            )
    finally:
        joined.unpersist()
    return replace(scope.failed(kind, outcome), near=near)


def _keys(keys: Sequence[str], fields: Sequence[StructField]) -> list[StructField]:
    by_name = {field.name: field for field in fields}
    for key in keys:
        if key not in by_name:
            raise columns_error(f"the key {key} is not one of the audited columns")
    return [by_name[key] for key in keys]
