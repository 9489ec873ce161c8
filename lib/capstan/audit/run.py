"""Audits of copies, of tables with some of the columns, and of output computed from a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from capstan.audit import cells
from capstan.audit.cells import NO_CELLS, CellComparison, is_retired, merge, retired_differences
from capstan.audit.float_tolerance import FloatTolerance, exceeding
from capstan.audit.result import TAPE, Audit, CheckResult, Near, place
from capstan.audit.row_checks import PreparedCheck, prepare, results
from capstan.audit.row_diff import NO_ROWS, RowDifferences, Side, row_differences, within
from capstan.audit.row_view import View, table_view, tape_view
from capstan.audit.table_shape import Shape, columns_error, common_fields, stored_fields
from capstan.core.config.row_checks import Check
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.spark.session import persisted
from capstan.storage.ledger.retirements import retired_error
from capstan.storage.tape.tape import Cut, Tape, read_records, stored_payload

SAMPLE = 20
"""The number of findings that an audit returns by default."""

_EXACT = FloatTolerance()
_SHARED = (("s1", "h1"), ("s2", "h2"))


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The scope of an audit: workers and times of a tape at a cut."""

    spark: SparkSession
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]
    region: Region
    limit: int = SAMPLE

    def promised(self, like: Shape | None = None) -> DataFrame:
        """The cells that the tape's index promises."""
        return cells.promised_cells(
            self.spark, self.tape, self.cut, self.workers, self.region, like
        )

    def records(self, like: Shape | None = None) -> View:
        """The tape's records."""
        frame = read_records(
            self.spark, self.tape, self.cut, workers=self.workers, region=self.region
        )
        return tape_view(frame, self.tape.time_type, like)

    def recorded(self, like: Shape | None = None, among: DataFrame | None = None) -> CellComparison:
        """The comparison of the tape's records with its index, `among` some cells or in all."""
        fields = stored_payload(self.tape).fields
        actual = cells.view_cells(self.records(like), {"h": fields})
        sides = self.promised(like), actual
        if among is not None:
            sides = within(sides[0], among), within(sides[1], among)
        elif equal := cells.totals_if_equal(self.few_promised(like), actual):
            return CellComparison(equal["cells"], 0)
        return cells.compare(*sides, self.limit)

    def drawn(self, part: Region) -> CellComparison:
        """The comparison with the index of the records in a part; all others are only counted.

        Where anything differs, it is the comparison of all records.
        """
        counted = self._counted()
        if counted is None or replace(self, region=part).recorded().differing:
            return self.recorded()
        return CellComparison(counted, 0)

    def _counted(self) -> int | None:
        """The number of cells, if each has as many records as the index says; else None."""
        numbers = cells.view_cells(self.records(), {})
        promised = self.few_promised()
        if promised is not None:
            equal = cells.totals_if_equal(promised, numbers, contents=False)
            return None if equal is None else equal["cells"]
        sides = {"events": self.promised(), "tape": numbers}
        unequal = {"bad": cells.differs("events", "tape", ())}
        totals = cells.count_cells(cells.gather(sides), tuple(sides), unequal)
        return None if totals["bad"] else totals["cells"]

    def few_promised(self, like: Shape | None = None) -> dict[cells.Place, cells.Content] | None:
        """The cells that the tape's index promises, in this process; None if there are many."""
        return cells.few_promised(self.tape, self.cut, self.workers, self.region, like)

    def table(self, frame: DataFrame, shape: Shape) -> View:
        """The rows of the audited table."""
        return table_view(frame, shape, self.tape.time_type, self.workers)

    def result(
        self,
        kind: str,
        compared: CellComparison,
        records: int,
        checks: tuple[CheckResult, ...],
        rows: RowDifferences = NO_ROWS,
        tape: CellComparison = NO_CELLS,
    ) -> Audit:
        """The result, which is passed if no cell differs and no check failed.

        `tape` compares the tape's records with its index. The sample of `compared` is of the table.
        """
        findings = (*(cell.finding(TAPE) for cell in tape.sample), *rows.findings)
        first = next(iter((*tape.sample, *compared.sample)), None)
        return Audit(
            kind,
            passed=not compared.differing and not any(check.failing for check in checks),
            cells=compared.cells,
            differing=compared.differing,
            findings=findings[: self.limit],
            records=records,
            totals={**rows.totals, TAPE: tape.differing},
            first=place(self.tape.time_type, first.worker, first.time) if first else "",
            checks=checks,
        )


def _measures(checks: Sequence[PreparedCheck]) -> dict[str, str]:
    """The columns of gathered cells that count the rows of side `table` failing each check."""
    return {check.column: f"table_{check.column}" for check in checks}


def audit_copy(
    scope: AuditScope,
    frame: DataFrame,
    shape: Shape,
    *,
    checks: Sequence[Check] = (),
    retired: Sequence[Box] = (),
) -> Audit:
    """Compare a table with the stream's records.

    With all of the stream's columns (`copy`) the table's cells are compared with those of the
    tape's index. With some of them (`shared-columns`) they are compared with the cells of the
    tape's records, and the same scan compares the records with the index. At `retired` times a copy
    is compared with the index as well, but differing rows cannot be named.
    """
    payload = stored_payload(scope.tape)
    fields = common_fields(shape.columns, payload, frame.schema)
    sides = _CopySides(scope, payload, fields, frame, shape, prepare(checks, frame), retired)
    if len(fields) == len(payload.fields):
        return sides.copy()
    if retired:
        hint = (
            "audit all columns of the stream, or only later times "
            "(--against {stream} --since {since})"
        )
        raise retired_error(scope.tape, retired[0], "an audit of some of the columns", hint)
    return sides.shared()


@dataclass(frozen=True, slots=True)
class _CopySides:
    """A tape and a table that should have equal rows, or equal values in shared columns."""

    scope: AuditScope
    payload: StructType
    fields: list[StructField]
    frame: DataFrame
    shape: Shape
    checks: tuple[PreparedCheck, ...]
    retired: Sequence[Box] = ()

    def copy(self) -> Audit:
        """Compare the table's cells with the index; records are read only for differing cells."""
        scope, stored, counted = self.scope, self._stored(), _measures(self.checks)
        promised = scope.few_promised(self.shape)
        equal = cells.totals_if_equal(promised, stored, tuple(counted))
        if equal is not None:
            checks = results(self.checks, self._table.view, equal)
            return scope.result("copy", CellComparison(equal["cells"], 0), equal["rows"], checks)
        sides = {"events": scope.promised(self.shape), "table": stored}
        with persisted(cells.gather(sides)) as joined:
            differs = cells.differs("events", "table")
            totals = cells.count_cells(joined, tuple(sides), {"bad": differs}, counted)
            checks = results(self.checks, self._table.view, totals)
            compared = CellComparison(totals["cells"], totals["bad"])
            if not compared.differing:
                return scope.result("copy", compared, totals["table"], checks)
            bad, retired = joined.where(differs), is_retired(self.retired)
            comparable = bad.where(~retired) if self.retired else bad
            rows = self._rows_in(comparable)
            if self.retired:
                whole = retired_differences(bad.where(retired), "events", "table", scope.limit)
                rows = merge(rows, whole)
            compared = replace(compared, sample=cells.sample_cells(bad, "events", "table", 1))
            tape = scope.recorded(self.shape, comparable)
        return scope.result("copy", compared, totals["table"], checks, rows, tape)

    def shared(self) -> Audit:
        """Compare shared columns; one scan of the records gives full and shared fingerprints."""
        records = self.scope.records(self.shape)
        sides = {
            "events": self.scope.promised(self.shape),
            "tape": cells.view_cells(records, {"h": self.payload.fields, "s": self.fields}),
            "table": self._stored(),
        }
        with persisted(cells.gather(sides)) as joined:
            on_tape = cells.differs("events", "tape")
            in_table = cells.differs("tape", "table", _SHARED)
            conditions = {"bad_tape": on_tape, "bad_table": in_table}
            totals = cells.count_cells(joined, tuple(sides), conditions, _measures(self.checks))
            checks = results(self.checks, self._table.view, totals)
            compared = CellComparison(totals["cells"], totals["any"])
            if not compared.differing:
                return self.scope.result("shared-columns", compared, totals["table"], checks)
            bad, bad_tape = joined.where(in_table), joined.where(on_tape)
            sample = cells.sample_cells(bad_tape, "events", "tape", self.scope.limit)
            tape = CellComparison(totals["cells"], totals["bad_tape"], sample)
            compared = replace(compared, sample=cells.sample_cells(bad, "tape", "table", 1))
            rows = self._rows_in(bad) if totals["bad_table"] else NO_ROWS
        return self.scope.result("shared-columns", compared, totals["table"], checks, rows, tape)

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


@dataclass(frozen=True, slots=True)
class Computed:
    """A second computation of an output, as independent of the first as possible."""

    rows: DataFrame
    kind: str = "transform"  # or `pipeline`
    keys: Sequence[str] = ()  # data columns that identify a row within its cell
    tolerance: FloatTolerance = _EXACT


def audit_computed(
    scope: AuditScope,
    frame: DataFrame,
    shape: Shape,
    computed: Computed,
    checks: Sequence[Check] = (),
    inputs: Sequence[AuditScope] = (),
    parts: Mapping[str, Region] = MappingProxyType({}),
) -> Audit:
    """Compare stored output of a transform or pipeline with a second computation from the tape.

    The records of its `inputs` are compared with the index of their tapes as well: all, or those in
    the part of a stream, and all others counted. `scope` has the workers of the output.
    """
    limit, prepared = scope.limit, prepare(checks, frame)
    kind, tolerance = computed.kind, computed.tolerance
    fields = common_fields(shape.columns, computed.rows.schema, frame.schema)
    stored = stored_fields(fields, frame.schema)
    expected = Side(scope.table(computed.rows, shape), fields, _keys(computed.keys, fields))
    actual = Side(scope.table(frame, shape), stored, _keys(computed.keys, stored))
    sides = {
        "computed": cells.view_cells(expected.view, {"h": expected.fields}),
        "table": cells.view_cells(actual.view, {"h": actual.fields}, prepared),
    }
    with persisted(cells.gather(sides)) as joined:
        by_stream = _recorded(inputs, parts)
        on_tape = cells.together(by_stream, limit)
        differs = cells.differs("computed", "table")
        totals = cells.count_cells(joined, tuple(sides), {"bad": differs}, _measures(prepared))
        check_results = results(prepared, actual.view, totals)
        differing = joined.where(differs), totals["bad"]
        with exceeding(expected, actual, *differing, tolerance) as bad:
            within_tolerance = totals["bad"] - bad.count
            near = Near(tolerance.columns, tolerance.tolerance, within_tolerance)
            both = on_tape.cells + totals["cells"], on_tape.differing + bad.count
            compared = CellComparison(*both)
            if not compared.differing:
                passed = scope.result(kind, compared, totals["table"], check_results)
                return replace(passed, near=near)
            rows = NO_ROWS
            if bad.count:
                rows = row_differences(bad.expected, bad.actual, bad.cells, limit)
            first = cells.sample_cells(bad.cells, "computed", "table", 1)
            compared = replace(compared, sample=first)
    failed = scope.result(kind, compared, totals["table"], check_results, rows, on_tape)
    if on_tape.differing and len(inputs) > 1:
        wrong = next(s for s, found in zip(inputs, by_stream, strict=True) if found.differing)
        failed = replace(failed, first=f"stream {wrong.tape.name}, {failed.first}")
    return replace(failed, near=near)


def _recorded(inputs: Sequence[AuditScope], parts: Mapping[str, Region]) -> list[CellComparison]:
    """The comparison of each input with its index; of inputs with the same records only one."""
    first = [inputs.index(each) for each in inputs]
    compared = {}
    for number in dict.fromkeys(first):
        scope = inputs[number]
        part = parts.get(scope.tape.name)
        compared[number] = scope.recorded() if part is None else scope.drawn(part)
    return [compared[number] for number in first]


def _keys(keys: Sequence[str], fields: Sequence[StructField]) -> list[StructField]:
    by_name = {field.name: field for field in fields}
    for key in keys:
        if key not in by_name:
            raise columns_error(f"the key {key} is not one of the audited columns")
    return [by_name[key] for key in keys]
