"""The columns of a tape's tables, as `docs/protocol.md` defines them."""

from __future__ import annotations

from pyspark.sql import types as T

from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.storage.delta.arrow_writer import struct

FORMAT = 2
"""The version of tapes whose messages have one time each: of all that a capture writes."""

STAMPED_FORMAT = 3
"""The version of tapes that also have messages under several times, or under none."""

PAIRS_FORMAT = 4
"""The version of tapes whose times are pairs; like those of stamps, they have the column."""

SETTLED_FORMAT = 5
"""The version of tapes of which single rows of `late` are settled; otherwise as `FORMAT`."""

STAMPED_FORMATS = (STAMPED_FORMAT, PAIRS_FORMAT)

_COORDINATES: dict[Kind, T.DataType] = {
    Kind.BIGINT: T.LongType(), Kind.DATE: T.DateType(), Kind.TIMESTAMP: T.TimestampType(),
}  # fmt: skip

FINGERPRINT = struct(h1="long", h2="long")
WORKERS = struct(worker="integer", label="string", opened_commit="long")
FEED = struct(
    batch="long", origin="string", checkpoint="string", number="long", part="string",
    since="long", until="long", files=T.ArrayType(T.StringType()), detail="string",
)  # fmt: skip
SETTLED = struct(decision="string", batch="long", pos="long", reason="string")
"""The columns of `settled` while no records were repaired."""


def time_struct(time_type: TimeType) -> T.StructType:
    """A time as a struct column: one field per coordinate, in declared order."""
    return struct(**{c.name: _COORDINATES[c.kind] for c in time_type.coordinates})


def updates_array(time_type: TimeType) -> T.ArrayType:
    """The updates of a progress event: `(time, diff BIGINT)` in recorded order."""
    return T.ArrayType(struct(time=time_struct(time_type), diff="long"))


def stamp_column(time_type: TimeType, *, stamped: bool) -> dict[str, T.DataType]:
    """The column of a tape whose messages do not all have one time; it is the table's last."""
    return {"stamp": T.ArrayType(time_struct(time_type))} if stamped else {}


def events_schema(time_type: TimeType, *, stamped: bool = False) -> T.StructType:
    """The columns of `events`, one row per event."""
    return struct(
        worker="integer", seq="long", kind="string", time=time_struct(time_type),
        updates=updates_array(time_type), batch="long", commit="long", records="long",
        fingerprint=FINGERPRINT, **stamp_column(time_type, stamped=stamped),
    )  # fmt: skip


def records_schema(
    time_type: TimeType, payload: T.StructType, *, stamped: bool = False
) -> T.StructType:
    """The columns of `records`, one row per record; the stream's own columns are in `data`."""
    time, data = time_struct(time_type), nullable(payload)
    stamp = stamp_column(time_type, stamped=stamped)
    return struct(worker="integer", batch="long", time=time, pos="long", data=data, **stamp)


def payload_of(schema: T.StructType) -> T.StructType:
    """The stream's own columns, from a schema that has them in `data`."""
    payload = schema["data"].dataType
    assert isinstance(payload, T.StructType)
    return payload


def late_schema(time_type: TimeType, payload: T.StructType) -> T.StructType:
    """The columns of `late`, one raw row per record that is not on tape.

    `worker` and `time` are null if unknown. `frontier` is the frontier that excluded the record.
    `reason` is one of malformed, no-row, late, no-time, below-minimum, unknown-worker, ahead. For
    text sources the first row adds a column `raw`.
    """
    time, data = time_struct(time_type), nullable(payload)
    return struct(
        worker="integer", batch="long", time=time, pos="long", reason="string",
        frontier=T.ArrayType(time), data=data, field="string", error="string", file="string",
    )  # fmt: skip


def settled_schema(time_type: TimeType, payload: T.StructType) -> T.StructType:
    """The columns of `settled`; those behind `SETTLED` are null unless a record was repaired."""
    record = struct(worker="integer", time=time_struct(time_type), data=nullable(payload))
    return T.StructType([*SETTLED.fields, *record.fields])


def nullable(payload: T.StructType) -> T.StructType:
    """The payload with all fields nullable and without metadata of the source."""
    return T.StructType([T.StructField(f.name, f.dataType, True) for f in payload.fields])


def check_payload(stream: str, old: T.StructType, new: T.StructType) -> bool:
    """Check that columns are only added at the end of `old`; returns whether any were."""
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
