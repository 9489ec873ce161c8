"""What came of a verification."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.core.protocol import Violation
from capstan.core.protocol.rules import holdings_json
from capstan.core.times import Antichain, Box, Time, TimeType
from capstan.errors import CheckFailedError
from capstan.storage.tape.tape import Cut, Tape


@dataclass(frozen=True, slots=True)
class WorkerVerdict:
    """What came of verifying one worker's recording at a cut.

    Of a recording that is not valid, all figures are those before the first violation.

    Attributes:
        worker: Its number; -1 stands for events and records that name no worker.
        label: What it stands for; empty for a worker that the stream does not have.
        valid: Whether all of it obeys the rules.
        events: How many events are sound, from the beginning.
        records: How many records these have.
        violation: The first violation, or None.
        holdings: What is held after these events: `(time, count)` in listing order.
        frontier: The minimal held times.
        closed: Whether nothing is held.
    """

    worker: int
    label: str
    valid: bool
    events: int
    records: int
    violation: Violation | None
    holdings: tuple[tuple[Time, int], ...]
    frontier: Antichain
    closed: bool

    @property
    def name(self) -> str:
        """The worker as messages call it: its number, and its label if that says more."""
        return (
            f"{self.worker} ({self.label})"
            if self.label not in ("", str(self.worker))
            else (str(self.worker))
        )

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The verdict as reports write it."""
        violation = self.violation
        return {
            "worker": self.worker,
            "label": self.label,
            "valid": self.valid,
            "events": self.events,
            "records": self.records,
            "violation": None if violation is None else violation.to_json(time_type),
            "holdings": holdings_json(self.holdings, time_type),
            "frontier": [time_type.render(time) for time in self.frontier],
            "closed": self.closed,
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of verifying workers of a stream at a cut.

    Attributes:
        stream: The stream's name.
        cut: What was verified: the events up to this commit.
        workers: A verdict for each chosen worker, by number. Where all were chosen, also for
            workers that the stream does not have and that are on its tape all the same.
        retired: Times whose records were deleted; of their records nothing is said.
    """

    stream: str
    cut: Cut
    workers: tuple[WorkerVerdict, ...]
    retired: tuple[Box, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether every worker's recording is."""
        return all(verdict.valid for verdict in self.workers)

    def to_json(self, tape: Tape) -> dict[str, object]:
        """The answer as one JSON object."""
        return {
            "stream": self.stream,
            "cut": self.cut.commit,
            "valid": self.valid,
            "retired": [box.to_json(tape.time_type)["until"] for box in self.retired],
            "workers": [verdict.to_json(tape.time_type) for verdict in self.workers],
        }

    def require_valid(self, tape: Tape) -> None:
        """Check that every worker's recording is valid.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, with the first violation of the first worker that has
                one: worker, seq, rule, time, and what was held.
        """
        broken = [verdict for verdict in self.workers if not verdict.valid]
        if not broken:
            return
        first = broken[0]
        violation = first.violation
        assert violation is not None
        facts = violation.to_json(tape.time_type)
        others = f"; so have {len(broken) - 1} more workers" if len(broken) > 1 else ""
        raise CheckFailedError(
            "CAP-VIOLATION",
            f"stream {self.stream}, worker {first.name} breaks {violation.rule.value}: "
            f"{violation.describe(tape.time_type)}{others}",
            f"see `capstan verify {self.stream}`; choose workers whose recordings are sound, or a "
            "cut before the violation",
            stream=self.stream,
            worker=first.worker,
            **{name: facts[name] for name in ("seq", "rule", "time", "held")},
        )
