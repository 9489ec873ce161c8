"""Reads recordings inside Spark's Python workers: one file at a time, in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter

from capstan.core.protocol import Fault, Messages, Progress, Rule, StreamChecker, Violation
from capstan.core.protocol.events import Event, Item
from capstan.core.times import Time, TimeType
from capstan.interop.timely import EventReader
from capstan.interop.transfer.payload_columns import (
    NotBigintError,
    payload_array,
    payload_type,
    require_bigint,
)
from capstan.interop.transfer.recording_format import Form, Recording

# Batch limits: records, or events and their updates; for records also bytes of the file.
_MAX_ROWS: Final = 50_000
_MAX_BYTES: Final = 64 * 2**20

Files = Iterable[pa.RecordBatch]
"""Batches of `worker INT, path STRING, named INT`: the fields of a `Recording`."""


class SurveyViolation(NamedTuple):
    """First violation in a file: `seq`, rule and description."""

    seq: int
    rule: str
    text: str


class OversizedNumber(NamedTuple):
    """First number in a file that does not fit a BIGINT: position of its event, and the number."""

    position: int
    number: str


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """Contents of one file."""

    worker: int
    path: str
    sha256: str
    events: int
    records: int
    violation: SurveyViolation | None  # the first; None if the recording is sound
    torn: str | None  # its unfinished end in words; None if complete
    oversized: OversizedNumber | None  # the first number that does not fit a BIGINT
    stamped: bool = False  # whether messages are under several times, or under none


SURVEY: Final = TypeAdapter(FileSurvey)


def survey(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """Check each file; one row `survey STRING` per file, which `SURVEY` reads."""
    for recording in _recordings(files):
        text = SURVEY.dump_json(_surveyed(recording, form)).decode()
        yield pa.RecordBatch.from_pydict({"survey": [text]})


def _surveyed(recording: Recording, form: Form) -> FileSurvey:
    checker = StreamChecker(form.time_type.minimum, order=form.order)
    violation: Violation | None = None
    oversized: OversizedNumber | None = None
    stamped = False
    events = records = 0
    with Path(recording.path).open("rb", buffering=0) as source:
        # Of the bytes after damage too: the file is the same only if all bytes are.
        digest = hashlib.file_digest(source, "sha256").hexdigest()
        source.seek(0)
        reader = EventReader(source, form.encoding(recording.named), recording.path)
        for position, item in enumerate(reader.items()):
            events += 1
            event = _event(item)
            records += _records(event) or 0
            stamped = stamped or is_stamped(event)
            violation = violation or checker.judge(item)
            if oversized is None:
                number = first_oversized_number(event, form)
                oversized = None if number is None else OversizedNumber(position, number)
        torn = None if reader.torn is None else reader.torn.about
    first = None
    if violation is not None:
        description = violation.describe(form.time_type)
        first = SurveyViolation(violation.seq, violation.rule.value, description)
    return FileSurvey(
        recording.worker, recording.path, digest, events, records, first, torn, oversized, stamped
    )


def first_oversized_number(event: Event | None, form: Form) -> str | None:
    """The first number of an event that does not fit a BIGINT, as text; None if all fit."""
    try:
        for time in _times(event):
            for value in time:
                require_bigint(value)
        if isinstance(event, Messages):
            payload_array(form.record, event.data or ())
    except NotBigintError as error:
        return str(error)
    return None


def is_stamped(event: Event | None) -> bool:
    """Whether an event is messages that do not have one time."""
    return isinstance(event, Messages) and len(event.stamp) != 1


def _event(item: Item) -> Event | None:
    """The event of an item, even if its number is wrong."""
    return item.found if isinstance(item, Fault) else item


def _times(event: Event | None) -> Iterator[Time]:
    if isinstance(event, Messages):
        yield from event.stamp
    elif isinstance(event, Progress):
        yield from (time for time, _ in event.updates)


def event_schema(time_type: TimeType, *, stamped: bool = False) -> pa.Schema:
    """Schema of `events`: the columns of the table without commit and fingerprint."""
    time = _time_struct(time_type)
    return pa.schema(
        [
            ("worker", pa.int32()),
            ("seq", pa.int64()),
            ("kind", pa.string()),
            ("time", time),
            ("updates", pa.list_(pa.struct([("time", time), ("diff", pa.int64())]))),
            ("batch", pa.int64()),
            ("records", pa.int64()),
            *_stamp_field(time, stamped=stamped),
        ]
    )


def _time_struct(time_type: TimeType) -> pa.StructType:
    return pa.struct([(name, pa.int64()) for name in time_type.names])


def _stamp_field(time: pa.StructType, *, stamped: bool) -> list[tuple[str, pa.DataType]]:
    return [("stamp", pa.list_(time))] if stamped else []


def events(files: Files, form: Form, *, stamped: bool = False) -> Iterator[pa.RecordBatch]:
    """The events of each file, with the schema `event_schema`.

    From the first wrong number on, every `seq` is one too high, so that the recording breaks on the
    tape at the same place as in the file.
    """
    schema = event_schema(form.time_type, stamped=stamped)
    rows: list[dict[str, object]] = []
    size = 0
    for recording in _recordings(files):
        skipped = 0
        for position, (item, _) in enumerate(_sized(recording, form)):
            skipped = 1 if isinstance(item, Fault) and item.rule is Rule.SEQ else skipped
            event = _event(item)
            seq, size = position + skipped, size + weight(event)
            rows.append(_row(recording.worker, seq, position, event, form.time_type))
            if size >= _MAX_ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema)
                rows, size = [], 0
    yield pa.RecordBatch.from_pylist(rows, schema)


def event_batch(
    time_type: TimeType, numbered: Iterable[tuple[int, int, int, Event]], *, stamped: bool = False
) -> pa.RecordBatch:
    """Events with worker, `seq` and batch, with the schema `event_schema`."""
    rows = [_row(worker, seq, batch, event, time_type) for worker, seq, batch, event in numbered]
    return pa.RecordBatch.from_pylist(rows, event_schema(time_type, stamped=stamped))


def weight(event: Event | None) -> int:
    """Size of an event in the index: itself and its updates."""
    return 1 + (len(event.updates) if isinstance(event, Progress) else 0)


def _row(
    worker: int, seq: int, batch: int, event: Event | None, time_type: TimeType
) -> dict[str, object]:
    """The columns of an event; those that it has not are null."""

    def struct(time: Time) -> dict[str, int]:
        return dict(zip(time_type.names, time, strict=True))

    row: dict[str, object] = {"worker": worker, "seq": seq, "batch": batch}
    if isinstance(event, Messages):
        row |= {"kind": "messages", "records": event.records}
        if len(event.stamp) == 1:
            return row | {"time": struct(event.stamp[0])}
        # The first element places the event; see section 5 of `docs/protocol.md`.
        first = struct(event.stamp[0]) if event.stamp else None
        return row | {"time": first, "stamp": list(map(struct, event.stamp))}
    if isinstance(event, Progress):
        updates = [{"time": struct(time), "diff": diff} for time, diff in event.updates]
        return row | {"kind": "progress", "updates": updates}
    return row


def _records(event: Event | None) -> int | None:
    return event.records if isinstance(event, Messages) else None


def record_schema(form: Form, *, stamped: bool = False) -> pa.Schema:
    """Schema of `records`: the columns of the table."""
    time = _time_struct(form.time_type)
    return pa.schema(
        [
            ("worker", pa.int32()),
            ("batch", pa.int64()),
            ("time", time),
            ("pos", pa.int64()),
            ("data", payload_type(form.record)),
            *_stamp_field(time, stamped=stamped),
        ]
    )


def records(files: Files, form: Form, *, stamped: bool = False) -> Iterator[pa.RecordBatch]:
    """The records of each file, with the schema `record_schema`; `pos` counts within the file."""
    schema = record_schema(form, stamped=stamped)
    for recording in _recordings(files):
        worker = recording.worker
        pos, count, size = 0, 0, 0
        pending: list[tuple[int, Messages]] = []
        for position, part, part_size in _parts(recording, form):
            pending.append((position, part))
            count, size = count + part.records, size + part_size
            if count >= _MAX_ROWS or size >= _MAX_BYTES:
                yield record_batch(schema, form, worker, pos, pending)
                pos, count, size, pending = pos + count, 0, 0, []
        yield record_batch(schema, form, worker, pos, pending)


def _parts(recording: Recording, form: Form) -> Iterator[tuple[int, Messages, int]]:
    """The messages of a file that have records: position, event, bytes; large ones in parts."""
    for position, (item, size) in enumerate(_sized(recording, form)):
        event = _event(item)
        if not isinstance(event, Messages) or not event.records:
            continue
        if event.records <= _MAX_ROWS:
            yield position, event, size
            continue
        data = event.data or ()
        for start in range(0, len(data), _MAX_ROWS):
            part = data[start : start + _MAX_ROWS]
            yield position, Messages(event.stamp, len(part), part), size * len(part) // len(data)


def record_batch(
    schema: pa.Schema, form: Form, worker: int, pos: int, events: Sequence[tuple[int, Messages]]
) -> pa.RecordBatch:
    """The records of a worker's messages, each with its batch, with the schema `record_schema`."""
    data = [value for _, event in events for value in event.data or ()]
    batches = [position for position, event in events for _ in range(event.records)]
    stamps = [event.stamp for _, event in events for _ in range(event.records)]
    columns = [
        pa.array([worker] * len(data), pa.int32()),
        pa.array(batches, pa.int64()),
        _first_times(stamps, form.time_type),
        pa.array(range(pos, pos + len(data)), pa.int64()),
        payload_array(form.record, data),
    ]
    if "stamp" in schema.names:
        names = form.time_type.names
        listed = (
            None if len(stamp) == 1 else [dict(zip(names, time, strict=True)) for time in stamp]
            for stamp in stamps
        )
        columns.append(pa.array(listed, schema.field("stamp").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _first_times(stamps: Sequence[tuple[Time, ...]], time_type: TimeType) -> pa.StructArray:
    """The first element of each stamp; null for one without elements."""
    fields = [
        pa.array([stamp[0][i] if stamp else None for stamp in stamps], pa.int64())
        for i in range(len(time_type.names))
    ]
    absent = None if all(stamps) else pa.array([not stamp for stamp in stamps])
    return pa.StructArray.from_arrays(fields, list(time_type.names), mask=absent)


def _sized(recording: Recording, form: Form) -> Iterator[tuple[Item, int]]:
    """The items of a file, each with its size in bytes."""
    with Path(recording.path).open("rb", buffering=0) as source:
        reader = EventReader(source, form.encoding(recording.named), recording.path)
        start = 0
        for item in reader.items():
            yield item, reader.offset - start
            start = reader.offset


def _recordings(files: Files) -> Iterator[Recording]:
    for batch in files:
        for row in batch.to_pylist():
            yield Recording(**row)
