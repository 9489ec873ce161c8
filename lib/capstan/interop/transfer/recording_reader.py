"""Reading recordings inside Spark's Python workers: one file at a time, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from capstan.core.protocol import Fault, Messages, Progress, Rule, StreamChecker, Violation
from capstan.core.protocol.events import Event, Item
from capstan.core.times import Time, TimeType
from capstan.interop.timely import EventReader
from capstan.interop.transfer.payload_columns import (
    BeyondError,
    payload_array,
    payload_type,
    require_bigint,
)
from capstan.interop.transfer.recording_format import Form, Recording

# So many records, or updates and events, are held before they are handed to Spark; of records also
# so many bytes of the file.
_FULL: Final = 50_000
_HEAVY: Final = 64 * 2**20

Files = Iterable[pa.RecordBatch]
"""Batches of `worker INT, path STRING, named INT`: the fields of a `Recording`."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in one file.

    Attributes:
        worker: Whose recording it is.
        path: The file.
        sha256: Of all its bytes.
        events: Events and faults, sound or not.
        records: Their records.
        violation: The first violation: `seq`, `rule` and what it says; None of a sound recording.
        torn: What is unfinished at its end, in words; None when all is whole.
        beyond: The first number that no BIGINT holds: in which event, and the number; None.
    """

    worker: int
    path: str
    sha256: str
    events: int
    records: int
    violation: tuple[int, str, str] | None
    torn: str | None
    beyond: tuple[int, str] | None

    def to_text(self) -> str:
        """The survey as JSON text, which `from_text` reads."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: str) -> Survey:
        """The survey that `to_text` wrote."""
        found = json.loads(text)
        for name in ("violation", "beyond"):
            found[name] = None if found[name] is None else tuple(found[name])
        return cls(**found)


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115
        self.hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes | None:
        data = self._file.read(size)
        self.hash.update(data or b"")
        return data

    def close(self) -> None:
        # What is after the damage counts as well: it is the same file only if all of it is.
        while self.read(2**20):
            pass
        self._file.close()


def survey(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """Judge each file; `worker INT, survey STRING`, a row per file."""
    for recording in _each(files):
        found = _surveyed(recording, form).to_text()
        columns = [pa.array([recording.worker], pa.int32()), pa.array([found], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["worker", "survey"])


def _surveyed(recording: Recording, form: Form) -> Survey:
    source = _Hashed(recording.path)
    judge = StreamChecker(form.time_type.minimum)
    violation: Violation | None = None
    too_large: tuple[int, str] | None = None
    events = records = 0
    with EventReader(source, form.encoding(recording.named), recording.path) as reader:
        for position, item in enumerate(reader.items()):
            events += 1
            records += _records(_event(item)) or 0
            violation = violation or judge.judge(item)
            if too_large is None and (number := beyond(_event(item), form)) is not None:
                too_large = position, number
        torn = None if reader.torn is None else reader.torn.about
    told = None
    if violation is not None:
        told = (violation.seq, violation.rule.value, violation.describe(form.time_type))
    digest = source.hash.hexdigest()
    return Survey(recording.worker, recording.path, digest, events, records, told, torn, too_large)


def beyond(event: Event | None, form: Form) -> str | None:
    """The first number of an event that no BIGINT holds, as text; None where all can be kept."""
    try:
        for time in _times(event):
            for value in time:
                require_bigint(value)
        if isinstance(event, Messages):
            payload_array(None if form.types is None else form.types.record, event.data or ())
    except BeyondError as error:
        return str(error)
    return None


def _event(item: Item) -> Event | None:
    """What is there of an item, also where its number is wrong."""
    return item.found if isinstance(item, Fault) else item


def _times(event: Event | None) -> Iterator[Time]:
    if isinstance(event, Messages):
        yield event.time
    elif isinstance(event, Progress):
        yield from (time for time, _ in event.updates)


@dataclass(slots=True)
class _Rows:
    """Columns of plain values, given as a batch when there are many."""

    schema: pa.Schema
    columns: list[list[object]] = field(init=False)
    weight: int = 0

    def __post_init__(self) -> None:
        self.columns = [[] for _ in self.schema]

    def add(self, weight: int, *values: object) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.weight += weight

    def taken(self) -> pa.RecordBatch:
        arrays = [
            pa.array(column, each.type)
            for column, each in zip(self.columns, self.schema, strict=True)
        ]
        self.__post_init__()
        self.weight = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def event_schema(time_type: TimeType) -> pa.Schema:
    """What `events` gives: the columns of the table but for commit and fingerprint."""
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
    """The events of each file, as `event_schema` says.

    The recorded order is `batch`, and of a sound recording also `seq`. What is no event keeps its
    place, without a kind. From the first wrong number on every `seq` is one too high, so that
    the recording breaks on the tape where it broke in the file.
    """
    time_type = form.time_type
    rows = _Rows(event_schema(time_type))
    for recording in _each(files):
        skipped = 0
        for position, item in enumerate(_items(recording, form)):
            skipped = 1 if isinstance(item, Fault) and item.rule is Rule.SEQ else skipped
            event = _event(item)
            place = (recording.worker, position + skipped)
            rows.add(weight(event), *place, *_cells(event, time_type), position, _records(event))
            if rows.weight >= _FULL:
                yield rows.taken()
    yield rows.taken()


def event_batch(
    time_type: TimeType, placed: Iterable[tuple[int, int, int, Event]]
) -> pa.RecordBatch:
    """Events with worker, `seq` and batch, as `event_schema` says."""
    rows = _Rows(event_schema(time_type))
    for worker, seq, batch, event in placed:
        rows.add(0, worker, seq, *_cells(event, time_type), batch, _records(event))
    return rows.taken()


def weight(event: Event | None) -> int:
    """How much of the index an event is: itself, and its updates."""
    return 1 + (len(event.updates) if isinstance(event, Progress) else 0)


def _cells(event: Event | None, time_type: TimeType) -> tuple[object, object, object]:
    """Kind, time and updates."""

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
    """What `records` gives: the columns of the table."""
    time = pa.struct([(name, pa.int64()) for name in form.time_type.names])
    return pa.schema(
        [
            ("worker", pa.int32()),
            ("batch", pa.int64()),
            ("time", time),
            ("pos", pa.int64()),
            ("data", payload_type(None if form.types is None else form.types.record)),
        ]
    )


def records(files: Files, form: Form) -> Iterator[pa.RecordBatch]:
    """The records of each file, as `record_schema` says; `pos` counts within the file."""
    schema = record_schema(form)
    for recording in _each(files):
        worker = recording.worker
        pos, held, heavy = 0, 0, 0
        waiting: list[tuple[int, Messages]] = []
        for position, part, size in _parts(recording, form):
            waiting.append((position, part))
            held, heavy = held + part.records, heavy + size
            if held >= _FULL or heavy >= _HEAVY:
                yield record_batch(schema, form, worker, pos, waiting)
                pos, held, heavy, waiting = pos + held, 0, 0, []
        yield record_batch(schema, form, worker, pos, waiting)


def _parts(recording: Recording, form: Form) -> Iterator[tuple[int, Messages, int]]:
    """The messages of a file that have records: position, event, bytes; long ones in parts."""
    for position, (item, size) in enumerate(_sized(recording, form)):
        event = _event(item)
        if not isinstance(event, Messages) or not event.records:
            continue
        if event.records <= _FULL:
            yield position, event, size
            continue
        data = event.data or ()
        for start in range(0, len(data), _FULL):
            part = data[start : start + _FULL]
            yield position, Messages(event.time, len(part), part), size * len(part) // len(data)


def record_batch(
    schema: pa.Schema, form: Form, worker: int, pos: int, events: Sequence[tuple[int, Messages]]
) -> pa.RecordBatch:
    """The records of a worker's messages, each with its batch, as `record_schema` says.

    Args:
        schema: That schema.
        form: What the records are.
        worker: Whose they are.
        pos: The first record's place.
        events: The batch of each event, and the event.

    Raises:
        BeyondError: A number does not fit a BIGINT.
    """
    record = None if form.types is None else form.types.record
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
        payload_array(record, data),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _items(recording: Recording, form: Form) -> Iterator[Item]:
    return (item for item, _ in _sized(recording, form))


def _sized(recording: Recording, form: Form) -> Iterator[tuple[Item, int]]:
    """What is in a file, each with the bytes that it takes there."""
    with Path(recording.path).open("rb", buffering=0) as source:
        reader = EventReader(source, form.encoding(recording.named), recording.path)
        before = 0
        for item in reader.items():
            yield item, reader.offset - before
            before = reader.offset


def _each(files: Files) -> Iterator[Recording]:
    for batch in files:
        for row in batch.to_pylist():
            yield Recording(**row)
