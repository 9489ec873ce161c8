"""The ledger `retired`: which times of a tape have no records any more, as they were deleted.

A row is written before the first record goes, so that no reader takes what is left for all there
was; a second one when they are gone. Events stay: what was there, how much, and its content hash.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import parse_region, region_text
from capstan.storage.ledger.tables import append_rows, read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape

if TYPE_CHECKING:
    pass


_LEAVE_OUT = "leave out these times (--since {since}); what was published from them stands"
WHOLE = (
    "a recording is taken whole; `capstan replay {stream} --into TABLE --since {since}` plays "
    "what is left"
)
"""The hint for what takes whole recordings, and has no times to choose."""


class State(StrEnum):
    """How far a retirement is."""

    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Retired:
    """Times whose records were deleted, or are about to be.

    Attributes:
        box: The times.
        cut: The commit of the tape at which they were complete.
        records: How many records the index has there.
        at: When it was begun.
        done: Whether the records are gone.
    """

    box: Box
    cut: int
    records: int
    at: datetime
    done: bool


def write_retired(lake: Lake, tape: Tape, box: Box, cut: Cut, records: int, state: State) -> None:
    """Append a row about a tape."""
    row = {
        "stream": tape.name,
        "tape": _tape_id(tape),
        "region": region_text(Region(box)),
        "cut": cut.commit,
        "records": records,
        "state": str(state),
    }
    append_rows(lake, "retired", [row])


def read_retired(lake: Lake, tape: Tape) -> list[Retired]:
    """What was retired of a tape, in the order in which it was begun; no JVM is needed."""
    rows = read_rows(lake, "retired", stream=tape.name)
    if not rows:
        return []
    own = _tape_id(tape)
    found: dict[str, Retired] = {}
    for row in rows:
        if row["tape"] != own:
            continue
        text, at = str(row["region"]), row["at"]
        assert isinstance(at, datetime)
        first = found.get(text)
        found[text] = Retired(
            parse_region(text).box,
            int(str(row["cut"])),
            int(str(row["records"])),
            at if first is None else first.at,
            row["state"] == State.DONE or (first is not None and first.done),
        )
    return list(found.values())


def boxes_of(lake: Lake, tape: Tape) -> tuple[Box, ...]:
    """The times of a tape that were retired."""
    return tuple(each.box for each in read_retired(lake, tape))


def needed_of(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region, retired: Sequence[Box]
) -> list[Box]:
    """Those of the retired boxes in which workers have had records at times of a region."""
    found = []
    for box in retired:
        both = region.simplified()
        part = Region(both.box.intersect(box), both.below, both.above)
        if not part.box.is_empty and index.content_summary(tape, cut, workers, part).records:
            found.append(box)
    return found


def require_kept(
    lake: Lake,
    tape: Tape,
    cut: Cut,
    workers: Collection[int],
    region: Region,
    what: str,
    hint: str = _LEAVE_OUT,
) -> None:
    """Check that no record is gone of chosen workers and times.

    Args:
        lake: The lake.
        tape: The tape.
        cut: Its point of history.
        workers: The workers.
        region: The times.
        what: What needs the records, as the beginning of a sentence.
        hint: What to do next; see `gone`.

    Raises:
        InvalidRequestError: `CAP-RETIRED`, naming the times that have no records any more.
    """
    needed = needed_of(tape, cut, workers, region, boxes_of(lake, tape))
    if needed:
        raise gone(tape, needed[0], what, hint)


def gone(tape: Tape, box: Box, what: str, hint: str = _LEAVE_OUT) -> InvalidRequestError:
    """The error of whoever needs records that were retired.

    Args:
        tape: The tape.
        box: The times.
        what: What needs the records, as the beginning of a sentence.
        hint: What to do next; `{stream}` and `{since}` in it become the stream and the first time
            that has its records. Who has no `--since` has a hint of its own.
    """
    before = box.to_json(tape.time_type)["until"]
    shown = before if isinstance(before, str | int) else ", ".join(map(str, before or ()))
    return InvalidRequestError(
        "CAP-RETIRED",
        f"{what} needs records of stream {tape.name} before {shown}, which were retired",
        hint.format(stream=tape.name, since=shown),
        stream=tape.name,
        before=before,
    )


def _tape_id(tape: Tape) -> str:
    return str(delta.open_table(tape.paths.events).metadata().id)
