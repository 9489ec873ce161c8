"""An interval of a replay's range, and its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby


class IntervalState(StrEnum):
    """The state of an interval."""

    COVERED = "covered"
    """Published runs have written all of it, with the present code."""
    STALE = "stale"
    """All of it was written, some of it with other code than the present."""
    GAP = "gap"
    """Complete, but not written, at least for some workers."""
    CHANGED = "changed"
    """Written, but others have changed some of it in the target since."""
    FAILED = "failed"
    """A gap whose last attempt has failed."""
    WAITING = "waiting"
    """A gap, or stale, whose staged output waits for approval."""
    RETIRED = "retired"
    """A gap, or stale, that cannot be filled: records of its times were deleted from the tape."""
    INCOMPLETE = "incomplete"
    """Its times can still receive records."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a replay's range, half-open in the last coordinate of its times."""

    since: str  # its first time, as text in the stream's format
    until: str
    state: IntervalState
    # Whose rows it holds, as published; then the failed or waiting runs, if that is the state.
    runs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # labels of the workers for which it is not fully covered
    stale: tuple[str, ...] = ()  # labels of those for which some of it was written with other code
    partly: tuple[str, ...] = ()  # labels of the missing ones for which some of it is covered
    # Labels of those that can have records in it, not those opened later.
    workers: tuple[str, ...] = ()
    # Commits by others that changed written rows, with version and time.
    changes: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()  # runs that have not ended, and would write some of it

    def to_json(self) -> dict[str, object]:
        """The interval as a JSON object."""
        return {
            "since": self.since,
            "until": self.until,
            "state": str(self.state),
            "runs": list(self.runs),
            "missing": list(self.missing),
            "stale": list(self.stale),
            "partly": list(self.partly),
            "changes": list(self.changes),
        }


def stretches(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """Adjacent intervals with the same state and the same missing workers, as groups."""
    grouped = groupby(intervals, key=lambda interval: (interval.state, interval.missing))
    return [list(group) for _, group in grouped]
