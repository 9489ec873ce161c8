"""Who has started, approved, rejected and rolled back a run, from its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from capstan.storage.ledger.made_by import MadeBy
from capstan.storage.ledger.runs import Row, Step

_DEEDS = {
    Step.INTENT: "started",
    Step.FAILED: "started",  # Of an attempt that has failed before its intent.
    Step.APPROVED: "approved",
    Step.REJECTED: "rejected",
    Step.ROLLED_BACK: "rolled back",
}


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody has done to a run."""

    what: str
    who: str  # Empty if nobody is named.
    at: datetime
    by: MadeBy | None  # None if no DAG run did it, or it is not known which.
    reason: str = ""


def deeds(steps: Iterable[Row]) -> Iterator[Deed]:
    """What was done to a run, in order; of each attempt its start once."""
    started: set[int] = set()
    for row in steps:
        what, by = _DEEDS.get(row.step), row.made_by
        person = str(row.detail.get("by") or "")
        if what is None or (by is None and not person):
            continue
        if what == "started":
            if row.attempt in started:
                continue
            started.add(row.attempt)
        who = person or (by.user if by else "")
        yield Deed(what, who, row.at, by, str(row.detail.get("reason") or ""))
