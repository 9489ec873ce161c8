"""Writes recordings inside Spark's Python workers: one file at a time, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Final, TypedDict

import pyarrow as pa

from capstan.core.protocol import Messages, Progress
from capstan.core.times import Time
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.interop.timely import EventWriter
from capstan.interop.transfer.payload_columns import payload_values
from capstan.interop.transfer.recording_format import Form


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file: its name, events, records and bytes."""

    worker: int
    file: str
    events: int
    records: int
    bytes: int

    def to_json(self) -> dict[str, object]:
        """The file as reports show it."""
        return asdict(self)


RESULTS: Final = pa.schema(
    [("worker", pa.int32()), ("file", pa.string()), ("events", pa.int64()),
     ("records", pa.int64()), ("bytes", pa.int64()), ("refused", pa.string())]
)  # fmt: skip
"""A `WrittenFile`, or the error that took its place."""

_COLUMNS = ("worker", "kind", "stamp", "updates", "records")


class _Update(TypedDict):
    time: list[int]
    diff: int


class _UnfinishedFile:
    """The file of one worker while it is written; it gets its name once it is complete."""

    def __init__(self, folder: str, form: Form, worker: int) -> None:
        self._form = form
        self.worker = worker
        self._path = Path(folder) / f"worker-{worker}{form.format.suffix}"
        self._unfinished = self._path.with_name(f".{self._path.name}.unfinished")
        self._file: BufferedWriter = self._unfinished.open("wb")
        self._writer = EventWriter(self._file, form.encoding(worker), str(self._path))
        self._records = 0
        self._pending: tuple[tuple[Time, ...], int, list[object]] | None = None

    def event(
        self, stamp: list[list[int]] | None, updates: list[_Update] | None, records: int | None
    ) -> None:
        self._finish_messages()
        if stamp is None:
            pairs = ((Time(update["time"]), update["diff"]) for update in updates or ())
            self._writer.push(Progress(tuple(pairs)))
        else:
            self._pending = (tuple(map(Time, stamp)), records or 0, [])

    def record(self, value: object) -> None:
        if self._pending is None:
            # Records before all events: they have no number.
            raise _miscounted(None, None, 1, 0)
        self._pending[-1].append(value)
        self._records += 1

    def discard(self) -> None:
        self._file.close()
        self._unfinished.unlink()

    def close(self) -> WrittenFile:
        self._finish_messages()
        self._writer.flush()
        self._file.close()
        self._unfinished.replace(self._path)
        counts = (self._writer.seq, self._records, self._writer.size)
        return WrittenFile(self.worker, self._path.name, *counts)

    def _finish_messages(self) -> None:
        if self._pending is not None:
            stamp, promised, data = self._pending
            if len(data) != promised:
                first = next(iter(stamp), None)
                raise _miscounted(self._writer.seq, first, len(data), promised)
            self._writer.push(Messages(stamp, promised, tuple(data)))
            self._pending = None


def write(batches: Iterable[pa.RecordBatch], folder: str, form: Form) -> Iterator[pa.RecordBatch]:
    """Write rows in the order of `export_files`; one row of `RESULTS` per file.

    It has an error if an event cannot be written or lacks records that it counts, and is the last.
    """
    recordings: list[_UnfinishedFile] = []
    try:
        for written in _write_files(batches, folder, form, recordings):
            yield pa.RecordBatch.from_pylist([written.to_json()], RESULTS)
    except (CheckFailedError, InvalidRequestError) as error:
        recordings[-1].discard()
        result = {"worker": recordings[-1].worker, "refused": json.dumps(error.to_json())}
        yield pa.RecordBatch.from_pylist([result], RESULTS)


def _write_files(
    batches: Iterable[pa.RecordBatch], folder: str, form: Form, recordings: list[_UnfinishedFile]
) -> Iterator[WrittenFile]:
    """Each file once it is complete; the last of `recordings` is the one being written."""
    for batch in batches:
        data = iter(_values(batch, form))
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for worker, kind, stamp, updates, records in zip(*columns, strict=True):
            value = next(data)
            if not recordings or worker != recordings[-1].worker:
                if recordings:
                    yield recordings[-1].close()
                recordings[:] = [_UnfinishedFile(folder, form, worker)]
            if kind is None:
                recordings[-1].record(value)
            else:
                recordings[-1].event(stamp, updates, records)
    if recordings:
        yield recordings[-1].close()


def write_empty(folder: str, form: Form, worker: int) -> WrittenFile:
    """Write the recording of a worker that has no events."""
    return _UnfinishedFile(folder, form, worker).close()


def _values(batch: pa.RecordBatch, form: Form) -> list[object]:
    """The record of each row, None for an event."""
    column = batch.column("data")
    if form.types is None:
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    return payload_values(form.types.record, column)


def _miscounted(seq: int | None, time: Time | None, stored: int, promised: int) -> CheckFailedError:
    """The error for an incomplete event, with the fields from which the driver rebuilds it."""
    return CheckFailedError(
        "CAP-TAPE",
        f"{stored} records are stored, {promised} were recorded",
        "run `capstan verify STREAM --deep`",
        seq=seq,
        time=None if time is None else list(time),
        stored=stored,
        promised=promised,
    )
