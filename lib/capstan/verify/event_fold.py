"""The fold over events that runs in Spark's Python workers: one judge per recording.

It holds what the recording at hand holds, and one batch of events. So memory does not grow with
the number of events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from capstan.core.protocol import Rule, StreamChecker, Violation
from capstan.core.times import Time
from capstan.verify.event_columns import EventColumns

# What the fold gives: a row per worker.
OUTCOME_SCHEMA = "worker int, outcome string"
_ARROW = pa.schema([("worker", pa.int32()), ("outcome", pa.string())])


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where the judging of one worker's recording begins, and where it stops.

    Attributes:
        commit: Events up to this commit were judged before.
        seq: How many those were: the position of the next one.
        records: How many records those had.
        holdings: What is held after them; None for what every worker starts out with.
        stop: The position to stop before; None to go on to the end.
    """

    commit: int = -1
    seq: int = 0
    records: int = 0
    holdings: tuple[tuple[Time, int], ...] | None = None
    stop: int | None = None

    def judge(self, minimum: Time) -> StreamChecker:
        """The judge that goes on from here."""
        return StreamChecker(minimum, self.holdings, seq=self.seq, records=self.records)


@dataclass(frozen=True, slots=True)
class FoldResult:
    """How far a recording is sound, and what is held there.

    Attributes:
        events: Its sound events, from the beginning.
        records: Their records.
        holdings: What is held after them: `(time, count)` in listing order.
        violation: What ended it, or None.
    """

    events: int
    records: int
    holdings: tuple[tuple[Time, int], ...]
    violation: Violation | None = None

    @classmethod
    def of(cls, judge: StreamChecker, violation: Violation | None = None) -> FoldResult:
        """Where `judge` stands."""
        return cls(judge.events, judge.records, judge.holdings, violation)

    def to_text(self) -> str:
        """The outcome as JSON text, which `from_text` reads back."""
        found = self.violation
        return json.dumps(
            {
                "events": self.events,
                "records": self.records,
                "holdings": self.holdings,
                "violation": found and [found.rule, found.time, found.count, found.detail],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> FoldResult:
        """The outcome that `to_text` wrote."""
        found = json.loads(text)
        holdings = tuple((Time(time), count) for time, count in found["holdings"])
        violation = None
        if found["violation"] is not None:
            rule, time, count, detail = found["violation"]
            # A violation ends the recording, so what was held then is what is held.
            violation = Violation(
                found["events"],
                Rule(rule),
                None if time is None else Time(time),
                holdings,
                count=count,
                detail=detail,
            )
        return cls(found["events"], found["records"], holdings, violation)


def fold(
    batches: Iterable[pa.RecordBatch], minimum: Time, starts: Mapping[int, ResumePoint]
) -> Iterator[pa.RecordBatch]:
    """Judge recordings that come one after another, sorted by worker and seq.

    Args:
        batches: Events as `run.events_to_judge` gives them; a recording may span batches.
        minimum: The time at which every recording starts.
        starts: Where each known worker's judging begins; a worker that is not there is unknown.

    Yields:
        A batch of one row for each worker that has events: `worker`, and its outcome as text.
    """
    current: _Recording | None = None
    for batch in batches:
        columns = EventColumns.of(batch, len(minimum))
        if not batch.num_rows:
            continue
        for worker, rows in columns.sequences():
            if current is None or current.worker != worker:
                if current is not None:
                    yield current.result()
                current = _Recording(worker, minimum, starts.get(worker))
            current.go_on(columns, rows)
    if current is not None:
        yield current.result()


class _Recording:
    """The recording at hand."""

    __slots__ = ("_judge", "_over", "_start", "_violation", "worker")

    def __init__(self, worker: int, minimum: Time, start: ResumePoint | None) -> None:
        self.worker = worker
        self._start = start or ResumePoint()
        self._judge = self._start.judge(minimum)
        self._violation: Violation | None = None
        self._over = False
        if start is None:
            self._end(self._judge.refuse(Rule.SHAPE, "an event of a worker that was never opened"))

    def go_on(self, columns: EventColumns, rows: range) -> None:
        """Judge further events, up to the first violation."""
        if self._over:
            return
        judge, stop, faults = self._judge, self._start.stop, columns.faults
        updates, offsets = columns.updates, columns.offsets
        for row in columns.later(rows, self._start.commit):
            if judge.seq == stop:
                self._end(None)
                return
            if row in faults:
                violation: Violation | None = judge.refuse(Rule.SHAPE, faults[row])
            elif columns.seqs[row] != judge.seq:
                violation = judge.expect(columns.seqs[row])
            elif columns.progress[row]:
                violation = judge.progress(updates[offsets[row] : offsets[row + 1]])
            else:
                violation = judge.messages(columns.times[row], columns.records[row])
            if violation is not None:
                self._end(violation)
                return

    def result(self) -> pa.RecordBatch:
        """The row that says what came of it."""
        outcome = FoldResult.of(self._judge, self._violation).to_text()
        return pa.record_batch([[self.worker], [outcome]], schema=_ARROW)

    def _end(self, violation: Violation | None) -> None:
        self._violation = violation
        self._over = True
