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
    """A part of a replay's range, half-open in the last coordinate of its times.

    Attributes:
        since: Its first time, as text in the stream's format.
        runs: The runs whose rows it holds, in the order of publication; followed by the failed run
            if the state is `failed`, or the waiting runs if it is `waiting`.
        missing: Labels of the workers for which it is not fully covered.
        stale: Labels of the workers for which some of it was written with other code.
        partly: Labels of the missing workers for which some of it is covered.
        workers: Labels of the workers that can have records in it, not those opened later.
        changes: Commits by others that changed written rows, with version and time.
    """

    since: str
    until: str
    state: IntervalState
    runs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

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
