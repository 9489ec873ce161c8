"""The audits: of a copy, of a table with some of the columns, of a transform's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from capstan.audit import cells, report
from capstan.audit.cells import CellDifference
from capstan.audit.report import TAPE, Audit, Finding
from capstan.audit.rows import RowDifferences, Side, row_differences, within
from capstan.audit.shape import Shape, columns_error, common_fields, stored_fields
from capstan.audit.source import played_records
from capstan.audit.view import View, table_view, tape_view
from capstan.tape.tape import Cut, Tape, read_records, stored_payload
from capstan.times.region import Region

SAMPLE = 20
_NO_ROWS = RowDifferences({"missing": 0, "extra": 0, "changed": 0}, ())
_SHARED = (("s1", "h1"), ("s2", "h2"))


@dataclass(frozen=True, slots=True)
class _Tape:
    """Cells whose records are not what the tape's index says: how many, and a sample."""

    differing: int
    sample: Sequence[CellDifference]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a failed audit found, on the tape and in the table."""

    cells: int
    differing: int
    records: int
    tape: _Tape
    table: Sequence[CellDifference]
    rows: RowDifferences


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is audited: the workers and times of a tape at a cut."""

    spark: SparkSession
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]
    region: Region
    limit: int

    def promised(self, like: Shape | None = None) -> DataFrame:
        return cells.promised_cells(
            self.spark, self.tape, self.cut, self.workers, self.region, like
        )

    def records(self, like: Shape | None = None) -> View:
        frame = read_records(
            self.spark, self.tape, self.cut, workers=self.workers, region=self.region
        )
        return tape_view(frame, self.tape.time_type, like)

    def table(self, frame: DataFrame, shape: Shape) -> View:
        return table_view(frame, shape, self.tape.time_type, self.workers)

    def failed(self, kind: str, found: _Found) -> Audit:
        on_tape = [
            Finding(
                cell.worker, cell.time, cell.kind, _cell(cell.expected), _cell(cell.actual), TAPE
            )
            for cell in found.tape.sample
        ]
        first = next(iter((*found.tape.sample, *found.table)))
        return Audit(
            kind,
            passed=False,
            cells=found.cells,
            differing=found.differing,
            findings=(*on_tape, *found.rows.findings)[: self.limit],
            records=found.records,
            totals={**found.rows.totals, TAPE: found.tape.differing},
            first=report.place(self.tape.time_type, first.worker, first.time),
        )


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

    Raises:
        BadRequest: `CAP-AUDIT-COLUMNS` when the table has no column of the stream, or one of
            another type, or a time column that cannot hold the stream's times.
    """
    scope = _Scope(spark, tape, cut, workers, region, limit)
    payload = stored_payload(spark, tape)
    fields = common_fields(shape.columns, payload, frame.schema)
    sides = _CopySides(scope, payload, fields, frame, shape)
    return sides.shared() if len(fields) < len(payload.fields) else sides.copy()


@dataclass(frozen=True, slots=True)
class _CopySides:
    """A tape and a table that should hold the same rows, or the same columns of them."""

    scope: _Scope
    payload: StructType
    fields: list[StructField]
    frame: DataFrame
    shape: Shape

    def copy(self) -> Audit:
        """The table's cells against the index; the records are read only where they differ."""
        sides = {
            "events": self.scope.promised(self.shape),
            "table": cells.view_cells(self._table.view, {"h": self._table.fields}),
        }
        joined = cells.gather(sides).persist()
        try:
            wrong = cells.differs("events", "table")
            totals = cells.count_cells(joined, tuple(sides), {"bad": wrong})
            if not totals["bad"]:
                return _passed("copy", totals["cells"], totals["table"])
            bad = joined.where(wrong)
            found = _Found(
                cells=totals["cells"],
                differing=totals["bad"],
                records=totals["table"],
                tape=self._tape_in(bad),
                table=cells.sample_cells(bad, "events", "table", 1),
                rows=self._rows_in(bad),
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
            "table": cells.view_cells(self._table.view, {"h": self._table.fields}),
        }
        joined = cells.gather(sides).persist()
        try:
            on_tape = cells.differs("events", "tape")
            in_table = cells.differs("tape", "table", _SHARED)
            checks = {"bad_tape": on_tape, "bad_table": in_table}
            totals = cells.count_cells(joined, tuple(sides), checks)
            if not totals["any"]:
                return _passed("shared-columns", totals["cells"], totals["table"])
            bad, worst = joined.where(in_table), joined.where(on_tape)
            limit = self.scope.limit
            sample = cells.sample_cells(worst, "events", "tape", limit)
            found = _Found(
                cells=totals["cells"],
                differing=totals["any"],
                records=totals["table"],
                tape=_Tape(totals["bad_tape"], sample),
                table=cells.sample_cells(bad, "tape", "table", 1),
                rows=self._rows_in(bad) if totals["bad_table"] else _NO_ROWS,
            )
        finally:
            joined.unpersist()
        return self.scope.failed("shared-columns", found)

    @property
    def _table(self) -> Side:
        view = self.scope.table(self.frame, self.shape)
        return Side(view, stored_fields(self.fields, self.frame.schema))

    def _rows_in(self, bad: DataFrame) -> RowDifferences:
        records = Side(self.scope.records(self.shape), self.fields)
        return row_differences(records, self._table, bad, self.scope.limit)

    def _tape_in(self, bad: DataFrame) -> _Tape:
        """Whether the tape's own records are what its index says, in some cells."""
        records = self.scope.records(self.shape)
        stored = cells.view_cells(records, {"h": self.payload.fields})
        promised = self.scope.promised(self.shape)
        found = cells.compare(within(promised, bad), within(stored, bad), self.scope.limit)
        return _Tape(found.differing, found.sample)


def audit_transform(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    frame: DataFrame,
    shape: Shape,
    recompute: Callable[[DataFrame], DataFrame],
    keys: Sequence[str] = (),
    *,
    limit: int = SAMPLE,
) -> Audit:
    """Compare a transform's stored output with a second computation of it from the tape.

    The records that are read for it are held against the tape's index as well.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels of the audited workers, by number.
        region: The times of the records that the transform was given.
        frame: The stored rows that it gave for them.
        shape: Where the output has its worker, time and data columns, as far as it keeps them.
        recompute: The transform; it gets the frame of `played_records`.
        keys: Data columns that identify an output row within its cell; may be none.
        limit: How many findings to give at most.

    Raises:
        BadRequest: `CAP-AUDIT-COLUMNS` when stored and computed output have no column in common,
            or one of different types, or a key is not a data column.
    """
    scope = _Scope(spark, tape, cut, workers, region, limit)
    records = cells.view_cells(scope.records(), {"h": stored_payload(spark, tape).fields})
    computed = recompute(played_records(spark, tape, cut, workers, region))
    fields = common_fields(shape.columns, computed.schema, frame.schema)
    stored = stored_fields(fields, frame.schema)
    wanted = Side(scope.table(computed, shape), fields, _keys(keys, fields))
    found = Side(scope.table(frame, shape), stored, _keys(keys, stored))
    joined = cells.gather(
        {
            name: cells.view_cells(side.view, {"h": side.fields})
            for name, side in (("computed", wanted), ("table", found))
        }
    ).persist()
    try:
        given = cells.compare(scope.promised(), records, limit)
        wrong = cells.differs("computed", "table")
        totals = cells.count_cells(joined, ("computed", "table"), {"bad": wrong})
        checked = given.cells + totals["cells"]
        if not given.differing and not totals["bad"]:
            return _passed("transform", checked, totals["table"])
        bad = joined.where(wrong)
        outcome = _Found(
            cells=checked,
            differing=given.differing + totals["bad"],
            records=totals["table"],
            tape=_Tape(given.differing, given.sample),
            table=cells.sample_cells(bad, "computed", "table", 1),
            rows=row_differences(wanted, found, bad, limit) if totals["bad"] else _NO_ROWS,
        )
    finally:
        joined.unpersist()
    return scope.failed("transform", outcome)


def _keys(keys: Sequence[str], fields: Sequence[StructField]) -> list[StructField]:
    by_name = {field.name: field for field in fields}
    for key in keys:
        if key not in by_name:
            raise columns_error(f"the key {key} is not one of the audited columns")
    return [by_name[key] for key in keys]


def _passed(kind: str, count: int, records: int) -> Audit:
    return Audit(kind, True, count, 0, (), records, {**_NO_ROWS.totals, TAPE: 0})


def _cell(side: tuple[int, ...]) -> dict[str, object]:
    records, h1, h2 = side
    return {"records": records, "fingerprint": [h1, h2]}
