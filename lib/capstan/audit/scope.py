"""The scope of an audit, and the construction of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from capstan.audit import cells, result
from capstan.audit.cells import CellComparison
from capstan.audit.result import TAPE, Audit, CheckResult
from capstan.audit.row_checks import PreparedCheck
from capstan.audit.row_diff import RowDifferences
from capstan.audit.row_view import View, table_view, tape_view
from capstan.audit.table_shape import Shape
from capstan.core.times.region import Region
from capstan.storage.tape.tape import Cut, Tape, read_records

SAMPLE = 20
"""The number of findings that an audit returns by default."""

NO_ROWS = RowDifferences({"missing": 0, "extra": 0, "changed": 0}, ())


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

    def table(self, frame: DataFrame, shape: Shape) -> View:
        """The rows of the audited table."""
        return table_view(frame, shape, self.tape.time_type, self.workers)

    def passed(self, kind: str, count: int, records: int, checks: tuple[CheckResult, ...]) -> Audit:
        """The result if no cell differs; the audit still fails if a check failed."""
        met = not any(check.failing for check in checks)
        totals = {**NO_ROWS.totals, TAPE: 0}
        return Audit(kind, met, count, 0, (), records, totals, checks=checks)

    def failed(
        self,
        kind: str,
        compared: CellComparison,
        records: int,
        rows: RowDifferences,
        checks: tuple[CheckResult, ...],
        tape: CellComparison,
    ) -> Audit:
        """The result if cells differ.

        `tape` compares the tape's records with its index. The sample of `compared` is of the table.
        """
        first = next(iter((*tape.sample, *compared.sample)))
        findings = (*(cell.finding(TAPE) for cell in tape.sample), *rows.findings)
        return Audit(
            kind,
            passed=False,
            cells=compared.cells,
            differing=compared.differing,
            findings=findings[: self.limit],
            records=records,
            totals={**rows.totals, TAPE: tape.differing},
            first=result.place(self.tape.time_type, first.worker, first.time),
            checks=checks,
        )


def measures(checks: Sequence[PreparedCheck]) -> dict[str, str]:
    """The columns of gathered cells that count the rows of side `table` failing each check."""
    return {check.column: f"table_{check.column}" for check in checks}
