"""Capture from a streaming query of the caller's: a function for `foreachBatch`.

timely dataflow's `capture_into` is a method of any stream. So is this: the query may have any
source, transformations, watermark and trigger; what its frame holds is what the tape records.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from capstan.capture.batch import checkpoint_guard, classify
from capstan.capture.batch.micro_batch import BatchResult, MicroBatch
from capstan.capture.batch.roster import Roster
from capstan.capture.query.running_query import IdleListener, Query
from capstan.capture.query.tape_settings import start_tape
from capstan.capture.source.files.consumed_offsets import consumed_by_query
from capstan.capture.synthetic import synthetic_batch
from capstan.core.config import EventTime, Stream
from capstan.core.config.sources import QUERY
from capstan.errors import CapstanError, InvalidRequestError
from capstan.errors.shell_command import command
from capstan.errors.translation import translated
from capstan.spark.guest_session import call_session, require_delta
from capstan.spark.own_session import active, handed_over, reading_like
from capstan.spark.safe_commits import require_safe_commits
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, exists
from capstan.storage.tape.feed import Consumed
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# For each stream of this process, by lake and name, the run of a query, its batch that was recorded
# last, and the hash of the frame's plan.
_recorded: dict[tuple[str, str], tuple[str, int, int]] = {}


@dataclass(frozen=True, slots=True)
class _OpenTape:
    """A tape between two micro-batches of its query."""

    tape: Tape
    checkpoint: checkpoint_guard.Checkpoint
    roster: Roster
    next: int  # the query's number of the next micro-batch
    version: int  # of the tape's index; another one means another writer

    def continues(self, query: Query, batch: int) -> bool:
        """Whether a batch follows, and the tape is as the batch before it has left it."""
        same = self.checkpoint.identity == query.identity and self.next == batch
        return same and self.version == _version(self.tape)


class CaptureInto:
    """Records each micro-batch of a streaming query on a tape, exactly once.

    Pass it to `foreachBatch`, or call it in a function of yours that is passed there. The query's
    checkpoint identifies it: a restarted query continues, and any other is refused.
    """

    def __init__(
        self, lake: Lake, stream: Stream, *, reseat: bool = False, rescale: int | None = None
    ) -> None:
        """Name the tape of a stream without a source of its own; nothing is opened yet.

        With `reseat`, a query that has not recorded the stream yet takes its present one's place.
        """
        require_no_source(stream)
        self.lake = lake
        self.stream = stream
        self.reseat = reseat
        self.rescale = rescale
        self.last: BatchResult | None = None
        self._lock = threading.Lock()
        self._recording: _OpenTape | None = None
        self._run: str | None = None
        self._session: SparkSession | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # Spark Connect sends functions to its server: the call there is refused by code.
        again = partial(CaptureInto, reseat=self.reseat, rescale=self.rescale)
        return again, (self.lake, self.stream)

    def __repr__(self) -> str:
        return f"capture_into({self.stream.name!r}, lake={self.lake.root!r})"

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Record a micro-batch; called by Spark."""
        try:
            self._record_once(frame, batch)
        except CapstanError as error:
            # Spark passes on the text of an error alone.
            error.add_note(f"What to do: {error.hint}")
            raise

    @translated
    def _record_once(self, frame: DataFrame, batch: int) -> None:
        with self._lock:
            query = Query.of(frame)
            if self._is_repeated(query, frame, batch):
                return
            session = self._session_beside(frame.sparkSession)
            with active(session):
                self._record(session, query, frame, batch)

    def _session_beside(self, caller: SparkSession) -> SparkSession:
        """The session of Capstan's expressions, in the application of the query."""
        known = self._session
        if self._recording is None or known is None or known.sparkContext != caller.sparkContext:
            require_delta(caller)
            require_safe_commits(caller, self.lake.root)
            self._session = session_of_expressions(call_session(caller), caller, self.stream)
        assert self._session is not None
        return self._session

    def _record(self, session: SparkSession, query: Query, frame: DataFrame, batch: int) -> None:
        prepared = classify.prepare(handed_over(frame, session), self.stream)
        consumed = consumed_by_query(query.folder, batch)
        # Whatever ends this early, the next attempt begins from what is stored.
        recording, self._recording = self._recording, None
        if recording is None or not recording.continues(query, batch):
            recording = self._begin(session, prepared, query, batch, consumed)
        if recording is not None:
            tape = recording.tape
            micro_batch = MicroBatch(self.stream, tape, recording.checkpoint, batch, consumed)
            self.last = micro_batch.capture(prepared, recording.roster)
            self._recording = replace(
                recording, roster=self.last.roster, next=batch + 1, version=_version(tape)
            )
        elif query.has_state:
            # The batch is on tape, but the query's own operators keep state of its rows.
            frame.write.format("noop").mode("overwrite").save()
        _recorded[self._place] = query.run, batch, frame.semanticHash()

    def _begin(
        self,
        session: SparkSession,
        prepared: DataFrame,
        query: Query,
        batch: int,
        consumed: tuple[Consumed, ...],
    ) -> _OpenTape | None:
        """Open the tape, or create it; None when it has the batch already."""
        emit("capture.begin", stream=self.stream.name)
        query.require_checkpoint(self.stream.name)
        if batch:
            self._require_lake(batch)
        stream, payload = self.stream, payload_of(prepared.schema)
        tape = start_tape(session, self.lake, stream, payload, self.rescale)
        asking = checkpoint_guard.Checkpoint(query.identity, 0, folder=query.folder)
        checkpoint = checkpoint_guard.attach(session, tape, asking, batch, reseat=self.reseat)
        emit("capture.attach", stream=stream.name, batch=batch)
        self._listen(session, query)
        if checkpoint_guard.is_recorded(tape, checkpoint, batch, consumed[0]):
            return None
        # Read before the roster: a commit between the two is noticed with the next micro-batch.
        version, cut = _version(tape), newest_cut(tape)
        return _OpenTape(tape, checkpoint, Roster.load(tape, cut), batch, version)

    @property
    def _place(self) -> tuple[str, str]:
        return self.lake.root, self.stream.name

    def _is_repeated(self, query: Query, frame: DataFrame, batch: int) -> bool:
        """Whether this frame was recorded before, in the same run of its query."""
        if batch != query.batch:
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"stream {self.stream.name}: capture_into was called for batch {batch}, but the "
                f"query is at batch {query.batch}",
                "pass on the number that Spark gives to your function",
                stream=self.stream.name,
            )
        recorded = _recorded.get(self._place)
        if recorded is None or recorded[:2] != (query.run, batch):
            return False
        if recorded[2] != frame.semanticHash():
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"stream {self.stream.name}: capture_into was called twice for batch {batch}, with "
                "different frames",
                "call it once for each stream, with the union of the frames",
                stream=self.stream.name,
            )
        return True

    def _require_lake(self, batch: int) -> None:
        """Check that there is a lake for a query with a past: it may not be mounted."""
        # A new lake would lack what the query has recorded before.
        if not exists(self.lake.root):
            raise InvalidRequestError(
                "CAP-LAKE",
                f"there is no lake at {self.lake.root}, but the query is at batch {batch} already",
                "mount or restore the lake; or create the folder, to record from this batch on",
                stream=self.stream.name,
            )

    def _listen(self, session: SparkSession, query: Query) -> None:
        """Have idle workers advance while the query finds no records, if the stream asks for it."""
        time = self.stream.time
        if isinstance(time, EventTime) and time.idle_after is not None and self._run != query.run:
            self._run = query.run
            IdleListener(session, query, lambda moment: self._advance_idle(session, moment))

    def _advance_idle(self, session: SparkSession, moment: datetime) -> None:
        # While a micro-batch is being recorded, the query is not idle any more.
        if self._lock.acquire(blocking=False):
            try:
                # Whatever hinders it hinders the next micro-batch as well, which says so.
                with suppress(CapstanError), active(session):
                    tape = open_tape(self.lake, self.stream.name)
                    synthetic_batch.advance_idle(session, tape, self.stream, moment)
            finally:
                self._lock.release()


def require_no_source(stream: Stream) -> None:
    """Check that a stream is recorded by a query of the caller's."""
    if stream.source.format != QUERY:
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {stream.name} is declared with a source of its own",
            f"capture it with {command('capture', stream.name)}; or declare `source: "
            f"{{format: {QUERY}}}` to record it from a query of yours",
            stream=stream.name,
        )


def session_of_expressions(own: SparkSession, caller: SparkSession, stream: Stream) -> SparkSession:
    """The session of Capstan's expressions over a caller's rows, which are computed with them."""
    # Only an expression of the declaration reads a format for times itself.
    time = stream.time
    declared = isinstance(time, EventTime) and time.expression is not None
    return own if declared else reading_like(own, caller)


def _version(tape: Tape) -> int:
    return delta.open_table(tape.paths.events).version()
