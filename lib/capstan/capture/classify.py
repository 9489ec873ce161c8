"""Time domains: which time a record has, which worker it belongs to, and whether it came too late.

Everything is an expression; no row passes through Python. A record is judged against the frontier
that its worker held *before* its micro-batch, so that a rerun of the batch judges it the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from capstan import error_translation
from capstan.capture import raw_text
from capstan.capture.column_names import require_names
from capstan.capture.source import file_path
from capstan.core.config import (
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    LatePolicy,
    Stream,
)
from capstan.core.config.sql_rules import moment_problem
from capstan.core.times import Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.spark.clock_literals import moment_in
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted

NEVER = -(2**63)
"""An event time, in microseconds, before all others."""

_TIMES = ("timestamp", "timestamp_ntz", "date", "string")
"""Spark's types of columns that may be declared as times."""

_DATED = r"(?s)^\s*[+-]?\d{4}.*"
"""Text that begins with a year."""

_HOURS_ALONE = r"^(\s*[+-]?\d{4,6}-\d{1,2}-\d{1,2}T\d{1,2})(?![:\d])"
"""A day and an hour, whose minutes do not follow."""

_MINUTES_ALONE = r"^(\s*[+-]?\d{4,6}-\d{1,2}-\d{1,2}[T ]\d{1,2}:\d{1,2})(?![:\d])"
"""The same with minutes, whose seconds do not follow."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a micro-batch is judged by.

    Attributes:
        epoch: The number of the micro-batch.
        ahead_from: Records at this time (microseconds) and later are too far ahead; None for no
            such bound.
    """

    epoch: int
    ahead_from: int | None = None


def micros(span: timedelta) -> int:
    """A duration in microseconds."""
    return span // timedelta(microseconds=1)


def since_epoch(moment: datetime) -> int:
    """A moment in microseconds since 1970-01-01 UTC."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# What a time of kind `timestamp` may be; Spark's reach from -290308 to 294247.
_YEARS = (
    since_epoch(datetime.min.replace(tzinfo=UTC)),
    since_epoch(datetime.max.replace(tzinfo=UTC)),
)


def time_type_of(stream: Stream) -> TimeType:
    """The coordinates of the stream's times."""
    epoch = Coordinate.of("epoch", Kind.BIGINT)
    if isinstance(stream.time, EpochTime):
        return TimeType((epoch,))
    event = Coordinate.of("event", Kind.TIMESTAMP, since_epoch(stream.time.minimum))
    return TimeType((epoch, event) if stream.time.bitemporal else (event,))


def prepare(frame: DataFrame, stream: Stream) -> DataFrame:
    """The source's rows, ready to be judged.

    Columns `data STRUCT`, `label STRING`, `worker INT`, `at TIMESTAMP`, `raw STRING`. `label` is
    set where workers are known by what they stand for, `worker` where they are computed from a key;
    `at` is the event time as it was recorded, null where it cannot be read; `raw` is the text of a
    record of which something does not parse, null of all others.
    """
    raw = F.col(quoted(raw_text.COLUMN)) if raw_text.COLUMN in frame.columns else F.lit(None)
    raw = raw.cast("string").alias("raw")
    whole, frame = frame, frame.drop(raw_text.COLUMN)
    require_names(stream, frame.schema)
    columns = (
        F.struct(*(F.col(quoted(name)) for name in frame.columns)).alias("data"),
        _label(frame, stream).cast("string").alias("label"),
        _key_worker(frame, stream).cast("int").alias("worker"),
        event_time(stream, frame).alias("at"),
        raw,
    )
    try:
        return whole.select(*columns)
    except AnalysisException as error:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: Spark does not take the source's columns as they are: "
            f"{error_translation.root_message(error)}",
            "give them other types or names where they come from",
            stream=stream.name,
        ) from error


def event_time(stream: Stream, rows: DataFrame) -> Column:
    """The event time of rows with the source's columns, as TIMESTAMP.

    Null in the epoch domain, and where the declared column or expression gives no time for a row.

    Raises:
        InvalidRequestError: `CAP-TIME-COLUMN` when the column is not there or is not a time, or the
            expression cannot be computed from these columns.
    """
    if isinstance(stream.time, EpochTime):
        return F.lit(None).cast("timestamp")
    own, kind = _declared_time(stream, stream.time, rows)
    if kind == "timestamp" and stream.time.expression is None:
        return own
    if kind == "string":
        # To Spark a bare time of day is one of today: it would be another one tomorrow.
        text = F.regexp_extract(own, _DATED, 0)
        # ISO 8601 lets a time end with its minutes, or its hours; to Spark such text is no time.
        minutes = F.regexp_replace(text, _HOURS_ALONE, "$1:00")
        whole = F.regexp_replace(minutes, _MINUTES_ALONE, "$1:00")
        # Few have such times: the others are looked at no further.
        own = F.coalesce(text.try_cast("timestamp"), whole.try_cast("timestamp"))
    # A sum that is tried is null whatever fails inside of it: also in the expression.
    return F.try_add(own.try_cast("timestamp"), F.expr("INTERVAL '0' SECOND"))


def _declared_time(stream: Stream, time: EventTime, rows: DataFrame) -> tuple[Column, str]:
    """The declared column or expression as it is, and its type."""
    if time.expression is None:
        name = time.column or ""
        kinds = {field.name: field.dataType.typeName() for field in rows.schema.fields}
        if kinds.get(name) not in _TIMES:
            raise InvalidRequestError(
                "CAP-TIME-COLUMN",
                f"stream {stream.name}: time.column {name} is "
                f"{kinds.get(name, 'not in the source')}",
                "name a TIMESTAMP, DATE or STRING column, or give time.expression",
                stream=stream.name,
            )
        return F.col(quoted(name)), kinds[name]
    try:
        own = F.expr(time.expression)
        # Among columns, so that what makes one row of many, or many of one, is refused.
        found = rows.select("*", own.alias("_at"), own.try_cast("timestamp"))
        kind = found.schema["_at"].dataType.typeName()
    except PySparkException as error:
        raise InvalidRequestError(
            "CAP-TIME-COLUMN",
            f"stream {stream.name}: time.expression cannot be computed: "
            f"{error_translation.root_message(error)}",
            "give SQL over the source's columns that is a TIMESTAMP, a DATE or a STRING",
            stream=stream.name,
        ) from error
    moment = moment_in(time.expression, found)
    if moment is not None:
        raise InvalidRequestError(
            "CAP-TIME-COLUMN",
            f"stream {stream.name}: time.expression {moment_problem(moment)}",
            "write the time itself, as TIMESTAMP '2024-01-01 00:00:00'",
            stream=stream.name,
        )
    return own, kind


def _label(frame: DataFrame, stream: Stream) -> Column:
    by = stream.workers
    if isinstance(by, ByColumn):
        return _column(frame, stream, by.column)
    if isinstance(by, ByPartition):
        if by.column is not None:
            return _column(frame, stream, by.column)
        if stream.source.format == "kafka":
            return F.concat_ws("/", F.col("topic"), F.col("partition"))
        # A file's partition is the folder it lies in; the path is a URI, in which a plus is itself.
        folder = F.regexp_extract(file_path(frame), "([^/]+)/[^/]+$", 1)
        named = F.try_url_decode(F.replace(folder, F.lit("+"), F.lit("%2B")))
        return F.coalesce(named, folder)
    return F.lit(None)


def _key_worker(frame: DataFrame, stream: Stream) -> Column:
    by = stream.workers
    if not isinstance(by, ByKey):
        return F.lit(None)
    for name in by.columns:
        _column(frame, stream, name)
    fields = [frame.schema[name] for name in by.columns]
    # The canonical hash, so that the same key goes to the same worker whatever its width in bytes.
    return F.pmod(row_hashes(fields)[0], F.lit(by.count))


def _column(frame: DataFrame, stream: Stream, name: str) -> Column:
    if name not in frame.columns:
        raise InvalidRequestError(
            "CAP-COLUMN",
            f"stream {stream.name}: workers are taken from column {name}, which the source lacks",
            f"its columns: {', '.join(frame.columns)}",
            stream=stream.name,
        )
    return F.col(quoted(name))


def judge(frame: DataFrame, stream: Stream, limits: BatchLimits) -> DataFrame:
    """Give each prepared row its time, and a reason where it may not go on tape.

    Args:
        frame: Columns `data`, `raw`, `worker INT`, `at TIMESTAMP`, `frontier BIGINT` (the event
            time in microseconds that the row's worker held before this micro-batch).
        stream: The declaration.
        limits: Of this micro-batch.

    Returns:
        Columns `worker`, `time STRUCT`, `reason STRING` (null: goes on tape), `frontier`,
        `at BIGINT` (microseconds), `data`, `raw`.
    """
    malformed, unknown = F.col("raw").isNotNull(), F.col("worker").isNull()
    epoch = F.lit(limits.epoch).cast("bigint").alias("epoch")
    if isinstance(stream.time, EpochTime):
        reason = F.when(malformed, "malformed").when(unknown, "unknown-worker")
        time = F.struct(epoch)
    else:
        own = truncated(F.col("at"), stream.time)
        first, last = _YEARS
        late = own < F.col("frontier")
        reason = (
            F.when(malformed, "malformed")
            .when(unknown, "unknown-worker")
            .when(own.isNull() | (own > F.lit(last)), "no-time")
            .when(own < F.lit(since_epoch(stream.time.minimum)), "below-minimum")
        )
        if limits.ahead_from is not None:
            reason = reason.when(own >= F.lit(limits.ahead_from), "ahead")
        if stream.late is LatePolicy.ADVANCE:
            # The least upper bound with the frontier; the record's own time stays in its data.
            own = F.when(late, F.col("frontier")).otherwise(own)
        else:
            reason = reason.when(late, "late")
        told = F.when(own.between(F.lit(first), F.lit(last)), own)
        event = F.timestamp_micros(told).alias("event")
        time = F.struct(epoch, event) if stream.time.bitemporal else F.struct(event)
    at = F.unix_micros("at").alias("at")
    return frame.select(
        "worker", time.alias("time"), reason.alias("reason"), "frontier", at, "data", "raw"
    )


def truncated(at: Column, time: EventTime) -> Column:
    """An event time in microseconds, truncated to a multiple of `every` (UTC).

    Null where no BIGINT holds it.
    """
    moment = F.unix_micros(at)
    return F.try_subtract(moment, F.pmod(moment, F.lit(micros(time.every))))


def watermark(time: EventTime, greatest: int, before: int) -> int:
    """The held event time after event times up to `greatest` were seen; never behind `before`.

    All three in microseconds.
    """
    if time.lateness is None:
        return before
    bound = greatest - micros(time.lateness)
    return max(before, bound - bound % micros(time.every))


def ahead_from(
    frame: DataFrame, time: EventTime, seen: int | None, begun: int | None
) -> int | None:
    """The first time of a batch that lies more than `max_ahead` after every time before it.

    What lies behind a gap is ahead, not what is far from the batch's start: so a backlog of a year
    in one micro-batch is judged as it would have been day by day. Nor is what the clock has come
    to: a source may be silent for long, and what it sends then is no error.

    Args:
        frame: Prepared rows of the micro-batch.
        time: The declaration.
        seen: The greatest time on tape, in microseconds, or None.
        begun: When the micro-batch was begun, in microseconds; None where that is not known.
    """
    if time.max_ahead is None:
        return None
    most = micros(time.max_ahead)
    own = truncated(F.col("at"), time).alias("own")
    times = frame.select(own).where(F.col("own") >= since_epoch(time.minimum)).distinct()
    if seen is not None:
        times = times.where(F.col("own") > seen)
    before = F.expr("lag(own) OVER (ORDER BY own)")
    gaps = times.select("own", F.coalesce(before, F.lit(seen)).alias("before"))
    first = gaps.where(F.col("own") - F.col("before") > most)
    if begun is not None:
        first = first.where(F.col("own") > begun + most)
    row = first.agg(F.min("own").alias("first")).collect()[0]
    return None if row["first"] is None else int(row["first"])
