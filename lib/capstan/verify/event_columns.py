"""Events as plain lists, converted column by column, and faults in their shape.

Everything is vectorized, because a recording can have millions of events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.tape.tape import Cut, Tape
from capstan.storage.tape.time_columns import coordinates

Mask = npt.NDArray[np.bool_]

# Stands for "no worker"; worker numbers are never negative.
NO_WORKER = -1

MAX_EVENTS = 50_000
"""The most events that are read and sorted in this process.

Checking them takes less than a second unless many times are held at once.
"""


COLUMNS = ("worker", "seq", "commit", "kind", "time", "updates", "records", "fingerprint")
"""The columns of `events` that are checked; of a fingerprint, only whether it is whole.

A tape of stamps has the column `stamp` as well.
"""

Stamp = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EventColumns:
    """A batch of events, sorted by worker and seq.

    A missing or null value is replaced by an arbitrary one. Such a row is in `special`, or its kind
    has no such value.
    """

    workers: npt.NDArray[np.int64]
    seqs: list[int]
    commits: npt.NDArray[np.int64]
    progress: list[bool]  # else it is a messages event
    times: list[tuple[int, ...]]
    records: list[int]
    updates: list[tuple[tuple[int, ...], int]]  # `(time, diff)` of all progress events
    offsets: list[int]  # each event's start in `updates`, and the end of the last
    # By row: what is wrong with it, or the stamp of messages that do not have one time.
    special: dict[int, Stamp | str]

    @classmethod
    def of(cls, batch: pa.RecordBatch, width: int) -> EventColumns:
        """Convert a batch with the columns `COLUMNS`, and `stamp` if its tape has it."""
        flat = batch.column("updates").values
        moved = coordinates(pc.struct_field(flat, "time"), width)
        diffs = pc.struct_field(flat, "diff")
        sent = coordinates(batch.column("time"), width)
        progress = _mask(pc.equal(batch.column("kind"), "progress"))
        stamped, untimed, times = "stamp" in batch.schema.names, _nulls(*sent), _tuples(sent)
        if stamped:
            untimed &= ~_mask(pc.equal(pc.list_value_length(batch.column("stamp")), 0))
        faults = _faults(batch, progress, untimed, _nulls(*moved, diffs))
        return cls(
            workers=_numpy(batch.column("worker").cast(pa.int64()), NO_WORKER),
            seqs=_numpy(batch.column("seq")).tolist(),
            commits=_numpy(batch.column("commit")),
            progress=progress.tolist(),
            times=times,
            records=_numpy(batch.column("records")).tolist(),
            updates=list(zip(_tuples(moved), _numpy(diffs).tolist(), strict=True)),
            offsets=batch.column("updates").offsets.to_numpy().tolist(),
            special=_stamps(batch, times, width) | faults if stamped else faults,
        )

    def sequences(self) -> Iterator[tuple[int, range]]:
        """Each worker with the rows of its events."""
        ends = [*(np.flatnonzero(np.diff(self.workers)) + 1).tolist(), len(self.workers)]
        start = 0
        for end in ends:
            yield int(self.workers[start]), range(start, end)
            start = end

    def later(self, rows: range, commit: int) -> range | list[int]:
        """The rows among `rows` of commits after `commit`."""
        newer = self.commits[rows.start : rows.stop] > commit
        if newer.all():
            return rows
        selected: list[int] = (np.flatnonzero(newer) + rows.start).tolist()
        return selected


def _stamps(
    batch: pa.RecordBatch, times: list[tuple[int, ...]], width: int
) -> dict[int, Stamp | str]:
    """The stamps of a batch that has them by row, or their faults."""
    column = batch.column("stamp")
    flat = coordinates(column.values, width)
    elements, absent = _tuples(flat), _nulls(*flat)
    offsets = column.offsets.to_numpy().tolist()
    kinds = batch.column("kind").to_pylist()
    timed = _mask(pc.is_valid(batch.column("time")))
    found: dict[int, Stamp | str] = {}
    for row in np.flatnonzero(~_nulls(column)).tolist():
        start, end = offsets[row], offsets[row + 1]
        stamp = found[row] = tuple(elements[start:end])
        # The time of such an event is the first of its elements, if there is one.
        if kinds[row] == "progress":
            found[row] = "a progress event with a stamp"
        elif len(stamp) == 1 or stamp[:1] != ((times[row],) if timed[row] else ()):
            found[row] = "a messages event whose time is not the first of its stamp"
        elif absent[start:end].any():
            found[row] = "a messages event with a null in its stamp"
    return found


def _faults(
    batch: pa.RecordBatch, progress: Mask, sent: Mask, moved: Mask
) -> dict[int, Stamp | str]:
    """Faults by row; `sent` lack a complete time, and `moved` are flattened updates with a null."""
    messages = _mask(pc.equal(batch.column("kind"), "messages"))
    hashes = [pc.struct_field(batch.column("fingerprint"), name) for name in ("h1", "h2")]
    missing = {name: _nulls(batch.column(name)) for name in COLUMNS}
    negative = _mask(pc.less(batch.column("records"), 0))
    checks = [
        (~(progress | messages), "neither a progress nor a messages event"),
        (missing["seq"], "an event without seq"),
        (progress & ~missing["time"], "a progress event with a time"),
        (progress & ~missing["records"], "a progress event with a count of records"),
        (progress & ~missing["fingerprint"], "a progress event with a fingerprint"),
        (progress & missing["updates"], "a progress event without updates"),
        (progress & _owners(batch, moved), "a progress event with a null in its updates"),
        (messages & ~missing["updates"], "a messages event with updates"),
        (messages & sent, "a messages event without a complete time"),
        (messages & missing["records"], "a messages event without a count of records"),
        (messages & negative, "a messages event with a negative count of records"),
        (messages & _nulls(*hashes), "a messages event without a fingerprint"),
    ]
    faults: dict[int, Stamp | str] = {}
    for faulty, description in checks:
        for row in np.flatnonzero(faulty).tolist():
            faults.setdefault(row, description)
    return faults


def _owners(batch: pa.RecordBatch, elements: Mask) -> Mask:
    """The rows whose `updates` include any of these elements."""
    rows = np.zeros(batch.num_rows, np.bool_)
    if elements.any():
        offsets = batch.column("updates").offsets.to_numpy()
        rows[np.searchsorted(offsets, np.flatnonzero(elements), "right") - 1] = True
    return rows


def _tuples(columns: list[pa.Array]) -> list[tuple[int, ...]]:
    return list(zip(*(_numpy(column).tolist() for column in columns), strict=True))


def _numpy(column: pa.Array, null: int = 0) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = pc.fill_null(column, null).to_numpy(zero_copy_only=False)
    return values


def _mask(column: pa.Array) -> Mask:
    values: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return values


def _nulls(*columns: pa.Array) -> Mask:
    """The rows in which any of the columns is null."""
    masks = [_mask(pc.is_null(column)) for column in columns]
    anywhere: Mask = np.logical_or.reduce(masks)
    return anywhere


def _are_few(tape: Tape, after: int) -> bool:
    """Whether the commits after an ordinal have few events, by the log of the index alone."""
    actions = delta.open_table(tape.paths.events).files()
    if not {"max.commit", "num_records"} <= set(actions.column_names):
        return len(actions) == 0
    last, rows = (actions[name].to_pylist() for name in ("max.commit", "num_records"))
    if None in last or None in rows:
        return False
    newer = sum(n for commit, n in zip(last, rows, strict=True) if commit > after)
    return bool(newer <= MAX_EVENTS)


def columns_of(tape: Tape) -> list[str]:
    """The columns of a tape's events that are checked."""
    return [*COLUMNS, *tape.stamp]


def few_events(
    tape: Tape, cut: Cut, workers: Collection[int] | None, after: int
) -> list[pa.RecordBatch] | None:
    """Events for the fold, without a job or a JVM.

    None if they are many, or if two of a worker share a seq: only Spark orders these consistently.
    """
    if not _are_few(tape, after):
        return None
    wanted = (dataset.field("commit") <= cut.commit) & (dataset.field("commit") > after)
    if workers is not None:
        wanted &= dataset.field("worker").isin(list(workers))
    rows = rows_of(tape.paths.events).to_table(columns=columns_of(tape), filter=wanted)
    rows, keys = rows.combine_chunks(), ["worker", "seq"]
    if rows.group_by(keys).aggregate([]).num_rows < len(rows):
        return None
    order = pc.sort_indices(rows, sort_keys=[(key, "ascending", "at_start") for key in keys])
    batches: list[pa.RecordBatch] = rows.take(order).combine_chunks().to_batches()
    return batches
