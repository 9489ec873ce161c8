"""Writing recordings inside Spark's Python workers: one file at a time, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedWriter
from pathlib import Path
from typing import TypedDict

import pyarrow as pa

from capstan.core.protocol import Messages, Progress
from capstan.core.times import Time
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.interop.timely import EventWriter
from capstan.interop.transfer.payload_columns import payload_values
from capstan.interop.transfer.recording_format import Form


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its name, events, records and bytes."""

    worker: int
    file: str
    events: int
    records: int
    bytes: int

    def to_json(self) -> dict[str, object]:
        """The file as reports name it."""
        return asdict(self)

    def to_text(self) -> str:
        """The same as JSON text, which `from_text` reads."""
        return json.dumps(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Written:
        """What `to_text` wrote."""
        return cls(**json.loads(text))


_COLUMNS = ("worker", "kind", "time", "updates", "records")


class _Update(TypedDict):
    time: list[int]
    diff: int


class _Recording:
    """The file of one worker, on its way: it appears under its name when it is whole."""

    def __init__(self, folder: str, form: Form, worker: int) -> None:
        self._form = form
        self.worker = worker
        self._path = Path(folder) / f"worker-{worker}{form.format.suffix}"
        self._unfinished = self._path.with_name(f".{self._path.name}.unfinished")
        self._file: BufferedWriter = self._unfinished.open("wb")
        self._writer = EventWriter(self._file, form.encoding(worker), str(self._path))
        self._records = 0
        self._waiting: tuple[Time, int, list[object]] | None = None

    def event(
        self, time: list[int] | None, updates: list[_Update] | None, records: int | None
    ) -> None:
        self._finish_messages()
        if time is None:
            pairs = ((Time(each["time"]), each["diff"]) for each in updates or ())
            self._writer.push(Progress(tuple(pairs)))
        else:
            self._waiting = (Time(time), records or 0, [])

    def record(self, value: object) -> None:
        if self._waiting is None:
            # These come before all events: they have no number.
            raise _miscounted(None, None, 1, 0)
        self._waiting[-1].append(value)
        self._records += 1

    def give_up(self) -> None:
        self._file.close()
        self._unfinished.unlink()

    def close(self) -> Written:
        self._finish_messages()
        self._writer.flush()
        self._file.close()
        self._unfinished.replace(self._path)
        found = (self._writer.seq, self._records, self._writer.size)
        return Written(self.worker, self._path.name, *found)

    def _finish_messages(self) -> None:
        if self._waiting is not None:
            time, promised, data = self._waiting
            if len(data) != promised:
                raise _miscounted(self._writer.seq, time, len(data), promised)
            self._writer.push(Messages.of(time, data))
            self._waiting = None


def write(batches: Iterable[pa.RecordBatch], folder: str, form: Form) -> Iterator[pa.RecordBatch]:
    """Write rows as `exporting` sorts them; a row per file.

    Yields:
        `worker INT, written STRING, refused STRING`: as `Written.to_text` has it; or the error,
        where an event cannot be written, or has not the records that it says. After that nothing
        more is.
    """
    recordings: list[_Recording] = []
    try:
        for written in _written(batches, folder, form, recordings):
            yield _told(written.worker, written.to_text(), None)
    except (CheckFailedError, InvalidRequestError) as error:
        recordings[-1].give_up()
        yield _told(recordings[-1].worker, None, json.dumps(error.to_json()))


def _written(
    batches: Iterable[pa.RecordBatch], folder: str, form: Form, recordings: list[_Recording]
) -> Iterator[Written]:
    """Each file as it is whole; the last of `recordings` is the one at work."""
    for batch in batches:
        data = iter(_values(batch, form))
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for worker, kind, time, updates, records in zip(*columns, strict=True):
            value = next(data)
            if not recordings or worker != recordings[-1].worker:
                if recordings:
                    yield recordings[-1].close()
                recordings[:] = [_Recording(folder, form, worker)]
            if kind is None:
                recordings[-1].record(value)
            else:
                recordings[-1].event(time, updates, records)
    if recordings:
        yield recordings[-1].close()


def write_empty(folder: str, form: Form, worker: int) -> Written:
    """Write the recording of a worker that has no events."""
    return _Recording(folder, form, worker).close()


def _values(batch: pa.RecordBatch, form: Form) -> list[object]:
    """The record of each row, None of an event."""
    column = batch.column("data")
    if form.types is None:
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    return payload_values(form.types.record, column)


def _miscounted(seq: int | None, time: Time | None, stored: int, promised: int) -> CheckFailedError:
    """The error of what is not whole, with the facts that the driver tells it by."""
    return CheckFailedError(
        "CAP-TAPE",
        f"{stored} records are there, {promised} were recorded",
        "see `capstan verify STREAM --deep`",
        seq=seq,
        time=None if time is None else list(time),
        stored=stored,
        promised=promised,
    )


def _told(worker: int, written: str | None, refused: str | None) -> pa.RecordBatch:
    texts = (pa.array([text], pa.string()) for text in (written, refused))
    return pa.RecordBatch.from_arrays(
        [pa.array([worker], pa.int32()), *texts], ["worker", "written", "refused"]
    )
