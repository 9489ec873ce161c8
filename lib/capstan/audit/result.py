"""The result of an audit, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from capstan.core.json_object import Json
from capstan.core.times import TimeType
from capstan.errors import CheckFailedError

# A value per coordinate; None if the table lacks it or has NULL.
CellTime = tuple[int | None, ...]
TimesJson = int | str | None | list[int | str | None]
# The location of a difference: in the audited table or on the tape.
TARGET, TAPE = "target", "tape"
# Of rows that are new, by kind.
_AGAIN = {
    "transform": "the findings show the rows that differ when records come in another order; make "
    "the output independent of it",
    "pipeline": "the findings show the rows that differ when they are computed again, from records "
    "in another order; make operators of your own independent of it, and the lookback as long as "
    "rows depend on earlier records; otherwise report this",
}
_REPAIR = "the findings show the rows; replay the range again to repair the table"
CHECK = "check"
"""The kind of a finding for a row that fails a declared check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the expected and the actual rows, or a row that fails a check.

    `expected` and `actual` are rows; on the tape, a cell's count and fingerprint.
    """

    worker: int | None  # None if the table lacks it
    time: CellTime  # a value per coordinate; None if the table lacks it
    kind: str  # `missing`, `extra`, `changed` or `check`
    expected: Json | None
    actual: Json | None
    where: str = TARGET  # `tape` if the tape's records do not match its index
    check: str = ""  # empty for differences

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The finding as a JSON object, as stored and printed."""
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
    """The result of a declared check; `rule` is the condition for every row, as text for people."""

    name: str
    rule: str
    failing: int  # rows; for unique columns, rows that share their values
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The result as a JSON object; its rows are among the audit's findings."""
        return {"name": self.name, "rule": self.rule, "failing": self.failing}


@dataclass(frozen=True, slots=True)
class Near:
    """The part of a transform's output that depends on the order of rows.

    `unsure` are columns compared exactly, with an empty name if the set of rows depends on the
    order. Such output is now refused, but older runs may have published it. It may differ even if
    nothing has changed.
    """

    columns: tuple[str, ...] = ()  # float sums, compared within `tolerance`
    tolerance: float = 0.0  # `a` equals `b` up to `tolerance * max(1, |a|, |b|)`
    cells: int = 0  # equal only within the tolerance
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The part of a pipeline's output, computed by Spark, that the engine has computed again."""

    cells: int  # (worker, time) compared
    times: Mapping[str, object]  # `since` and `until`, as JSON
    share: float  # of the records or keys, as the pipeline declares it
    keys: tuple[str, ...] = ()  # the columns by whose values the rows were drawn, of all times

    def to_json(self) -> dict[str, object]:
        """The part as a JSON object; `keys` only where keys were drawn."""
        return {key: value for key, value in asdict(self).items() if value != ()}


@dataclass(frozen=True, slots=True)
class InputSample:
    """The part of the records of a stream that was compared with the index, not only counted."""

    stream: str
    times: Mapping[str, object]  # `since` and `until`, as JSON
    share: float  # of the records, at least


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: whether a table matches the stream and meets its declared checks.

    `totals` are exact: rows of the table that are `missing`, `extra` or `changed`; cells of the
    `tape` whose records do not match its index.
    """

    kind: str  # `copy`, `shared-columns`, `transform` or `pipeline`
    passed: bool
    cells: int  # (worker, time) compared, of input and output for a computation
    differing: int
    findings: tuple[Finding, ...]  # a sample, those on the tape first
    records: int
    totals: Mapping[str, int]
    first: str = ""  # the first differing cell as text, or empty
    checks: tuple[CheckResult, ...] = ()
    near: Near = Near()
    engine: EngineSample | None = None  # None when it has computed all rows, or none
    inputs: tuple[InputSample, ...] = ()  # of streams of which not all records were compared

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The findings: first the differences, then the rows that fail a check."""
        return (*self.findings, *(row for check in self.checks for row in check.findings))

    @property
    def failed_checks(self) -> tuple[CheckResult, ...]:
        """The checks that some row fails."""
        return tuple(check for check in self.checks if check.failing)

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The audit as a JSON object, as stored and printed."""
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
            **({} if self.engine is None else {"engine": self.engine.to_json()}),
            **({"inputs": [asdict(each) for each in self.inputs]} if self.inputs else {}),
        }

    def require_passed(self, where: str, *, staged: bool = False) -> None:
        """Check that the audit passed; `staged` rows are new and were never changed."""
        if self.passed:
            return
        if not self.differing:
            self._require_checks(where)
        hint = _AGAIN.get(self.kind, _REPAIR) if staged else _REPAIR
        counts = ", ".join(f"{count} {kind}" for kind, count in self.totals.items() if count)
        raise CheckFailedError(
            "CAP-AUDIT",
            f"{where}: {self.differing} of {self.cells} cells differ ({self.kind} audit), "
            f"first at {self.first}" + (f"; {counts}" if counts else ""),
            "verify the tape with --deep" if self.totals.get(TAPE) else hint,
            cells=self.cells,
            differing=self.differing,
            totals=dict(self.totals),
        )

    def _require_checks(self, where: str) -> None:
        first, *others = self.failed_checks
        more = f"; also failed: {', '.join(check.name for check in others)}" if others else ""
        raise CheckFailedError(
            "CAP-CHECK",
            f"{where}: check {first.name} ({first.rule}) fails for {first.failing} of "
            f"{self.records} rows{more}",
            "the findings show the rows; correct their source or the check",
            check=first.name,
            failing=first.failing,
            checks=[check.to_json() for check in self.checks],
            sample=[finding.actual for finding in first.findings],
        )


def render(time_type: TimeType, time: CellTime) -> TimesJson:
    """A cell's time as JSON, with null for coordinates that the table lacks."""
    values: list[int | str | None] = []
    for coordinate, value in zip(time_type.coordinates, time, strict=True):
        try:
            values.append(None if value is None else coordinate.render(value))
        except (OverflowError, ValueError):
            values.append(value)  # A table may hold years beyond 9999, which no stream can.
    return values[0] if len(values) == 1 else values


def place(time_type: TimeType, worker: int | None, time: CellTime) -> str:
    """A cell as text for people."""
    rendered = render(time_type, time)
    times = rendered if isinstance(rendered, list) else [rendered]
    parts = [] if worker is None else [f"worker {worker}"]
    parts += [
        f"{name} {value}"
        for name, value in zip(time_type.names, times, strict=True)
        if value is not None
    ]
    return ", ".join(parts) or "the whole output"
