"""Violations in the findings ledger, where everybody who inspects a stream sees them.

Every verification refuses an invalid recording, but a refusal is only a line in some log. So each
violation is recorded once, and once more when it is gone: the newest row of a worker gives the
state of its recording.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from capstan.core.protocol import Rule
from capstan.storage.lake import Lake
from capstan.storage.ledger.findings import AuditSubject, StoredFinding, write_findings
from capstan.storage.ledger.tables import as_text, read_rows
from capstan.storage.tape.tape import Tape
from capstan.verify.result import Verification, WorkerVerdict

KIND = "violation"
AUDIT = "verification"
_HELD = 20


@dataclass(frozen=True, slots=True)
class KnownViolation:
    """A violation in the ledger that has not been found gone."""

    stream: str
    tape: str
    worker: int | None  # None for events that name no worker
    cut: int  # the commit up to which it was verified
    at: datetime
    seq: int
    rule: str
    about: str


def known_violations(lake: Lake, **equal: object) -> list[KnownViolation]:
    """The present violations among rows with these column values, by worker; needs no JVM."""
    newest: dict[tuple[str, str, object], KnownViolation | None] = {}
    for row in read_rows(lake, "findings", audit=AUDIT, **equal):
        known = _known(row)
        newest[known.stream, known.tape, known.worker] = known if row["total"] else None
    present = [violation for violation in newest.values() if violation is not None]
    return sorted(present, key=lambda v: (v.stream, v.tape, -1 if v.worker is None else v.worker))


def record_violations(lake: Lake, tape: Tape, verification: Verification, *, deep: bool) -> None:
    """Record changes since the last verification; usually there are none."""
    # Content violations stay unless records were read (`deep`).
    before = {
        violation.worker: violation
        for violation in known_violations(lake, stream=tape.name)
        if violation.tape == tape.identity
    }
    cut = verification.cut.commit
    # A verification of an earlier cut does not affect a violation found later on the tape.
    later = {worker for worker, violation in before.items() if violation.cut > cut}
    verdicts = [verdict for verdict in verification.workers if _number(verdict) not in later]
    rows = [row for verdict in verdicts for row in _rows(tape, verdict, before, deep)]
    write_findings(lake, AuditSubject("", 0, tape.name, cut, "", None, AUDIT), rows)


def _rows(
    tape: Tape, verdict: WorkerVerdict, before: Mapping[int | None, KnownViolation], deep: bool
) -> Sequence[StoredFinding]:
    worker = _number(verdict)
    old, violation = before.get(worker), verdict.violation
    if violation is None:
        if old is None or (old.rule == Rule.CONTENT.value and not deep):
            return ()
        expected = {"tape": old.tape, "seq": old.seq, "rule": old.rule, "about": old.about}
        return (StoredFinding(KIND, 0, worker, None, expected, None),)
    if old is not None and (old.seq, old.rule) == (violation.seq, violation.rule.value):
        return ()
    facts = violation.to_json(tape.time_type)
    time, held = facts["time"], facts["held"]
    text = time if time is None or isinstance(time, str) else as_text(time)
    first_held = held[:_HELD] if isinstance(held, list) else held
    actual = {"tape": tape.identity, **facts, "held": first_held}
    return (StoredFinding(KIND, 1, worker, text, None, actual),)


def _number(verdict: WorkerVerdict) -> int | None:
    return None if verdict.worker < 0 else verdict.worker


def _known(row: Mapping[str, Any]) -> KnownViolation:
    facts = json.loads(str(row["actual"] if row["actual"] is not None else row["expected"]))
    place = row["stream"], facts["tape"], row["worker"], row["cut"], row["at"]
    return KnownViolation(*place, facts["seq"], facts["rule"], facts["about"])
