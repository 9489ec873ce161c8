"""The fold over events in Spark's Python workers: one checker per recording.

It keeps the holdings of one recording and one batch of events, so memory does not grow with the
number of events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from capstan.core.protocol import Rule, StreamChecker, Violation
from capstan.core.times import Time, TimeType
from capstan.verify.event_columns import EventColumns

# The fold's output: a row per worker.
OUTCOME_SCHEMA = "worker int, outcome string"
_ARROW = pa.schema([("worker", pa.int32()), ("outcome", pa.string())])


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where checking of one worker's recording starts and stops."""

    commit: int = -1  # events up to here were checked before
    seq: int = 0  # the position of the next event
    records: int = 0
    holdings: tuple[tuple[Time, int], ...] | None = None  # None: the initial ones
    stop: int | None = None  # the position to stop before; None for the end

    def checker(self, time_type: TimeType) -> StreamChecker:
        """A checker that continues from here."""
        return StreamChecker(
            time_type.minimum,
            self.holdings,
            seq=self.seq,
            records=self.records,
            order=time_type.order,
        )


@dataclass(frozen=True, slots=True)
class FoldResult:
    """How far a recording is valid, the times held there in listing order, and what ended it."""

    events: int
    records: int
    holdings: tuple[tuple[Time, int], ...]  # `(time, count)`
    violation: Violation | None = None

    @classmethod
    def of(cls, checker: StreamChecker, violation: Violation | None = None) -> FoldResult:
        """The present state of a checker."""
        return cls(checker.seq, checker.records, checker.holdings, violation)

    def to_text(self) -> str:
        """The result as JSON text, which `from_text` reads back."""
        # A violation ends the recording, so its holdings are those of the violation.
        violation = self.violation and replace(self.violation, held=())
        return json.dumps(asdict(replace(self, violation=violation)))

    @classmethod
    def from_text(cls, text: str) -> FoldResult:
        """The result written by `to_text`."""
        values = json.loads(text)
        holdings = tuple((Time(time), count) for time, count in values["holdings"])
        violation = values["violation"]
        if violation is not None:
            rule, time = Rule(violation["rule"]), violation["time"]
            time = None if time is None else Time(time)
            violation = Violation(**violation | {"rule": rule, "time": time, "held": holdings})
        return cls(values["events"], values["records"], holdings, violation)


def fold(
    batches: Iterable[pa.RecordBatch], time_type: TimeType, starts: Mapping[int, ResumePoint]
) -> Iterator[pa.RecordBatch]:
    """Check recordings one after another: a row with `worker` and its result as text for each.

    Events have the columns of `event_columns.columns_of`, sorted by worker and seq; a recording may
    span batches. A worker that is not in `starts` is unknown.
    """
    current: _Recording | None = None
    for batch in batches:
        columns = EventColumns.of(batch, len(time_type.coordinates))
        if not batch.num_rows:
            continue
        for worker, rows in columns.sequences():
            if current is None or current.worker != worker:
                if current is not None:
                    yield current.result()
                current = _Recording(worker, time_type, starts.get(worker))
            current.check(columns, rows)
    if current is not None:
        yield current.result()


class _Recording:
    """The recording being checked."""

    __slots__ = ("_checker", "_ended", "_start", "_violation", "worker")

    def __init__(self, worker: int, time_type: TimeType, start: ResumePoint | None) -> None:
        self.worker = worker
        self._start = start or ResumePoint()
        self._checker = self._start.checker(time_type)
        self._violation: Violation | None = None
        self._ended = False
        if start is None:
            unopened = "an event of a worker that was never opened"
            self._end(self._checker.refuse(Rule.SHAPE, unopened))

    def check(self, columns: EventColumns, rows: range) -> None:
        """Check further events, up to the first violation."""
        if self._ended:
            return
        checker, stop, special = self._checker, self._start.stop, columns.special
        updates, offsets = columns.updates, columns.offsets
        for row in columns.later(rows, self._start.commit):
            if checker.seq == stop:
                self._end(None)
                return
            if row in special:
                violation = self._check_special(columns, row)
            elif columns.seqs[row] != checker.seq:
                violation = checker.expect(columns.seqs[row])
            elif columns.progress[row]:
                violation = checker.progress(updates[offsets[row] : offsets[row + 1]])
            else:
                violation = checker.messages((columns.times[row],), columns.records[row])
            if violation is not None:
                self._end(violation)
                return

    def _check_special(self, columns: EventColumns, row: int) -> Violation | None:
        """Check an event that is faulty, or messages that do not have one time."""
        found = columns.special[row]
        if isinstance(found, str):
            return self._checker.refuse(Rule.SHAPE, found)
        if columns.seqs[row] != self._checker.seq:
            return self._checker.expect(columns.seqs[row])
        return self._checker.messages(found, columns.records[row])

    def result(self) -> pa.RecordBatch:
        """The row with the result."""
        outcome = FoldResult.of(self._checker, self._violation).to_text()
        return pa.record_batch([[self.worker], [outcome]], schema=_ARROW)

    def _end(self, violation: Violation | None) -> None:
        self._violation = violation
        self._ended = True
