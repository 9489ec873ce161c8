"""The query of a capture, why it ended, and the turns of threads that write to a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from pyspark.errors import AnalysisException, StreamingQueryException

from capstan.capture.batch import classify
from capstan.capture.batch.micro_batch import BatchResult, MicroBatch
from capstan.capture.source.errors import (
    broker_gone,
    file_damaged,
    options_refused,
    query_refused,
    source_error,
    source_moved,
)
from capstan.capture.source.files.consumed_offsets import consumed
from capstan.capture.source.selection import selection_failed
from capstan.capture.source.text.line_checks import CheckedLines
from capstan.errors import CapstanError, translation
from capstan.spark.own_session import active, handed_over, owned
from capstan.storage.tape.tape import fenced, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.capture.batch.checkpoint_guard import Checkpoint
    from capstan.capture.batch.roster import Roster
    from capstan.core.config import Stream
    from capstan.storage.lake import Lake
    from capstan.storage.tape.tape import Tape


# Spark has an error for each of the logs that another query with this checkpoint may write first.
_OF_ANOTHER_QUERY = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
)

_locks: dict[tuple[str, str], threading.Lock] = {}
# The streams whose turn a call has, in whichever thread it goes on.
_of_call: ContextVar[frozenset[tuple[str, str]]] = ContextVar("capstan turns", default=frozenset())
_S = TypeVar("_S", "str", "Stream")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Writer = Callable[Concatenate["SparkSession", "Lake", _S, _P], _R]


@dataclass(slots=True)
class CaptureQuery:
    """The query of a capture."""

    stream: Stream
    tape: Tape
    checkpoint: Checkpoint
    own: SparkSession | None  # prepares a caller's rows; None if they are prepared
    lines: CheckedLines | None  # files of JSON that may be read as such
    roster: Roster  # after the last micro-batch
    folders: Sequence[str] = ()  # columns that come from the names of folders
    results: list[BatchResult] = field(default_factory=list)
    _failure: CapstanError | None = None
    _loses: bool = False

    def run(self, rows: DataFrame) -> bool:
        """Record the micro-batches available; False if the next must be read as text first."""
        on_tape, self._loses = newest_cut(self.tape).batch, False

        def record(frame: DataFrame, at: int) -> None:
            # A batch of before is on the tape in full: the capture was killed behind its commit.
            if self.checkpoint.number(at) > on_tape:
                self._record(frame, at)

        # Spark calls back on a thread of its own, which is to be of this call too.
        context = copy_context()
        writer = (
            rows.writeStream.foreachBatch(lambda frame, at: context.run(record, frame, at))
            .option("checkpointLocation", self.tape.paths.checkpoint)
            .queryName(f"capstan capture {self.stream.name} {self.checkpoint.identity}")
            .trigger(availableNow=True)
        )
        name = self.stream.name
        try:
            query = writer.start()
        except AnalysisException as error:
            raise (
                source_error(name, error)
                or translation.translate(error)
                or query_refused(name, error)
            ) from error
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if not self._loses:
                raise self._cause(error) from None
        finally:
            query.stop()
        return not self._loses

    def _record(self, frame: DataFrame, at: int) -> None:
        parts = consumed(self.tape.paths.checkpoint, self.stream.source, at)
        micro_batch = MicroBatch(self.stream, self.tape, self.checkpoint, at, parts, self.folders)
        batch = owned(frame) if self.own is None else handed_over(frame, self.own)
        try:
            with active(batch.sparkSession):
                if self.lines is not None and self.lines.loses(batch.sparkSession, parts):
                    self._loses = True
                    raise RuntimeError("the files of this micro-batch must be read as text")
                prepared = batch if self.own is None else classify.prepare(batch, self.stream)
                result = micro_batch.capture(prepared, self.roster)
        except CapstanError as error:
            self._failure = error
            raise
        self.roster = result.roster
        self.results.append(result)

    def _cause(self, error: StreamingQueryException) -> Exception:
        if self._failure is not None:
            return self._failure
        if any(words in str(error) for words in _OF_ANOTHER_QUERY):
            return fenced(self.tape, self.roster.commit)
        name, source = self.stream.name, self.stream.source
        return (
            broker_gone(name, error)
            or source_error(name, error)
            or selection_failed(name, source, error)
            or file_damaged(name, self.tape.paths.root, error)
            or source_moved(name, error)
            or options_refused(name, error)
            or error
        )


def in_turn(write: _Writer[_S, _P, _R]) -> _Writer[_S, _P, _R]:
    """A function that writes to a stream, after other threads of this process that do."""
    # Spark would end the query of another thread with the same checkpoint, and leave its batch
    # unfinished. Other processes are not kept waiting: of two, one is shut out.

    @wraps(write)
    def waiting(
        spark: SparkSession, lake: Lake, stream: _S, /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        place = lake.root, str(getattr(stream, "name", stream))
        if place in _of_call.get():
            return write(spark, lake, stream, *args, **kwargs)
        with _locks.setdefault(place, threading.Lock()):
            token = _of_call.set(_of_call.get() | {place})
            try:
                return write(spark, lake, stream, *args, **kwargs)
            finally:
                _of_call.reset(token)

    return waiting
