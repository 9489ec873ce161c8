"""The findings ledger: one row per reported difference or failed check of an audit.

A passed audit writes nothing. An audit with many findings keeps a sample; `total` in each row is
the number of findings of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from capstan.core.json_object import Json
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import append_rows, as_text, now

CODES = {
    "missing": "CAP-MISSING",
    "extra": "CAP-EXTRA",
    "changed": "CAP-CHANGED",
    "check": "CAP-CHECK",
    "tape": "CAP-TAPE",
    "violation": "CAP-VIOLATION",
}
"""The stable code by kind of finding; `tape` for wrong records in the tape itself, `violation` for
a recording that breaks a rule."""


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """The subject of an audit."""

    run: str  # empty for a table without a run, or a tape
    attempt: int  # 0 without a run
    stream: str
    cut: int
    target: str  # the path of the table; empty for a tape
    target_version: int | None  # None for staged output or the newest
    audit: str  # `copy`, `shared-columns`, `transform`, `pipeline` or `verification`


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding as stored in the ledger."""

    kind: str  # `missing`, `extra`, `changed`, `check`, `tape` or `violation`
    total: int  # of its kind or check in the audit; 0 for a violation that is gone
    worker: int | None = None  # None if the table has no worker column
    time: str | None = None  # as text; None without a time column or a sample
    expected: Json | None = None
    actual: Json | None = None
    check: str = ""  # empty for differences

    @property
    def sample(self) -> Json | None:
        """The one row, or the columns in which two rows differ, each with both values."""
        if self.expected is None or self.actual is None:
            return self.expected or self.actual
        names = [*self.expected, *(name for name in self.actual if name not in self.expected)]
        pairs = {name: [self.expected.get(name), self.actual.get(name)] for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def write_findings(lake: Lake, subject: AuditSubject, findings: Sequence[StoredFinding]) -> None:
    """Append an audit's findings in one commit with one timestamp; without any, write nothing."""
    if not findings:
        return
    moment = now()
    rows = [
        {
            **asdict(subject),
            "at": moment,
            "kind": finding.kind,
            "code": CODES[finding.kind],
            "check_name": finding.check or None,
            "total": finding.total,
            "worker": finding.worker,
            "time": finding.time,
            "expected": _text(finding.expected),
            "actual": _text(finding.actual),
            "sample": _text(finding.sample),
        }
        for finding in findings
    ]
    append_rows(lake, "findings", rows)


def _text(value: Json | None) -> str | None:
    return None if value is None else as_text(value)
