"""The scope of an audit, and the construction of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from capstan.audit import cells, result
from capstan.audit.cells import CellDifference
from capstan.audit.result import TAPE, Audit, CheckResult, Finding
from capstan.audit.retired_cells import to_finding
from capstan.audit.row_checks import PreparedCheck, prepare, results
from capstan.audit.row_diff import RowDifferences
from capstan.audit.row_view import View, table_view, tape_view
from capstan.audit.table_shape import Shape
from capstan.core.config.row_checks import Check
from capstan.core.times.region import Region
from capstan.storage.tape.tape import Cut, Tape, read_records

NO_ROWS = RowDifferences({"missing": 0, "extra": 0, "changed": 0}, ())


@dataclass(frozen=True, slots=True)
class TapeDifferences:
    """The number of cells whose records do not match the tape's index, and a sample."""

    differing: int
    sample: Sequence[CellDifference]


@dataclass(frozen=True, slots=True)
class AuditDifferences:
    """The differences found by a failed audit, on the tape and in the table."""

    cells: int
    differing: int
    records: int
    tape: TapeDifferences
    table: Sequence[CellDifference]
    rows: RowDifferences
    checks: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The scope of an audit: workers and times of a tape at a cut, and the declared checks.

    Attributes:
        spark: The session.
        tape: The tape.
        cut: The cut.
        workers: Labels of the audited workers, by number.
        region: The audited times.
        limit: The most findings to return.
        checks: The declared checks of the table.
    """

    spark: SparkSession
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]
    region: Region
    limit: int
    checks: Sequence[Check]

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

    def table(self, frame: DataFrame, shape: Shape) -> View:
        """The rows of the audited table."""
        return table_view(frame, shape, self.tape.time_type, self.workers)

    def prepared(self, frame: DataFrame) -> tuple[PreparedCheck, ...]:
        """The declared checks, resolved to the table's columns."""
        return prepare(self.checks, frame)

    def passed(self, kind: str, count: int, records: int, checks: tuple[CheckResult, ...]) -> Audit:
        """The result if no cell differs; the audit still fails if a check failed."""
        met = not any(check.failing for check in checks)
        totals = {**NO_ROWS.totals, TAPE: 0}
        return Audit(kind, met, count, 0, (), records, totals, checks=checks)

    def failed(self, kind: str, differences: AuditDifferences) -> Audit:
        """The result if cells differ."""
        tape = differences.tape
        on_tape = [
            Finding(
                cell.worker,
                cell.time,
                cell.kind,
                to_finding(cell.expected),
                to_finding(cell.actual),
                TAPE,
            )
            for cell in tape.sample
        ]
        first = next(iter((*tape.sample, *differences.table)))
        return Audit(
            kind,
            passed=False,
            cells=differences.cells,
            differing=differences.differing,
            findings=(*on_tape, *differences.rows.findings)[: self.limit],
            records=differences.records,
            totals={**differences.rows.totals, TAPE: tape.differing},
            first=result.place(self.tape.time_type, first.worker, first.time),
            checks=differences.checks,
        )


def measures(checks: Sequence[PreparedCheck]) -> dict[str, str]:
    """The columns of gathered cells that count the rows of side `table` failing each check."""
    return {check.column: f"table_{check.column}" for check in checks}


def results_in(
    checks: Sequence[PreparedCheck], view: View, totals: Mapping[str, int]
) -> tuple[CheckResult, ...]:
    """The results of the checks, from the totals of gathered cells."""
    return results(checks, view, {check.column: totals[check.column] for check in checks})
