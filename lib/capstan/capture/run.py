"""Capture: one streaming query over the available data, recorded batch by batch; closing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import StructType

from capstan import error_translation
from capstan.capture import checkpoint_guard, classify, synthetic_batch
from capstan.capture.attached_query import require_no_source, session_of_expressions
from capstan.capture.consumed_offsets import consumed
from capstan.capture.file_listing import (
    FilesRead,
    Listing,
    SkippedFiles,
    fresh_files,
    require_none_renamed,
    seen_files,
    skipped_files,
)
from capstan.capture.file_schemas import columns_of
from capstan.capture.in_process_events import numbered
from capstan.capture.late_reinjection import PutBackResult
from capstan.capture.line_checks import check_lines
from capstan.capture.micro_batch import BatchResult, MicroBatch
from capstan.capture.progress_events import CLOSING, Statement
from capstan.capture.roster import Roster
from capstan.capture.selection import selected, selection_failed
from capstan.capture.source import (
    broker_gone,
    file_damaged,
    options_refused,
    query_refused,
    read_source,
    require_match,
)
from capstan.capture.source_errors import source_error
from capstan.capture.source_secrets import with_secrets
from capstan.capture.tape_settings import retain_commit_times
from capstan.capture.tape_start import start_tape
from capstan.capture.topic_ids import require_same_topics
from capstan.capture.turns import in_turn
from capstan.core.config import ByPartition, Stream
from capstan.core.config.sources import QUERY
from capstan.errors import CapstanError, IncompleteError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.notebook import facts_html
from capstan.spark.own_session import active, copy_of, handed_over, moved, owned
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import now
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.index_totals import EVERY, store_totals
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import (
    Cut,
    Tape,
    append_few_events,
    fenced,
    newest_cut,
    open_tape,
    stored_payload,
)
from capstan.storage.tape.upgrade import upgrade

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """The outcome of one capture. Always fed = records + late.

    Attributes:
        stream: The stream.
        batches: Micro-batches recorded.
        fed: Rows read from the source.
        records: Rows recorded on tape.
        late: Rows set aside in `late`, by reason.
        cut: The tape's newest commit afterwards; -1 for an empty tape.
        frontier: The stream's frontier, as JSON times; empty for a closed stream.
        passed: Files of the source that were skipped, by reason; None when the source has no files
            or cannot be listed.
    """

    stream: str
    batches: int
    fed: int
    records: int
    late: Mapping[str, int]
    cut: int
    frontier: list[object]
    passed: SkippedFiles | None = None

    def to_json(self) -> dict[str, object]:
        """The capture, as the command line's `--json` prints it."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return facts_html(f"Capture of {self.stream}", self.to_json())


@dataclass(slots=True)
class _Progress:
    """State that the query's callback passes back to the caller."""

    roster: Roster
    results: list[BatchResult] = field(default_factory=list)
    failure: CapstanError | None = None


@in_turn
def capture(
    spark: SparkSession,
    lake: Lake,
    stream: Stream,
    *,
    frame: DataFrame | None = None,
    reseat: bool = False,
    rescale: int | None = None,
) -> CaptureResult:
    """Capture the data available now, then stop.

    An interrupted synthetic batch is completed first. Nothing is captured of a stream that a query
    of the caller's records, but it can be rescaled.

    Args:
        spark: The session.
        lake: The lake that holds the tape, or gets a new one.
        stream: The stream's configuration.
        frame: A streaming frame of the caller's, for a stream without a source of its own.
        reseat: Start a new checkpoint and capture everything the source offers as new
            micro-batches.
        rescale: The number of workers to rescale to first; it must be the declared number.

    Raises:
        InvalidRequestError: `CAP-SOURCE`, `CAP-COLUMN`, `CAP-TIME-COLUMN`, `CAP-SCHEMA`,
            `CAP-TYPE`, `CAP-DECLARED`, `CAP-RESCALE`, `CAP-RENAMED`, `CAP-CHECKPOINT`,
            `CAP-CLOSED`, `CAP-SOURCE-OTHER`, `CAP-SECRET`, `CAP-SELECT`: nothing was written.
            `CAP-SOURCE-CHANGED`, `CAP-SOURCE-LOST`, `CAP-MALFORMED`, `CAP-SELECT` for a record on
            which an expression fails, or `CAP-WORKERS` for too many workers: earlier micro-batches
            stay recorded.
        CheckFailedError: `CAP-LATE` under the policy `fail`; earlier micro-batches stay recorded.
        FencedError: `CAP-FENCED` when another process captures the same stream.
    """
    emit("capture.begin", stream=stream.name)
    if frame is not None:
        require_no_source(stream)
    elif stream.source.format == QUERY:
        return _without_source(spark, lake, stream, reseat, rescale)
    return with_secrets(
        spark, stream, lambda resolved: _capture(spark, lake, resolved, frame, reseat, rescale)
    )


def _capture(
    spark: SparkSession,
    lake: Lake,
    stream: Stream,
    frame: DataFrame | None,
    reseat: bool,
    rescale: int | None,
) -> CaptureResult:
    listing = Listing.of(stream.source)
    columns = known_columns = None
    seen: FilesRead = {}
    if listing is not None:
        known_columns, seen = _previous(lake, stream.name, reseat=reseat)
        if stream.source.selection is not None:
            known_columns = None  # Those of the tape are others than those of the files.
        require_match(stream, listing, seen)
        fresh = fresh_files(stream.source, listing, seen)
        columns = columns_of(spark, stream, listing, fresh, known_columns)
        check_lines(spark, stream, listing, fresh)
    if frame is None:
        source = read_source(spark, stream, listing, columns, known_columns)
        prepared = query = classify.prepare(_selected(source, stream), stream)
    else:
        spark = session_of_expressions(spark, frame.sparkSession, stream)
        prepared = classify.prepare(moved(frame, spark), stream)
        # The caller's settings hold for the caller's rows, in a query that its session has not.
        query = moved(frame, copy_of(frame.sparkSession))
    tape = start_tape(spark, lake, stream, payload_of(prepared.schema), rescale)
    retain_commit_times(tape, stream)
    if listing is not None:
        require_none_renamed(listing, seen, tape)
    store_totals(tape, newest_cut(tape).commit, EVERY)
    roster = Roster.load(tape, newest_cut(tape))
    checkpoint = (
        checkpoint_guard.replace_checkpoint(spark, tape)
        if reseat
        else checkpoint_guard.validate(tape)
    )
    if stream.source.format == "kafka":
        require_same_topics(spark, stream, tape.paths.checkpoint)
    progress = _Progress(roster)
    own = None if frame is None else spark
    _run(query, stream, tape, checkpoint, progress, own)
    synthetic_batch.advance_idle(spark, tape, stream, now())
    skipped = None if listing is None else skipped_files(stream.source, listing, seen_files(tape))
    return _result(tape, progress.results, skipped)


def _without_source(
    spark: SparkSession, lake: Lake, stream: Stream, reseat: bool, rescale: int | None
) -> CaptureResult:
    """Capture nothing, but rescale the tape if asked to.

    Idle workers stay where they are: only the query knows whether records are waiting.
    """
    if reseat:
        raise InvalidRequestError(
            "CAP-REQUEST",
            f"stream {stream.name} is recorded by a query, which alone can replace its checkpoint",
            "start the query with a new checkpoint and capture_into(..., reseat=True)",
            stream=stream.name,
        )
    return _result(start_tape(spark, lake, stream, None, rescale), (), None)


def _result(
    tape: Tape, batches: Sequence[BatchResult], passed: SkippedFiles | None
) -> CaptureResult:
    cut = newest_cut(tape)
    frontier = index.frontier_of(tape, index.worker_states(tape, cut))
    late: Counter[str] = Counter()
    for batch in batches:
        late.update(batch.late)
    return CaptureResult(
        tape.name,
        len(batches),
        sum(batch.fed for batch in batches),
        sum(batch.records for batch in batches),
        dict(late),
        cut.commit,
        [tape.time_type.render(time) for time in frontier.elements],
        passed,
    )


def _selected(rows: DataFrame, stream: Stream) -> DataFrame:
    by, carried = stream.workers, {}
    if isinstance(by, ByPartition) and by.column is None and stream.source.selection is not None:
        carried = {classify.PARTITION: classify.partition_of(rows, stream)}
    return selected(rows, stream.name, stream.source, carried)


def _previous(lake: Lake, name: str, *, reseat: bool) -> tuple[StructType | None, FilesRead]:
    """The tape's columns and the files that its checkpoint has seen; empty without a tape."""
    if not is_table(lake.stream(name).events):
        return None, {}
    tape = open_tape(lake, name)
    return stored_payload(tape), {} if reseat else seen_files(tape)


def _run(
    rows: DataFrame,
    stream: Stream,
    tape: Tape,
    checkpoint: checkpoint_guard.Checkpoint,
    progress: _Progress,
    own: SparkSession | None,
) -> None:
    """Record all micro-batches of prepared rows; or of a caller's, which `own` prepares."""
    on_tape = newest_cut(tape).batch

    def record_batch(frame: DataFrame, at: int) -> None:
        number = checkpoint.number(at)
        if number <= on_tape:
            return  # Killed after its events commit: the batch is on the tape in full.
        parts = consumed(tape.paths.checkpoint, stream.source, at)
        entry = BatchEntry(number, Origin.CAPTURE, checkpoint.identity, at, parts)
        micro_batch = MicroBatch(stream, tape, entry, tape.paths.checkpoint)
        try:
            batch = owned(frame) if own is None else handed_over(frame, own)
            with active(batch.sparkSession):
                prepared = batch if own is None else classify.prepare(batch, stream)
                result = micro_batch.capture(prepared, progress.roster)
        except CapstanError as error:
            progress.failure = error
            raise
        progress.roster = result.roster
        progress.results.append(result)
        if (result.roster.commit + 1) % EVERY == 0:
            store_totals(tape, result.roster.commit, EVERY)

    # Spark calls back on a thread of its own, which is to be of this call too.
    context = copy_context()
    writer = (
        rows.writeStream.foreachBatch(lambda frame, at: context.run(record_batch, frame, at))
        .option("checkpointLocation", tape.paths.checkpoint)
        .queryName(f"capstan capture {stream.name}")
        .trigger(availableNow=True)
    )
    try:
        query = writer.start()
    except AnalysisException as error:
        raise (
            source_error(stream.name, error)
            or error_translation.translate(error)
            or query_refused(stream.name, error)
        ) from error
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if progress.failure is not None:
            raise progress.failure from None
        if "CONCURRENT_STREAM_LOG_UPDATE" in str(error):
            raise fenced(tape, progress.roster.commit) from None
        raise (
            broker_gone(stream.name, error)
            or source_error(stream.name, error)
            or selection_failed(stream.name, stream.source, error)
            or file_damaged(stream.name, tape.paths.root, error)
            or options_refused(stream.name, error)
            or error
        ) from None
    finally:
        query.stop()


@in_turn
def put_back(spark: SparkSession, lake: Lake, name: str) -> PutBackResult:
    """Put a stream's late records on its tape, at the frontier, once each.

    Raises:
        InvalidRequestError: `CAP-STREAM`; `CAP-CLOSED`; `CAP-HALF-DONE` while a micro-batch is
            incomplete.
        FencedError: `CAP-FENCED` when another process captures the same stream.
    """
    tape = upgrade(open_tape(lake, name))
    start = newest_cut(tape)
    synthetic_batch.finish(spark, tape)

    def detail(batch: int) -> dict[str, object] | None:
        # Counts all earlier batches, including what a capture has added since the first count.
        waiting = feed.count_late(tape, Cut(newest_cut(tape).commit, batch - 1)).get("late", 0)
        return {"records": waiting} if waiting else None

    if feed.count_late(tape, newest_cut(tape)).get("late", 0):
        synthetic_batch.insert(spark, tape, Origin.PUT_BACK, detail, "putting late records back")
    done = [
        entry for entry in feed.reinjections(tape, newest_cut(tape)) if entry.batch > start.batch
    ]
    return PutBackResult(
        name,
        done[-1].batch if done else None,
        sum(int(str(entry.detail["records"])) for entry in done),
        newest_cut(tape).commit,
        feed.count_late(tape, newest_cut(tape)),
    )


@in_turn
def close(spark: SparkSession, lake: Lake, name: str) -> tuple[Tape, int]:
    """Close a stream: every worker releases its held times, in one commit.

    Returns:
        The tape and the number of workers closed; 0 when the stream was already closed.

    Raises:
        InvalidRequestError: `CAP-HALF-DONE` while a micro-batch is incomplete.
        IncompleteError: `CAP-INCOMPLETE` while the stream has no workers.
    """
    tape = upgrade(open_tape(lake, name))
    synthetic_batch.finish(spark, tape)
    cut = newest_cut(tape)
    # Includes workers registered to open with the next commit, which is this one.
    states = index.worker_states(tape, Cut(cut.commit + 1, cut.batch))
    if not states:
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {name} has no workers yet, so there is nothing to close",
            "capture the stream first: its first records open its workers",
            stream=name,
        )
    states = [state for state in states if not state.closed]
    if not states:
        return tape, 0
    checkpoint_guard.require_no_partial_batch(tape, "closing it")
    statements: list[Statement] = [
        (state.worker, CLOSING, [(time, -count) for time, count in state.holdings])
        for state in states
    ]
    positions = {state.worker: state.events for state in states}
    events = numbered(tape.time_type, statements, positions, batch=cut.batch, commit=cut.commit + 1)
    append_few_events(tape, events, cut.commit + 1, {"stream": name, "close": True})
    emit("capture.close", stream=name)
    return tape, len(states)
