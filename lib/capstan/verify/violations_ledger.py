"""Violations in the findings ledger: who looks at a stream sees them, whoever has found them.

A recording that breaks a rule is refused wherever it is verified, by a replay too, and a refusal
is but a line in a log. So each violation is written down once, and once more when it is gone: the
newest row of a worker says how its recording stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from capstan.core.protocol import Rule
from capstan.storage.lake import Lake
from capstan.storage.ledger.findings import AuditSubject, Finding, read_findings, write_findings
from capstan.storage.ledger.tables import as_text
from capstan.storage.tape.tape import Tape
from capstan.verify.result import Verification, WorkerVerdict
from capstan.verify.verified_ledger import tape_id

if TYPE_CHECKING:
    pass

KIND = "violation"
AUDIT = "verification"
_HELD = 20


@dataclass(frozen=True, slots=True)
class KnownViolation:
    """A violation that the ledger knows, and nobody has found gone.

    Attributes:
        stream: The stream.
        tape: What tells its tape from another one of that name.
        worker: Whose recording it is; None for events that name no worker.
        cut: The commit up to which it was verified.
        at: When.
        seq: The event that breaks a rule.
        rule: The rule.
        about: The same in a sentence.
    """

    stream: str
    tape: str
    worker: int | None
    cut: int
    at: datetime
    seq: int
    rule: str
    about: str


def known_violations(lake: Lake, **equal: object) -> list[KnownViolation]:
    """Violations that stand, by worker, of rows of the ledger with these column values.

    No JVM is needed.
    """
    newest: dict[tuple[str, str, object], KnownViolation | None] = {}
    for row in read_findings(lake, audit=AUDIT, **equal):
        known = _known(row)
        newest[known.stream, known.tape, known.worker] = known if row["total"] else None
    standing = [each for each in newest.values() if each is not None]
    return sorted(standing, key=lambda e: (e.stream, e.tape, -1 if e.worker is None else e.worker))


def note_violations(lake: Lake, tape: Tape, found: Verification, *, deep: bool) -> None:
    """Write down what has become of recordings since somebody last looked; mostly nothing.

    Args:
        lake: The lake.
        tape: The tape that was verified.
        found: What came of it.
        deep: Whether records were read: without, content that was wrong may be so still.
    """
    before = {
        each.worker: each
        for each in known_violations(lake, stream=tape.name)
        if each.tape == tape_id(tape)
    }
    cut = found.cut.commit
    # Before the cut at which it was found nothing is said of a violation.
    later = {worker for worker, each in before.items() if each.cut > cut}
    judged = [each for each in found.workers if _number(each) not in later]
    rows = [row for each in judged for row in _rows(tape, each, before, deep)]
    write_findings(lake, AuditSubject("", 0, tape.name, cut, "", None, AUDIT), rows)


def _rows(
    tape: Tape, verdict: WorkerVerdict, before: Mapping[int | None, KnownViolation], deep: bool
) -> Sequence[Finding]:
    worker = _number(verdict)
    old, violation = before.get(worker), verdict.violation
    if violation is None:
        if old is None or (old.rule == Rule.CONTENT.value and not deep):
            return ()
        told = {"tape": old.tape, "seq": old.seq, "rule": old.rule, "about": old.about}
        return (Finding(KIND, 0, worker, None, told, None),)
    if old is not None and (old.seq, old.rule) == (violation.seq, violation.rule.value):
        return ()
    said = violation.to_json(tape.time_type)
    time, held = said["time"], said["held"]
    text = time if time is None or isinstance(time, str) else as_text(time)
    some = held[:_HELD] if isinstance(held, list) else held
    told = {"tape": tape_id(tape), **said, "held": some}
    return (Finding(KIND, 1, worker, text, None, told),)


def _number(verdict: WorkerVerdict) -> int | None:
    return None if verdict.worker < 0 else verdict.worker


def _known(row: Mapping[str, object]) -> KnownViolation:
    told = json.loads(str(row["actual"] if row["actual"] is not None else row["expected"]))
    worker, at = row["worker"], row["at"]
    assert isinstance(at, datetime)
    return KnownViolation(
        str(row["stream"]),
        str(told["tape"]),
        None if worker is None else int(str(worker)),
        int(str(row["cut"])),
        at,
        int(told["seq"]),
        str(told["rule"]),
        str(told["about"]),
    )
