"""An interval of a replay's range, and what can be said of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What can be said of an interval."""

    COVERED = "covered"
    """A run that stands has written all of it, by today's code."""
    STALE = "stale"
    """All of it was written, some of it by other code than would write it today."""
    GAP = "gap"
    """Complete, and not written, wholly or for some workers."""
    CHANGED = "changed"
    """Written, and others have changed some of it in the target since."""
    FAILED = "failed"
    """A gap over which the last attempt has failed."""
    WAITING = "waiting"
    """A gap, or stale, and what a run has staged for it waits for a person's decision."""
    RETIRED = "retired"
    """A gap, or stale, and past mending: records of its times were deleted from the tape."""
    INCOMPLETE = "incomplete"
    """Its times can still receive records."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a replay's range, half-open in the last coordinate of its times.

    Attributes:
        since: Its first time, as the stream's times are written.
        until: The first time after it.
        state: What can be said of it.
        runs: The runs whose rows stand in it, in the order they were published; of a `failed` one
            the run that has failed comes last, of a `waiting` one those that wait.
        missing: Labels of the workers of which it is not, or not wholly, covered.
        stale: Labels of the workers of which some was written by other code than today's.
        partly: Those of the missing workers of which some of it is covered.
        workers: Labels of the workers that can have records in it: not those opened later.
        changes: The commits of others that have touched what was written, with version and time.
    """

    since: str
    until: str
    state: State
    runs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The interval as `--json` prints it."""
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
    """Adjacent intervals that are in the same state for the same workers, put together."""
    found: list[list[Interval]] = []
    for each in intervals:
        last = found[-1][-1] if found else None
        if last is not None and (last.state, last.missing) == (each.state, each.missing):
            found[-1].append(each)
        else:
            found.append([each])
    return found
