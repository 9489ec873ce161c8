"""What an audit found, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capstan.errors import AnswerIsNo
from capstan.times import TimeType

# Per coordinate its value; None where the table does not keep it, or has NULL there.
CellTime = tuple[int | None, ...]
TimesJson = int | str | None | list[int | str | None]
# Where a difference is: in the audited table, or on the tape itself.
TARGET, TAPE = "target", "tape"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what is there and what should be.

    Attributes:
        worker: The captured worker; None where the table does not keep it.
        time: Per coordinate the value, None where it is not kept.
        kind: `missing`, `extra` or `changed`.
        expected: The row that should be there, or None; on the tape, the cell's count and
            fingerprint.
        actual: What is there instead, or None.
        where: `target`, or `tape` when the tape's own records are not what its index says.
    """

    worker: int | None
    time: CellTime
    kind: str
    expected: Mapping[str, object] | None
    actual: Mapping[str, object] | None
    where: str = TARGET

    def as_json(self, time_type: TimeType) -> dict[str, object]:
        """The finding as the object that `--json` prints."""
        return {
            "worker": self.worker,
            "time": render(time_type, self.time),
            "kind": self.kind,
            "expected": self.expected,
            "actual": self.actual,
            "where": self.where,
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer to: is this table exactly what the stream said?

    Attributes:
        kind: What was checked: `copy`, `shared-columns` or `transform`.
        passed: Whether nothing differs.
        cells: How many cells (worker, time) were compared; of a transform those of its input and
            of its output.
        differing: How many of them differ.
        findings: A sample of the differences, those on the tape first.
        records: Rows found in the table.
        totals: Exact counts: rows of the table that are `missing`, `extra`, `changed`; cells of
            the `tape` whose own records are not what its index says.
        first: Where the first differing cell is, as text; empty when none differs.
    """

    kind: str
    passed: bool
    cells: int
    differing: int
    findings: tuple[Finding, ...]
    records: int
    totals: Mapping[str, int]
    first: str = ""

    def as_json(self, time_type: TimeType) -> dict[str, object]:
        """The audit as the object that `--json` prints."""
        return {
            "kind": self.kind,
            "passed": self.passed,
            "cells": self.cells,
            "differing": self.differing,
            "records": self.records,
            "totals": dict(self.totals),
            "findings": [finding.as_json(time_type) for finding in self.findings],
        }

    def require_passed(self, where: str) -> None:
        """Check that the audit passed.

        Args:
            where: What was audited, for the message.

        Raises:
            AnswerIsNo: `CAP-AUDIT`, saying how many cells differ and where the first is.
        """
        if self.passed:
            return
        counts = ", ".join(f"{count} {kind}" for kind, count in self.totals.items() if count)
        raise AnswerIsNo(
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
