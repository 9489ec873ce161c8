"""Capture: one streaming query over the available data, recorded batch by batch; closing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from capstan.capture.batch import checkpoint_guard, classify
from capstan.capture.batch.commit_events import CLOSING, Statement, append_statements
from capstan.capture.batch.micro_batch import BatchResult
from capstan.capture.batch.roster import Roster
from capstan.capture.query.attached_query import require_no_source, session_of_expressions
from capstan.capture.query.capture_query import CaptureQuery, in_turn
from capstan.capture.query.tape_settings import start_tape
from capstan.capture.source.files.listing import (
    FilesRead,
    SkippedFiles,
    SourceListing,
    fresh_files,
    require_none_renamed,
    require_same_place,
    seen_files,
    skipped_files,
)
from capstan.capture.source.files.schemas import columns_of
from capstan.capture.source.secrets import with_secrets
from capstan.capture.source.selection import selected
from capstan.capture.source.source import file_path, read_source, require_match
from capstan.capture.source.text.line_checks import CheckedLines, check_lines
from capstan.capture.source.topic_ids import require_same_topics
from capstan.capture.synthetic import synthetic_batch
from capstan.capture.synthetic.late_reinjection import PutBackResult
from capstan.core.config import ByPartition, Stream
from capstan.core.config.sources import QUERY
from capstan.errors import IncompleteError, InvalidRequestError
from capstan.spark.own_session import copy_of, moved
from capstan.storage.lake import Lake, is_table
from capstan.storage.late.late_rows import count_late
from capstan.storage.ledger.tables import now
from capstan.storage.stored_log import remembering
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape, stored_payload
from capstan.storage.tape.upgrade import upgrade
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """The outcome of one capture. Always fed = records + late.

    Attributes:
        late: Rows set aside in `late`, by reason.
        cut: The tape's newest commit afterwards; -1 for an empty tape.
        frontier: The stream's frontier, as JSON times; empty for a closed stream.
        passed: Files of the source that were skipped; None without files, or if not listed.
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


@in_turn
@remembering()
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
    of the caller's records, but it can be rescaled. A missing tape is made.

    Args:
        frame: A streaming frame of the caller's, for a stream without a source of its own.
        reseat: Start a new checkpoint and capture all that the source offers as new micro-batches.
        rescale: The number of workers to rescale to first; it must be the declared number.
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
    listing = SourceListing.of(stream.source)
    lines = None if frame is not None else CheckedLines.of(stream.source, listing)
    columns = known_columns = None
    seen: FilesRead = {}
    if listing is not None:
        known_columns, seen = _previous(lake, stream.name, reseat=reseat)
        if stream.source.selection is not None:
            known_columns = None  # Those of the tape are others than those of the files.
        require_match(stream, listing, seen)
        if seen:
            require_same_place(listing, seen, open_tape(lake, stream.name))
        fresh = fresh_files(stream.source, listing, seen)
        columns = columns_of(spark, stream, listing, fresh, known_columns)
        check_lines(spark, stream, listing, fresh, lines)

    def declared_rows(*, as_text: bool) -> DataFrame:
        found = read_source(spark, stream, listing, columns, known_columns, as_text=as_text)
        return classify.prepare(_selected(found, stream, listed=listing is not None), stream)

    if frame is None:
        prepared = query = declared_rows(as_text=lines is not None and lines.as_text)
    else:
        spark = session_of_expressions(spark, frame.sparkSession, stream)
        prepared = classify.prepare(moved(frame, spark), stream)
        # The caller's settings hold for the caller's rows, in a query that its session has not.
        query = moved(frame, copy_of(frame.sparkSession))
    tape = start_tape(spark, lake, stream, payload_of(prepared.schema), rescale)
    if listing is not None:
        require_none_renamed(listing, seen, tape)
    roster = Roster.load(tape, newest_cut(tape))
    checkpoint = (
        checkpoint_guard.replace_checkpoint(spark, tape)
        if reseat
        else checkpoint_guard.validate(tape)
    )
    if stream.source.format == "kafka":
        require_same_topics(spark, stream, tape.paths.checkpoint)
    own = None if frame is None else spark
    folders = () if listing is None else listing.partition_columns()
    running = CaptureQuery(stream, tape, checkpoint, own, lines, roster, folders)
    if not running.run(query):
        running.run(declared_rows(as_text=True))
    synthetic_batch.advance_idle(spark, tape, stream, now())
    skipped = None if listing is None else skipped_files(stream.source, listing, seen_files(tape))
    return _result(tape, running.results, skipped)


def _without_source(
    spark: SparkSession, lake: Lake, stream: Stream, reseat: bool, rescale: int | None
) -> CaptureResult:
    """Capture nothing, but rescale the tape if asked to."""
    # Idle workers stay where they are: only the query knows whether records are waiting.
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
    late = sum((Counter(batch.late) for batch in batches), Counter[str]())
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


def _selected(rows: DataFrame, stream: Stream, *, listed: bool) -> DataFrame:
    by, carried = stream.workers, {}
    if listed:
        carried[classify.FILE] = file_path(rows)
    if isinstance(by, ByPartition) and by.column is None and stream.source.selection is not None:
        carried[classify.PARTITION] = classify.partition_of(rows, stream)
    return selected(rows, stream.name, stream.source, carried)


def _previous(lake: Lake, name: str, *, reseat: bool) -> tuple[StructType | None, FilesRead]:
    """The tape's columns and the files that its checkpoint has seen; empty without a tape."""
    if not is_table(lake.stream(name).events):
        return None, {}
    tape = open_tape(lake, name)
    return stored_payload(tape), {} if reseat else seen_files(tape)


@in_turn
def put_back(spark: SparkSession, lake: Lake, name: str) -> PutBackResult:
    """Put a stream's late records on its tape, at the frontier, once each."""
    tape = upgrade(open_tape(lake, name, what="`capstan late --put-back`"))
    start = newest_cut(tape)
    synthetic_batch.finish(spark, tape)

    def detail(batch: int) -> dict[str, object] | None:
        # Counts all earlier batches, including what a capture has added since the first count.
        waiting = count_late(tape, Cut(newest_cut(tape).commit, batch - 1)).get("late", 0)
        return {"records": waiting} if waiting else None

    if count_late(tape, newest_cut(tape)).get("late", 0):
        synthetic_batch.insert(spark, tape, Origin.PUT_BACK, detail, "putting late records back")
    done = [
        entry
        for entry in feed.batches_of(tape, newest_cut(tape), Origin.PUT_BACK)
        if entry.batch > start.batch
    ]
    return PutBackResult(
        name,
        done[-1].batch if done else None,
        sum(entry.detail["records"] for entry in done),
        newest_cut(tape).commit,
        count_late(tape, newest_cut(tape)),
    )


@in_turn
def close(spark: SparkSession, lake: Lake, name: str) -> tuple[Tape, int]:
    """Close a stream in one commit; the number of workers closed is 0 if it was closed before."""
    tape = upgrade(open_tape(lake, name, what="`capstan close`"))
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
    note = {"close": True}
    append_statements(tape, statements, positions, note, batch=cut.batch, commit=cut.commit + 1)
    emit("capture.close", stream=name)
    return tape, len(states)
