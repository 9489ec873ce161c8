"""The ledger `retired`: times of a tape whose records were deleted.

A row is written before the first deletion, so that no reader takes the remaining records for all
of them. A second row follows after the last deletion. Events are kept, with record counts and
content hashes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import shell_line
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import parse_region, region_text
from capstan.storage.ledger.tables import append_rows, read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape

_SKIP_RETIRED = "leave out these times (--since {since}); rows published from them remain"
WHOLE = (
    "this command needs the whole recording; `capstan replay {stream} --into TABLE "
    "--since {since}` replays the remaining records"
)
"""The hint for commands that need a whole recording and have no time range."""


class RetirementState(StrEnum):
    """The progress of a retirement."""

    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Retired:
    """Times whose records were or will be deleted."""

    box: Box
    cut: int  # the commit of the tape at which they were complete
    records: int  # in the index at these times
    at: datetime
    done: bool  # whether all records were deleted


def write_retired(
    lake: Lake, tape: Tape, box: Box, cut: Cut, records: int, state: RetirementState
) -> None:
    """Append a row to the ledger."""
    row = {
        "stream": tape.name,
        "tape": tape.identity,
        "region": region_text(Region(box)),
        "cut": cut.commit,
        "records": records,
        "state": str(state),
    }
    append_rows(lake, "retired", [row])


def read_retired(lake: Lake, tape: Tape) -> list[Retired]:
    """Retirements of a tape in the order they were started, read without a JVM."""
    rows = read_rows(lake, "retired", stream=tape.name)
    if not rows:
        return []
    identity = tape.identity
    by_region: dict[str, Retired] = {}
    for row in rows:
        if row["tape"] != identity:
            continue
        text = row["region"]
        first = by_region.get(text)
        by_region[text] = Retired(
            parse_region(text).box,
            row["cut"],
            row["records"],
            row["at"] if first is None else first.at,
            row["state"] == RetirementState.DONE or (first is not None and first.done),
        )
    return list(by_region.values())


def retired_boxes(lake: Lake, tape: Tape) -> tuple[Box, ...]:
    """The retired times of a tape."""
    return tuple(retired.box for retired in read_retired(lake, tape))


def missing_boxes(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region, retired: Sequence[Box]
) -> list[Box]:
    """The retired boxes that had records of these workers in a region."""
    missing = []
    for box in retired:
        simple = region.simplified()
        part = Region(simple.box.intersect(box), simple.below, simple.above)
        if not part.box.is_empty and index.content_summary(tape, cut, workers, part).records:
            missing.append(box)
    return missing


def require_records(
    lake: Lake,
    tape: Tape,
    cut: Cut,
    workers: Collection[int],
    region: Region,
    subject: str,
    hint: str = _SKIP_RETIRED,
) -> None:
    """Check that no records of these workers and times were retired.

    `subject` and `hint` are those of `retired_error`.
    """
    missing = missing_boxes(tape, cut, workers, region, retired_boxes(lake, tape))
    if missing:
        raise retired_error(tape, missing[0], subject, hint)


def retired_error(
    tape: Tape, box: Box, subject: str, hint: str = _SKIP_RETIRED
) -> InvalidRequestError:
    """The error of an operation (`subject`) that needs retired records.

    `{stream}` and `{since}` in the hint stand for the stream and the first time with records.
    Commands without `--since` have a different hint.
    """
    before = box.to_json(tape.time_type)["until"]
    shown = before if isinstance(before, str | int) else ", ".join(map(str, before or ()))
    return InvalidRequestError(
        "CAP-RETIRED",
        f"{subject} needs records of stream {tape.name} before {shown}, which were retired",
        hint.format(stream=tape.name, since=shell_line(shown)),
        stream=tape.name,
        before=before,
    )
