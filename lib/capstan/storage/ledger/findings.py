"""The findings ledger: one row per reported difference or failed check of an audit.

A passed audit writes nothing. An audit with many findings keeps a sample; `total` in each row is
the number of findings of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

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
    """The subject of an audit.

    Attributes:
        run: The run; empty for an audit of a table without a run, or of a tape.
        attempt: Its attempt; 0 without a run.
        target: The path of the audited table; empty for a tape.
        target_version: Its version; None for staged output and for the newest version.
        audit: The kind of audit: `copy`, `shared-columns`, `transform`, `pipeline` or
            `verification`.
    """

    run: str
    attempt: int
    stream: str
    cut: int
    target: str
    target_version: int | None
    audit: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding as stored in the ledger.

    Attributes:
        kind: `missing`, `extra`, `changed`, `check`, `tape` or `violation`.
        total: The number of findings of this kind, or of this check, in the whole audit; 0 for a
            violation that no longer exists.
        worker: The captured worker; None if the table has no worker column.
        time: The time as text; None if the table has no time column, or for a finding without a
            sample.
        check: The name of the check; empty for differences.
    """

    kind: str
    total: int
    worker: int | None = None
    time: str | None = None
    expected: Mapping[str, object] | None = None
    actual: Mapping[str, object] | None = None
    check: str = ""

    @property
    def sample(self) -> Mapping[str, object] | None:
        """The one row, or the columns in which two rows differ, each with both values."""
        if self.expected is None or self.actual is None:
            return self.expected or self.actual
        names = [*self.expected, *(name for name in self.actual if name not in self.expected)]
        pairs = {name: [self.expected.get(name), self.actual.get(name)] for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def write_findings(lake: Lake, subject: AuditSubject, findings: Sequence[Finding]) -> None:
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


def _text(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else as_text(value)
