"""The findings ledger: what audits found wrong, a row per difference or failed check that is shown.

What passes leaves nothing. Of an audit that found much only a sample is kept; `total` of each row
says how many there are of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import append_rows, as_text, now, read_rows

if TYPE_CHECKING:
    pass

CODES = {
    "missing": "CAP-MISSING",
    "extra": "CAP-EXTRA",
    "changed": "CAP-CHANGED",
    "check": "CAP-CHECK",
    "tape": "CAP-TAPE",
    "violation": "CAP-VIOLATION",
}
"""The stable code of a finding, by its kind; `tape` where the tape's own records are wrong,
`violation` where a recording breaks a rule."""


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """What was audited.

    Attributes:
        run: The run; empty of a table that no run is asked about, and of a tape.
        attempt: Its attempt; 0 without a run.
        stream: The stream that says what is right.
        cut: The tape's commit.
        target: The path of the audited table; empty of a tape.
        target_version: Its version; None of what is staged, or of the newest.
        audit: The kind of the audit: `copy`, `shared-columns`, `transform`, `pipeline`, or
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
    """A finding as the ledger keeps it.

    Attributes:
        kind: `missing`, `extra`, `changed`, `check`, `tape` or `violation`.
        total: How many there are of this kind, or of this check, in the whole audit; 0 of a
            violation that is there no more.
        worker: The captured worker; None where the table does not keep it.
        time: The time as text; None where it is not kept, or nothing is shown.
        expected: The row that should be there, or on the tape the cell.
        actual: What is there.
        check: The name of the check, empty for differences.
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
        """What to look at first: of two rows the columns that differ, each with both values."""
        if self.expected is None or self.actual is None:
            return self.expected or self.actual
        names = [*self.expected, *(name for name in self.actual if name not in self.expected)]
        pairs = {name: [self.expected.get(name), self.actual.get(name)] for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def write_findings(lake: Lake, audited: AuditSubject, found: Sequence[Finding]) -> None:
    """Append what an audit found, in one commit with one moment; nothing where it found nothing."""
    if not found:
        return
    moment = now()
    rows = [
        {
            **asdict(audited),
            "at": moment,
            "kind": each.kind,
            "code": CODES[each.kind],
            "check_name": each.check or None,
            "total": each.total,
            "worker": each.worker,
            "time": each.time,
            "expected": _text(each.expected),
            "actual": _text(each.actual),
            "sample": _text(each.sample),
        }
        for each in found
    ]
    append_rows(lake, "findings", rows)


def read_findings(lake: Lake, **equal: object) -> list[dict[str, object]]:
    """Rows of the ledger with these column values, the oldest first, without a JVM."""
    return read_rows(lake, "findings", **equal)


def _text(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else as_text(value)
