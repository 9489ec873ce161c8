"""The columns of a tape's tables, format version 2, as `docs/protocol.md` defines them."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError

FORMAT = 2

_COORDINATES: dict[Kind, DataType] = {
    Kind.BIGINT: LongType(),
    Kind.DATE: DateType(),
    Kind.TIMESTAMP: TimestampType(),
}

FINGERPRINT = StructType([StructField("h1", LongType()), StructField("h2", LongType())])

WORKERS = StructType(
    [
        StructField("worker", IntegerType()),
        StructField("label", StringType()),
        StructField("opened_commit", LongType()),
    ]
)

FEED = StructType(
    [
        StructField("batch", LongType()),
        StructField("origin", StringType()),
        StructField("checkpoint", StringType()),
        StructField("number", LongType()),
        StructField("part", StringType()),
        StructField("since", LongType()),
        StructField("until", LongType()),
        StructField("files", ArrayType(StringType())),
        StructField("detail", StringType()),
    ]
)


def time_struct(time_type: TimeType) -> StructType:
    """A time as a struct column: one field per coordinate, in declared order."""
    return StructType([StructField(c.name, _COORDINATES[c.kind]) for c in time_type.coordinates])


def updates_array(time_type: TimeType) -> ArrayType:
    """The updates of a progress event: `(time, diff BIGINT)` in recorded order."""
    update = [StructField("time", time_struct(time_type)), StructField("diff", LongType())]
    return ArrayType(StructType(update))


def events_schema(time_type: TimeType) -> StructType:
    """The columns of `events`, one row per event."""
    return StructType(
        [
            StructField("worker", IntegerType()),
            StructField("seq", LongType()),
            StructField("kind", StringType()),
            StructField("time", time_struct(time_type)),
            StructField("updates", updates_array(time_type)),
            StructField("batch", LongType()),
            StructField("commit", LongType()),
            StructField("records", LongType()),
            StructField("fingerprint", FINGERPRINT),
        ]
    )


def records_schema(time_type: TimeType, payload: StructType) -> StructType:
    """The columns of `records`, one row per record; the stream's own columns are in `data`."""
    return StructType(
        [
            StructField("worker", IntegerType()),
            StructField("batch", LongType()),
            StructField("time", time_struct(time_type)),
            StructField("pos", LongType()),
            StructField("data", nullable(payload)),
        ]
    )


def payload_of(schema: StructType) -> StructType:
    """The stream's own columns, from a schema that has them in `data`."""
    payload = schema["data"].dataType
    assert isinstance(payload, StructType)
    return payload


def late_schema(time_type: TimeType, payload: StructType) -> StructType:
    """The columns of `late`, one raw row per record that is not on tape.

    `worker` and `time` are null if unknown. `frontier` is the frontier that excluded the record.
    `reason` is one of malformed, late, no-time, below-minimum, unknown-worker, ahead. For text
    sources the first row adds a column `raw`.
    """
    return StructType(
        [
            StructField("worker", IntegerType()),
            StructField("batch", LongType()),
            StructField("time", time_struct(time_type)),
            StructField("pos", LongType()),
            StructField("reason", StringType()),
            StructField("frontier", ArrayType(time_struct(time_type))),
            StructField("data", nullable(payload)),
        ]
    )


def nullable(payload: StructType) -> StructType:
    """The payload with all fields nullable and without metadata of the source."""
    return StructType([StructField(f.name, f.dataType, True) for f in payload.fields])


def check_payload(stream: str, old: StructType, new: StructType) -> bool:
    """Check that rows of `new` may follow rows of `old`: columns may only be added at the end.

    Returns:
        Whether columns were added.

    Raises:
        InvalidRequestError: `CAP-SCHEMA` with the field that was removed, moved or changed its
            type.
    """
    for position, field in enumerate(old.fields):
        if field.name not in new.names:
            _refuse(stream, field.name, "is no longer in the source")
        if new[field.name].dataType != field.dataType:
            was, now = field.dataType.simpleString(), new[field.name].dataType.simpleString()
            _refuse(stream, field.name, f"was {was} and is now {now}")
        if new.names[position] != field.name:
            _refuse(stream, field.name, "has changed its position")
    return len(new.fields) > len(old.fields)


def _refuse(stream: str, field: str, problem: str) -> None:
    raise InvalidRequestError(
        "CAP-SCHEMA",
        f"stream {stream}: column {field} {problem}",
        "a tape may only gain nullable columns at the end; capture the new schema as a new stream, "
        "or declare the source's schema in streams.yaml",
        stream=stream,
        field=field,
    )
