"""Reads recordings inside Spark's Python workers: one file at a time, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

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

    def to_text(self) -> str:
        """The survey as JSON text, which `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> FileSurvey:
        """The survey that `to_text` wrote."""
        fields = json.loads(text)
        if fields["violation"] is not None:
            fields["violation"] = SurveyViolation(*fields["violation"])
        if fields["oversized"] is not None:
            fields["oversized"] = OversizedNumber(*fields["oversized"])
        return cls(**fields)


class _HashedFile:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115
        self.hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes | None:
        data = self._file.read(size)
        self.hash.update(data or b"")
        return data

    def close(self) -> None:
        # The hash covers the bytes after damage too: the file is the same only if all bytes are.
        while self.read(2**20):
            pass
        self._file.close()


def survey(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """Check each file; `worker INT, survey STRING`, one row per file."""
    for recording in _recordings(files):
        text = _surveyed(recording, form).to_text()
        columns = [pa.array([recording.worker], pa.int32()), pa.array([text], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["worker", "survey"])


def _surveyed(recording: Recording, form: Form) -> FileSurvey:
    source = _HashedFile(recording.path)
    checker = StreamChecker(form.time_type.minimum)
    violation: Violation | None = None
    oversized: OversizedNumber | None = None
    events = records = 0
    with EventReader(source, form.encoding(recording.named), recording.path) as reader:
        for position, item in enumerate(reader.items()):
            events += 1
            records += _records(_event(item)) or 0
            violation = violation or checker.judge(item)
            if oversized is None:
                number = first_oversized_number(_event(item), form)
                oversized = None if number is None else OversizedNumber(position, number)
        torn = None if reader.torn is None else reader.torn.about
    first = None
    if violation is not None:
        description = violation.describe(form.time_type)
        first = SurveyViolation(violation.seq, violation.rule.value, description)
    digest = source.hash.hexdigest()
    return FileSurvey(
        recording.worker, recording.path, digest, events, records, first, torn, oversized
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


def _event(item: Item) -> Event | None:
    """The event of an item, even if its number is wrong."""
    return item.found if isinstance(item, Fault) else item


def _times(event: Event | None) -> Iterator[Time]:
    if isinstance(event, Messages):
        yield event.time
    elif isinstance(event, Progress):
        yield from (time for time, _ in event.updates)


@dataclass(slots=True)
class _Rows:
    """Columns of plain values, emitted as a batch once there are enough."""

    schema: pa.Schema
    columns: list[list[object]] = field(init=False)
    weight: int = 0

    def __post_init__(self) -> None:
        self.columns = [[] for _ in self.schema]

    def add(self, weight: int, *values: object) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.weight += weight

    def flush(self) -> pa.RecordBatch:
        arrays = [
            pa.array(column, schema_field.type)
            for column, schema_field in zip(self.columns, self.schema, strict=True)
        ]
        self.__post_init__()
        self.weight = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def event_schema(time_type: TimeType) -> pa.Schema:
    """Schema of `events`: the columns of the table without commit and fingerprint."""
    time = pa.struct([(name, pa.int64()) for name in time_type.names])
    return pa.schema(
        [
            ("worker", pa.int32()),
            ("seq", pa.int64()),
            ("kind", pa.string()),
            ("time", time),
            ("updates", pa.list_(pa.struct([("time", time), ("diff", pa.int64())]))),
            ("batch", pa.int64()),
            ("records", pa.int64()),
        ]
    )


def events(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """The events of each file, with the schema `event_schema`.

    `batch` is the recorded order, and equals `seq` in a sound recording. An item that is not an
    event keeps its position, without a kind. From the first wrong number on, every `seq` is one too
    high, so that the recording breaks on the tape at the same place as in the file.
    """
    time_type = form.time_type
    rows = _Rows(event_schema(time_type))
    for recording in _recordings(files):
        skipped = 0
        for position, (item, _) in enumerate(_sized(recording, form)):
            skipped = 1 if isinstance(item, Fault) and item.rule is Rule.SEQ else skipped
            event = _event(item)
            place = (recording.worker, position + skipped)
            rows.add(weight(event), *place, *_cells(event, time_type), position, _records(event))
            if rows.weight >= _MAX_ROWS:
                yield rows.flush()
    yield rows.flush()


def event_batch(
    time_type: TimeType, numbered: Iterable[tuple[int, int, int, Event]]
) -> pa.RecordBatch:
    """Events with worker, `seq` and batch, with the schema `event_schema`."""
    rows = _Rows(event_schema(time_type))
    for worker, seq, batch, event in numbered:
        rows.add(0, worker, seq, *_cells(event, time_type), batch, _records(event))
    return rows.flush()


def weight(event: Event | None) -> int:
    """Size of an event in the index: itself and its updates."""
    return 1 + (len(event.updates) if isinstance(event, Progress) else 0)


def _cells(event: Event | None, time_type: TimeType) -> tuple[object, object, object]:
    """The columns kind, time and updates."""

    def struct(time: Time) -> dict[str, int]:
        return dict(zip(time_type.names, time, strict=True))

    if event is None:
        return None, None, None
    if isinstance(event, Messages):
        return "messages", struct(event.time), None
    updates = [{"time": struct(time), "diff": diff} for time, diff in event.updates]
    return "progress", None, updates


def _records(event: Event | None) -> int | None:
    return event.records if isinstance(event, Messages) else None


def record_schema(form: Form) -> pa.Schema:
    """Schema of `records`: the columns of the table."""
    time = pa.struct([(name, pa.int64()) for name in form.time_type.names])
    return pa.schema(
        [
            ("worker", pa.int32()),
            ("batch", pa.int64()),
            ("time", time),
            ("pos", pa.int64()),
            ("data", payload_type(form.record)),
        ]
    )


def records(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """The records of each file, with the schema `record_schema`; `pos` counts within the file."""
    schema = record_schema(form)
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
            yield position, Messages(event.time, len(part), part), size * len(part) // len(data)


def record_batch(
    schema: pa.Schema, form: Form, worker: int, pos: int, events: Sequence[tuple[int, Messages]]
) -> pa.RecordBatch:
    """The records of a worker's messages, each with its batch, with the schema `record_schema`."""
    data = [value for _, event in events for value in event.data or ()]
    batches = [position for position, event in events for _ in range(event.records)]
    fields = [
        pa.array([event.time[i] for _, event in events for _ in range(event.records)], pa.int64())
        for i in range(len(form.time_type.names))
    ]
    columns = [
        pa.array([worker] * len(data), pa.int32()),
        pa.array(batches, pa.int64()),
        pa.StructArray.from_arrays(fields, list(form.time_type.names)),
        pa.array(range(pos, pos + len(data)), pa.int64()),
        payload_array(form.record, data),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
