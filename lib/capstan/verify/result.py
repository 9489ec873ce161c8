"""The result of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field

from capstan.core.protocol import Violation
from capstan.core.protocol.rules import holdings_json
from capstan.core.times import Box, TimeType
from capstan.errors import CheckFailedError
from capstan.errors.shell_command import command
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.tape import Cut, Tape


@dataclass(frozen=True, slots=True)
class WorkerVerdict(WorkerState):
    """The verdict on one worker's recording at a cut, with figures before its first violation.

    The number is -1 for events and records that name no worker. The label is empty for a worker
    that the stream does not have.
    """

    violation: Violation | None

    @property
    def valid(self) -> bool:
        """Whether the whole recording obeys the rules."""
        return self.violation is None

    @property
    def name(self) -> str:
        """The worker's name in messages: its number, and its label if that differs."""
        number = str(self.worker)
        return number if self.label in ("", number) else f"{number} ({self.label})"

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The verdict as a JSON object."""
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
    """The result of verifying workers of a stream at a cut.

    If all workers were selected, there is also a verdict for those on the tape but unknown to the
    stream. Records at `retired` times were deleted, and not checked.
    """

    tape: Tape = field(repr=False)
    cut: Cut
    workers: tuple[WorkerVerdict, ...]
    retired: tuple[Box, ...] = ()

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.tape.name

    @property
    def valid(self) -> bool:
        """Whether every worker's recording is valid."""
        return all(verdict.valid for verdict in self.workers)

    @property
    def pairs(self) -> str | None:
        """The type of its times if they are pairs, and the tape orders them part by part."""
        ordered = self.tape.time_type.order.lexicographic
        return None if ordered else self.tape.settings.pairs

    def to_json(self) -> dict[str, object]:
        """The verification, as the command line's `--json` prints it."""
        time_type = self.tape.time_type
        return {
            "stream": self.stream,
            "cut": self.cut.commit,
            "valid": self.valid,
            "retired": [box.to_json(time_type)["until"] for box in self.retired],
            **({} if self.pairs is None else {"pairs": self.pairs}),
            "workers": [verdict.to_json(time_type) for verdict in self.workers],
        }

    def raise_for_violations(self) -> Verification:
        """Return this verification if every worker's recording is valid."""
        invalid = [verdict for verdict in self.workers if not verdict.valid]
        if not invalid:
            return self
        first = invalid[0]
        violation = first.violation
        assert violation is not None
        time_type = self.tape.time_type
        facts = violation.to_json(time_type)
        others = f"; {len(invalid) - 1} more workers break a rule" if len(invalid) > 1 else ""
        raise CheckFailedError(
            "CAP-VIOLATION",
            f"stream {self.stream}, worker {first.name} breaks {violation.rule.value}: "
            f"{violation.describe(time_type)}{others}",
            f"see {command('verify', self.stream)}; select workers with valid recordings, or a cut "
            "before the violation",
            stream=self.stream,
            worker=first.worker,
            **{name: facts[name] for name in ("seq", "rule", "time", "held")},
        )
