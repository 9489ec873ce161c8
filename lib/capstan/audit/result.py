"""What an audit found, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from capstan.core.times import TimeType
from capstan.errors import CheckFailedError

# Per coordinate its value; None where the table does not keep it, or has NULL there.
CellTime = tuple[int | None, ...]
TimesJson = int | str | None | list[int | str | None]
# Where a difference is: in the audited table, or on the tape itself.
TARGET, TAPE = "target", "tape"
CHECK = "check"
"""The kind of a finding that is a row which does not meet a declared check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what is there and what should be.

    Attributes:
        worker: The captured worker; None where the table does not keep it.
        time: Per coordinate the value, None where it is not kept.
        kind: `missing`, `extra` or `changed`; or `check`, a row that does not meet a check.
        expected: The row that should be there, or None; on the tape, the cell's count and
            fingerprint.
        actual: What is there instead, or None.
        where: `target`, or `tape` when the tape's own records are not what its index says.
        check: The name of the check, empty for differences.
    """

    worker: int | None
    time: CellTime
    kind: str
    expected: Mapping[str, object] | None
    actual: Mapping[str, object] | None
    where: str = TARGET
    check: str = ""

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The finding as the object that `--json` prints."""
        return {
            "worker": self.worker,
            "time": render(time_type, self.time),
            "kind": self.kind,
            "expected": self.expected,
            "actual": self.actual,
            "where": self.where,
            "check": self.check or None,
        }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of a declared check.

    Attributes:
        name: Its name.
        rule: What every row must meet, as a person reads it.
        failing: How many rows do not meet it; of columns that are unique, how many rows share
            their values with another.
        findings: Some of these rows.
    """

    name: str
    rule: str
    failing: int
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The result as the object that `--json` prints; the rows are among the findings."""
        return {"name": self.name, "rule": self.rule, "failing": self.failing}


@dataclass(frozen=True, slots=True)
class Near:
    """What of a transform's output depends on the order of rows.

    Attributes:
        columns: Sums of floats, by name; they were compared within a tolerance.
        tolerance: Values `a` and `b` were taken for equal up to `tolerance * max(1, |a|, |b|)`.
        cells: How many cells were equal only so.
        unsure: Other columns that do, which were compared exactly, and an empty name where it is
            which rows there are: of a run that was published before such were refused. They may
            differ though nothing has changed.
    """

    columns: tuple[str, ...] = ()
    tolerance: float = 0.0
    cells: int = 0
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer to: is this table exactly what the stream said, and what its owner demands?

    Attributes:
        kind: What was checked: `copy`, `shared-columns`, `transform` or `pipeline`.
        passed: Whether nothing differs, and every row meets every check.
        cells: How many cells (worker, time) were compared; of a transform or pipeline those
            of its input and of its output.
        differing: How many of them differ.
        findings: A sample of the differences, those on the tape first.
        records: Rows found in the table.
        totals: Exact counts: rows of the table that are `missing`, `extra`, `changed`; cells of
            the `tape` whose own records are not what its index says.
        first: Where the first differing cell is, as text; empty when none differs.
        checks: What came of the declared checks.
        near: What was compared within a tolerance.
    """

    kind: str
    passed: bool
    cells: int
    differing: int
    findings: tuple[Finding, ...]
    records: int
    totals: Mapping[str, int]
    first: str = ""
    checks: tuple[CheckResult, ...] = ()
    near: Near = Near()

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The findings, with the rows that do not meet a check after the differences."""
        return (*self.findings, *(row for check in self.checks for row in check.findings))

    @property
    def failed_checks(self) -> tuple[CheckResult, ...]:
        """The checks that some row does not meet."""
        return tuple(check for check in self.checks if check.failing)

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The audit as the object that `--json` prints."""
        return {
            "kind": self.kind,
            "passed": self.passed,
            "cells": self.cells,
            "differing": self.differing,
            "records": self.records,
            "totals": dict(self.totals),
            "findings": [finding.to_json(time_type) for finding in self.shown],
            "checks": [check.to_json() for check in self.checks],
            **({"near": asdict(self.near)} if self.near != Near() else {}),
        }

    def require_passed(self, where: str) -> None:
        """Check that the audit passed.

        Args:
            where: What was audited, for the message.

        Raises:
            CheckFailedError: `CAP-AUDIT`, saying how many cells differ and where the first is;
                `CAP-CHECK` where nothing differs, and rows do not meet a declared check.
        """
        if self.passed:
            return
        if not self.differing:
            self._require_checks(where)
        counts = ", ".join(f"{count} {kind}" for kind, count in self.totals.items() if count)
        raise CheckFailedError(
            "CAP-AUDIT",
            f"{where}: {self.differing} of {self.cells} cells differ ({self.kind} audit), "
            f"first at {self.first}" + (f"; {counts}" if counts else ""),
            "verify the tape with --deep"
            if self.totals.get(TAPE)
            else "the findings show the rows; replay the range again to mend the table",
            cells=self.cells,
            differing=self.differing,
            totals=dict(self.totals),
        )

    def _require_checks(self, where: str) -> None:
        first, *others = self.failed_checks
        more = f"; so do {', '.join(check.name for check in others)}" if others else ""
        raise CheckFailedError(
            "CAP-CHECK",
            f"{where}: check {first.name} ({first.rule}) fails for {first.failing} of "
            f"{self.records} rows{more}",
            "the findings show the rows; mend what makes them, or the check",
            check=first.name,
            failing=first.failing,
            checks=[check.to_json() for check in self.checks],
            sample=[finding.actual for finding in first.findings],
        )


def render(time_type: TimeType, time: CellTime) -> TimesJson:
    """A cell's time as JSON: like a time, with null for coordinates that are not kept."""
    values: list[int | str | None] = []
    for coordinate, value in zip(time_type.coordinates, time, strict=True):
        try:
            values.append(None if value is None else coordinate.render(value))
        except (OverflowError, ValueError):
            values.append(value)  # A table may hold what no stream can: years beyond 9999.
    return values[0] if len(values) == 1 else values


def place(time_type: TimeType, worker: int | None, time: CellTime) -> str:
    """A cell as a person reads it."""
    named = "" if worker is None else f"worker {worker}, "
    values = ", ".join(
        f"{name} {value}"
        for name, value in zip(time_type.names, _listed(time_type, time), strict=True)
        if value is not None
    )
    return (named + values).removesuffix(", ") or "the whole output"


def _listed(time_type: TimeType, time: CellTime) -> list[int | str | None]:
    value = render(time_type, time)
    return value if isinstance(value, list) else [value]
