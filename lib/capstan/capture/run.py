"""Capture: a streaming query over what has arrived, each micro-batch put on tape; and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.capture import checkpoint, domain
from capstan.capture.batch import CLOSING, POSITION, BatchResult, MicroBatch, progress_frame
from capstan.capture.settings import keep_settings, settings_of
from capstan.capture.workers import Roster
from capstan.declare import Stream
from capstan.errors import BadRequest, CapstanError
from capstan.steps import reached
from capstan.tape import summary
from capstan.tape.lake import Lake, exists, is_table
from capstan.tape.schema import check_payload, payload_of, time_struct
from capstan.tape.tape import (
    Cut,
    Tape,
    append_events,
    create_tape,
    fenced,
    newest_cut,
    open_tape,
    stored_payload,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Captured:
    """What one capture did: fed = records + late, always.

    Attributes:
        stream: The stream.
        batches: Micro-batches put on tape.
        fed: Rows that the source gave.
        records: Rows put on tape.
        late: Rows kept in `late`, by reason.
        cut: The tape's newest commit afterwards, -1 for an empty tape.
        frontier: The stream's frontier, as JSON times; empty for a closed stream.
    """

    stream: str
    batches: int
    fed: int
    records: int
    late: Mapping[str, int]
    cut: int
    frontier: list[object]


@dataclass(slots=True)
class _Progress:
    """What the query's callback leaves behind for the caller."""

    roster: Roster
    results: list[BatchResult] = field(default_factory=list)
    failure: CapstanError | None = None


def capture(spark: SparkSession, lake: Lake, stream: Stream, *, reseat: bool = False) -> Captured:
    """Capture what has arrived, then end.

    Args:
        spark: The session.
        lake: Where the tape is, or is made.
        stream: The declaration.
        reseat: Take a new checkpoint, and capture all that the source offers as new micro-batches.

    Raises:
        BadRequest: `CAP-SOURCE`, `CAP-COLUMN`, `CAP-TIME-COLUMN`, `CAP-SCHEMA`, `CAP-DECLARED`,
            `CAP-CHECKPOINT`, `CAP-CLOSED`: nothing was written.
        AnswerIsNo: `CAP-LATE` where the policy is `fail`; earlier micro-batches stand.
        Fenced: `CAP-FENCED` when another process captures the same stream.
    """
    reached("capture.begin", stream=stream.name)
    source = read_source(spark, stream)
    prepared = domain.prepare(source, stream)
    tape = _tape(spark, lake, stream, payload_of(prepared.schema))
    roster = Roster.load(tape, newest_cut(tape))
    seat = checkpoint.reseat(spark, tape) if reseat else checkpoint.reserve(spark, tape)
    progress = _Progress(roster)
    _run(prepared, stream, tape, seat, progress)
    cut = newest_cut(tape)
    frontier = summary.frontier_of(summary.worker_states(tape, cut))
    late: Counter[str] = Counter()
    for result in progress.results:
        late.update(result.late)
    return Captured(
        stream.name,
        len(progress.results),
        sum(result.fed for result in progress.results),
        sum(result.records for result in progress.results),
        dict(late),
        cut.commit,
        [tape.time_type.render(time) for time in frontier.elements],
    )


def read_source(spark: SparkSession, stream: Stream) -> DataFrame:
    """The declared source as a streaming frame.

    Raises:
        BadRequest: `CAP-SOURCE` when it is not there or Spark cannot read it.
    """
    source = stream.source
    try:
        if source.path is not None and "://" not in source.path and not exists(source.path):
            raise BadRequest(
                "CAP-SOURCE",
                f"stream {stream.name}: there is nothing at {source.path}",
                "check source.path in streams.yaml",
                stream=stream.name,
            )
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        elif source.format not in ("delta", "kafka", "rate"):
            # Streams of files must be told their columns; the files know them.
            files = spark.read.format(source.format).options(**source.options)
            reader = reader.schema(files.load(source.path).schema)
        return reader.load(source.path)
    except CapstanError:
        raise
    except Exception as error:
        raise BadRequest(
            "CAP-SOURCE",
            f"stream {stream.name}: the source cannot be read: {str(error).splitlines()[0]}",
            "check source in streams.yaml",
            stream=stream.name,
        ) from error


def _tape(spark: SparkSession, lake: Lake, stream: Stream, payload: StructType) -> Tape:
    settings = settings_of(stream)
    if not is_table(lake.stream(stream.name).events):
        time_type = domain.time_type_of(stream)
        return create_tape(spark, lake, stream.name, time_type, payload, settings)
    tape = open_tape(lake, stream.name)
    check_payload(stream.name, stored_payload(spark, tape), payload)
    return keep_settings(spark, tape, settings)


def _run(
    prepared: DataFrame, stream: Stream, tape: Tape, seat: checkpoint.Checkpoint, state: _Progress
) -> None:
    on_tape = newest_cut(tape).batch

    def each(frame: DataFrame, batch: int) -> None:
        number = seat.base + batch
        if number <= on_tape:
            return  # Killed after its events commit: all of it is on the tape.
        try:
            micro = MicroBatch(stream, tape, number, seat.identity)
            result = micro.capture(frame, state.roster)
        except CapstanError as error:
            state.failure = error
            raise
        state.roster = result.roster
        state.results.append(result)

    query = (
        prepared.writeStream.foreachBatch(each)
        .option("checkpointLocation", tape.paths.checkpoint)
        .queryName(f"capstan capture {stream.name}")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if state.failure is not None:
            raise state.failure from None
        if "CONCURRENT_STREAM_LOG_UPDATE" in str(error):
            raise fenced(tape, state.roster.commit) from None
        raise
    finally:
        query.stop()


def close(spark: SparkSession, lake: Lake, name: str) -> tuple[Tape, int]:
    """End a stream: every worker lets go of what it holds, in one commit.

    Returns:
        The tape, and how many workers were closed; 0 when it was closed already.

    Raises:
        BadRequest: `CAP-HALF-DONE` while a micro-batch is half done.
    """
    tape = open_tape(lake, name)
    cut = newest_cut(tape)
    # Also workers that are written down to open with the next commit, which this one will be.
    states = summary.worker_states(tape, Cut(cut.commit + 1, cut.batch))
    states = [state for state in states if not state.closed]
    if not states:
        return tape, 0
    checkpoint.require_whole(tape, "closing it")
    statements = [
        (state.worker, CLOSING, [(time, -count) for time, count in state.holdings])
        for state in states
    ]
    frame = progress_frame(spark, statements, tape, {s.worker: s.events for s in states})
    seats = frame.where(f"rank = {POSITION}").select("worker", F.col("start").alias("seq"))
    rows = frame.where(f"rank > {POSITION}").join(seats, "worker")
    nothing = F.lit(None).cast(time_struct(tape.time_type))
    events = rows.select(
        "worker",
        "seq",
        F.lit("progress").alias("kind"),
        nothing.alias("time"),
        "updates",
        F.lit(cut.batch).cast("bigint").alias("batch"),
        F.lit(cut.commit + 1).cast("bigint").alias("commit"),
    ).coalesce(1)
    append_events(tape, events, cut.commit + 1, {"stream": name, "close": True})
    reached("capture.close", stream=name)
    return tape, len(states)
