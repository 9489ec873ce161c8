"""Classification of records: event time, worker and lateness of each row.

Everything is a Spark expression; no row passes through Python. A record is compared with the
frontier that its worker held *before* the micro-batch, so a repeated batch gives the same result.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from capstan.capture.batch.worker_labels import label_of, require_names
from capstan.capture.source.source import file_path
from capstan.capture.source.text import raw_text
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
from capstan.core.sql_names import quoted
from capstan.core.times import Coordinate, Kind, TimeType
from capstan.core.times.moment_text import PATTERN
from capstan.errors import InvalidRequestError, translation
from capstan.spark.clock_literals import clock_literal
from capstan.storage.tape.fingerprint import row_hashes

PARTITION = "capstan's partition"
"""A column with the partition of each record; no column of a tape can have this name."""

FILE = "capstan's file"
"""A column with the URI of the file of each record; no column of a tape can have this name."""

PLACE = "capstan's place"
"""A column with the place in `late` of each record; no column of a tape can have this name."""

NEVER = -(2**63)
"""An event time, in microseconds, before all others."""

_TIMES = ("timestamp", "timestamp_ntz", "date", "string")
"""Spark types that a time column may have."""

_INTEGERS = ("byte", "short", "integer", "long")
"""Spark types that a time column with a unit may have."""

_HOURS_ALONE = r"^(\s*\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2})(?![:\d])"
"""A day and an hour without minutes."""

_MINUTES_ALONE = r"^(\s*\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2}:\d{1,2})(?![:\d])"
"""A day, an hour and minutes without seconds."""


def micros(span: timedelta) -> int:
    """A duration in microseconds."""
    return span // timedelta(microseconds=1)


def since_epoch(moment: datetime) -> int:
    """A moment in microseconds since 1970-01-01 UTC."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# The range of a time of kind `timestamp`; Spark's own range is the years -290308 to 294247.
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
    """The source's rows, prepared for classification.

    Columns `data STRUCT`, `label STRING`, `worker INT`, `at TIMESTAMP`, `raw STRING`,
    `no_row BOOLEAN`; `file STRING` and `place STRUCT` if they are known. `label` is set if workers
    have labels, `worker` if they are computed from a key; `at` is the recorded event time, null if
    it cannot be parsed; `raw` is the text of a malformed record, else null; `no_row` is true for a
    record that makes no row, which has neither label nor time. `file` is null where nothing is
    missing.
    """
    raw = F.col(quoted(raw_text.COLUMN)) if raw_text.COLUMN in frame.columns else F.lit(None)
    raw = raw.cast("string").alias("raw")
    no_row = F.lit(False)
    if raw_text.NO_ROW in frame.columns:
        no_row = F.col(quoted(raw_text.NO_ROW))
    source, frame = frame, frame.drop(raw_text.COLUMN, raw_text.NO_ROW, PARTITION, FILE, PLACE)
    require_names(stream, frame.schema)
    columns = (
        F.struct(*(F.col(quoted(name)) for name in frame.columns)).alias("data"),
        F.when(~no_row, _label(source, frame, stream).cast("string")).alias("label"),
        _key_worker(frame, stream).cast("int").alias("worker"),
        F.when(~no_row, event_time(stream, frame)).alias("at"),
        raw,
        no_row.alias("no_row"),
        *([F.col(quoted(PLACE)).alias("place")] if PLACE in source.columns else []),
    )
    try:
        if FILE not in source.columns:
            return source.select(*columns)
        prepared = source.select(*columns, F.col(quoted(FILE)).alias("file"))
        # The name would be copied with each record, and is asked for few.
        lacks = F.col("raw").isNotNull() | F.col("no_row")
        if not isinstance(stream.workers, ByKey):
            label, labels = F.col("label"), getattr(stream.workers, "labels", ())
            lacks |= label.isNull() | (~label.isin(*labels) if labels else F.lit(False))
        if isinstance(stream.time, EventTime):
            lacks |= F.col("at").isNull()
        return prepared.withColumn("file", F.when(lacks, F.col("file")))
    except AnalysisException as error:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: Spark does not accept the source's columns: "
            f"{translation.root_message(error)}",
            "change their types or names in the source",
            stream=stream.name,
        ) from error


def event_time(stream: Stream, rows: DataFrame) -> Column:
    """The event time of source rows, as TIMESTAMP; null in the epoch domain, or without a time."""
    if isinstance(stream.time, EpochTime):
        return F.lit(None).cast("timestamp")
    time, kind = _declared_time(stream, stream.time, rows)
    if stream.time.unit is not None:
        # A product that does not fit a BIGINT is null, and so is no time.
        count = F.try_multiply(time.cast("bigint"), F.lit(stream.time.unit.micros).cast("bigint"))
        time, kind = F.timestamp_micros(count), "timestamp"
    if kind == "timestamp" and stream.time.expression is None:
        return time
    if kind == "string":
        time = text_moment(time)
    # A tried sum is null whatever fails inside it, including the expression.
    return F.try_add(time.try_cast("timestamp"), F.expr("INTERVAL '0' SECOND"))


def text_moment(text: Column) -> Column:
    """The moment that a text is, as TIMESTAMP, or null; like `moment_text.moment`, in UTC."""
    # Spark alone takes a time of day for one of today, a year, and what is beyond the year 9999.
    text = F.when(text.rlike(rf"\A(?:{PATTERN})\z"), text)
    # ISO 8601 allows a time to end with its minutes or hours; Spark cannot parse that.
    minutes = F.regexp_replace(text, _HOURS_ALONE, "$1:00")
    completed = F.regexp_replace(minutes, _MINUTES_ALONE, "$1:00")
    # Few rows have such times; the others are parsed only once.
    read = F.coalesce(text.try_cast("timestamp"), completed.try_cast("timestamp"))
    first, last = (F.timestamp_micros(F.lit(end)) for end in _YEARS)
    return F.when(read.between(first, last), read)


def _declared_time(stream: Stream, time: EventTime, rows: DataFrame) -> tuple[Column, str]:
    """The declared column or expression, and its type."""
    if time.expression is None:
        name = time.column or ""
        kinds = {field.name: field.dataType.typeName() for field in rows.schema.fields}
        if kinds.get(name) not in (_TIMES if time.unit is None else _INTEGERS):
            raise InvalidRequestError(
                "CAP-TIME-COLUMN",
                f"stream {stream.name}: time.column {name} is "
                f"{kinds.get(name, 'not in the source')}",
                _column_hint(time, kinds.get(name)),
                stream=stream.name,
            )
        return F.col(quoted(name)), kinds[name]
    try:
        value = F.expr(time.expression)
        # Selected among columns, so that aggregates and generators are refused.
        selected = rows.select("*", value.alias("_at"), value.try_cast("timestamp"))
        kind = selected.schema["_at"].dataType.typeName()
    except PySparkException as error:
        raise InvalidRequestError(
            "CAP-TIME-COLUMN",
            f"stream {stream.name}: time.expression cannot be computed: "
            f"{translation.root_message(error)}",
            "use SQL over the source's columns that returns a TIMESTAMP, DATE or STRING",
            stream=stream.name,
        ) from error
    moment = clock_literal(time.expression, selected)
    if moment is not None:
        raise InvalidRequestError(
            "CAP-TIME-COLUMN",
            f"stream {stream.name}: time.expression {moment_problem(moment)}",
            "write the time itself, as TIMESTAMP '2024-01-01 00:00:00'",
            stream=stream.name,
        )
    if time.unit is not None and kind not in _INTEGERS:
        raise InvalidRequestError(
            "CAP-TIME-COLUMN",
            f"stream {stream.name}: time.expression is {kind}, but time.unit is for integers",
            "remove time.unit, or cast the expression to BIGINT",
            stream=stream.name,
        )
    return value, kind


def _column_hint(time: EventTime, kind: str | None) -> str:
    if time.unit is not None:
        return "name a column of integers; remove time.unit for a TIMESTAMP, DATE or STRING"
    if kind in _INTEGERS:
        return "say what its numbers count since 1970, with time.unit: s, ms or us"
    return "name a TIMESTAMP, DATE or STRING column, or set time.expression"


def partition_of(frame: DataFrame, stream: Stream) -> Column:
    """The source's partition of each of its rows, as text."""
    if stream.source.format == "kafka":
        return F.concat_ws("/", F.col("topic"), F.col("partition"))
    # A file's partition is its folder; the path is a URI, in which a plus stands for itself.
    folder = F.regexp_extract(file_path(frame), "([^/]+)/[^/]+$", 1)
    decoded = F.try_url_decode(F.replace(folder, F.lit("+"), F.lit("%2B")))
    return F.coalesce(decoded, folder)


def _label(source: DataFrame, frame: DataFrame, stream: Stream) -> Column:
    by = stream.workers
    if isinstance(by, ByColumn | ByPartition) and by.column is not None:
        _require_column(frame, stream, by.column)
        return label_of(stream, frame.schema[by.column])
    if isinstance(by, ByPartition):
        if PARTITION in source.columns:
            return F.col(quoted(PARTITION))
        return partition_of(frame, stream)
    return F.lit(None)


def _key_worker(frame: DataFrame, stream: Stream) -> Column:
    by = stream.workers
    if not isinstance(by, ByKey):
        return F.lit(None)
    for name in by.columns:
        _require_column(frame, stream, name)
    fields = [frame.schema[name] for name in by.columns]
    # The canonical hash: a key goes to the same worker whatever the width of its type.
    return F.pmod(row_hashes(fields)[0], F.lit(by.count))


def _require_column(frame: DataFrame, stream: Stream, name: str) -> None:
    if name not in frame.columns:
        raise InvalidRequestError(
            "CAP-COLUMN",
            f"stream {stream.name}: workers are taken from column {name}, but the source has "
            "no such column",
            f"its columns: {', '.join(frame.columns)}",
            stream=stream.name,
        )


def classify_rows(
    frame: DataFrame, stream: Stream, batch: int, ahead_from: int | None = None
) -> DataFrame:
    """Add to each prepared row its time, and the reason if it cannot be recorded.

    Needs `frontier BIGINT`, the event time in microseconds that the row's worker held before this
    micro-batch; those from `ahead_from` on are too far ahead. Gives `worker`, `time STRUCT`,
    `reason STRING` (null for rows to record), `frontier`, `at BIGINT` (microseconds), `data`,
    `raw`, and `file` and `place` if the rows have them.
    """
    unknown = F.col("worker").isNull()
    refused = F.when(F.col("raw").isNotNull(), "malformed").when(F.col("no_row"), "no-row")
    epoch = F.lit(batch).cast("bigint").alias("epoch")
    if isinstance(stream.time, EpochTime):
        reason = refused.when(unknown, "unknown-worker")
        time = F.struct(epoch)
    else:
        moment = truncated(F.col("at"), stream.time)
        first, last = _YEARS
        late = moment < F.col("frontier")
        reason = (
            refused.when(unknown, "unknown-worker")
            .when(moment.isNull() | (moment > F.lit(last)), "no-time")
            .when(moment < F.lit(since_epoch(stream.time.minimum)), "below-minimum")
        )
        if ahead_from is not None:
            reason = reason.when(moment >= F.lit(ahead_from), "ahead")
        if stream.late is LatePolicy.ADVANCE:
            # The least upper bound with the frontier; the data keeps the original time.
            moment = F.when(late, F.col("frontier")).otherwise(moment)
        else:
            reason = reason.when(late, "late")
        in_range = F.when(moment.between(F.lit(first), F.lit(last)), moment)
        event = F.timestamp_micros(in_range).alias("event")
        time = F.struct(epoch, event) if stream.time.bitemporal else F.struct(event)
    at = F.unix_micros("at").alias("at")
    return frame.select(
        *("worker", time.alias("time"), reason.alias("reason"), "frontier", at, "data", "raw"),
        *further(frame),
    )


def further(prepared: DataFrame) -> list[str]:
    """The columns that prepared rows have beside those of `prepare` that all have."""
    return [name for name in prepared.columns if name in ("file", "place")]


def truncated(at: Column, time: EventTime) -> Column:
    """An event time in microseconds, truncated to `every` (UTC); null beyond BIGINT."""
    moment = F.unix_micros(at)
    return F.try_subtract(moment, F.pmod(moment, F.lit(micros(time.every))))


def watermark(time: EventTime, greatest: int, before: int) -> int:
    """The event time held after times up to `greatest`, at least `before`; in microseconds."""
    if time.lateness is None:
        return before
    bound = greatest - micros(time.lateness)
    return max(before, bound - bound % micros(time.every))


def ahead_from(
    frame: DataFrame, time: EventTime, seen: int | None, started: int | None
) -> int | None:
    """The first time of a batch that lies more than `max_ahead` after all times before it.

    Nothing up to `max_ahead` after the clock is ahead; `docs/decisions/0003` says why. `seen`, the
    greatest time on tape, and `started`, the batch's start, are in microseconds.
    """
    if time.max_ahead is None:
        return None
    allowed = micros(time.max_ahead)
    event = truncated(F.col("at"), time).alias("event")
    times = frame.select(event).where(F.col("event") >= since_epoch(time.minimum)).distinct()
    if seen is not None:
        times = times.where(F.col("event") > seen)
    before = F.expr("lag(event) OVER (ORDER BY event)")
    gaps = times.select("event", F.coalesce(before, F.lit(seen)).alias("before"))
    ahead = gaps.where(F.col("event") - F.col("before") > allowed)
    if started is not None:
        ahead = ahead.where(F.col("event") > started + allowed)
    row = ahead.agg(F.min("event").alias("first")).collect()[0]
    return None if row["first"] is None else int(row["first"])
