"""What the index says of batches: how many records each worker has in them, when; their hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Antichain, Box, TimeType
from capstan.maintenance.file_layout import Cells
from capstan.storage.arrow_scan import rows_of
from capstan.storage.tape.index import WorkerState, arrow_coordinates
from capstan.storage.tape.tape import Cut, Tape

_ALL = 2**64


@dataclass(frozen=True, slots=True)
class ExpectedContent:
    """What the records of some batches should be.

    Attributes:
        records: How many there are, by worker.
        hashes: The sums of both content hashes, modulo 2^64.
        cells: A row per worker and time: `worker`, a column per coordinate, `records`.
    """

    records: Mapping[int, int]
    hashes: tuple[int, int]
    cells: pa.Table = field(repr=False)

    @property
    def content(self) -> tuple[int, int, int]:
        """The number of all records, and both hashes."""
        return sum(self.records.values()), *self.hashes

    def times_of(self, worker: int) -> Cells:
        """The times of a worker in their order, with their numbers of records."""
        names = [name for name in self.cells.column_names if name.startswith("t")]
        mine = self.cells.filter(pc.equal(self.cells["worker"], worker))
        grouped = mine.group_by(names).aggregate([("records", "sum")])
        ordered = grouped.sort_by([(name, "ascending") for name in names])
        times = zip(*(ordered[name].to_pylist() for name in names), strict=True)
        return list(zip(times, ordered["records_sum"].to_pylist(), strict=True))


def promised(tape: Tape, low: int, high: int, retired: Sequence[Box] = ()) -> ExpectedContent:
    """What the index says of the batches `low` to `high`, but for what was retired."""
    records: Counter[int] = Counter()
    h1, h2 = 0, 0
    parts = []
    columns = ["worker", "time", "records", "fingerprint"]
    for batch in _messages(tape, low, high, columns):
        kept = _kept(batch, tape, retired)
        times = arrow_coordinates(kept.column("time"), tape.time_type)
        content = kept.column("fingerprint")
        h1 += sum(pc.struct_field(content, "h1").to_pylist())
        h2 += sum(pc.struct_field(content, "h2").to_pylist())
        names = ["worker", *(f"t{i}" for i in range(len(times))), "records"]
        cells = pa.table([kept.column("worker"), *times, kept.column("records")], names=names)
        parts.append(cells)
        by_worker = cells.group_by("worker").aggregate([("records", "sum")])
        for row in by_worker.to_pylist():
            records[row["worker"]] += row["records_sum"]
    found = pa.concat_tables(parts) if parts else _no_cells(tape.time_type)
    return ExpectedContent(dict(records), (h1 % _ALL, h2 % _ALL), found)


def promised_by_batch(
    tape: Tape, low: int, high: int, retired: Sequence[Box] = ()
) -> dict[int, tuple[int, int, int]]:
    """Number of records and both hashes of each of some batches, but for what was retired."""
    found: dict[int, tuple[int, int, int]] = {}
    for batch in _messages(tape, low, high, ["time", "batch", "records", "fingerprint"]):
        kept = _kept(batch, tape, retired)
        content = kept.column("fingerprint")
        columns = (
            kept.column("batch"),
            kept.column("records"),
            pc.struct_field(content, "h1"),
            pc.struct_field(content, "h2"),
        )
        for number, records, h1, h2 in zip(*(c.to_pylist() for c in columns), strict=True):
            before = found.get(number, (0, 0, 0))
            found[number] = (
                before[0] + records, (before[1] + h1) % _ALL, (before[2] + h2) % _ALL,
            )  # fmt: skip
    return found


def _kept(batch: pa.RecordBatch, tape: Tape, retired: Sequence[Box]) -> pa.RecordBatch:
    """The events of a batch but for those whose records were retired."""
    if not retired:
        return batch
    times = arrow_coordinates(batch.column("time"), tape.time_type)
    gone = reduce(pc.or_, [_inside(times, box) for box in retired])
    return batch.filter(pc.invert(gone))


def records_in(tape: Tape, cut: Cut, box: Box, besides: Sequence[Box] = ()) -> int:
    """How many records the index has at times that are in a box, and in none of some others."""
    found = 0
    for batch in _messages(tape, 0, cut.batch, ["time", "records"]):
        times = arrow_coordinates(batch.column("time"), tape.time_type)
        wanted = _inside(times, box)
        for other in besides:
            wanted = pc.and_(wanted, pc.invert(_inside(times, other)))
        found += pc.sum(batch.column("records").filter(wanted)).as_py() or 0
    return found


def settled_batch(tape: Tape, cut: Cut, states: Sequence[WorkerState], since: int) -> int:
    """The last batch up to which no record can come at any time that a batch has records of.

    A worker's times are judged by its own frontier: one that stands still holds up no other.

    Args:
        tape: The tape.
        cut: Its newest cut.
        states: The workers at that cut.
        since: The first batch that is asked about.
    """
    # Of a recording that breaks the rules counts may all be negative: nothing is held then.
    frontiers = {state.worker: state.frontier for state in states if state.frontier}
    last = cut.batch
    if not frontiers:
        return last
    for batch in _messages(tape, since, last, ["worker", "time", "batch"]):
        times = arrow_coordinates(batch.column("time"), tape.time_type)
        for worker in pc.unique(batch.column("worker")).to_pylist():
            if worker not in frontiers:
                continue
            open_ = pc.and_(
                pc.equal(batch.column("worker"), worker), _reached(times, frontiers[worker])
            )
            first = pc.min(batch.filter(open_).column("batch")).as_py()
            if first is not None:
                last = min(last, first - 1)
    return last


def _messages(tape: Tape, low: int, high: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    table = rows_of(tape.paths.events)
    batch, kind = dataset.field("batch"), dataset.field("kind")
    wanted = (batch >= low) & (batch <= high) & (kind == "messages")
    for found in table.scanner(columns=columns, filter=wanted).to_batches():
        if found.num_rows:
            yield found


def _reached(times: Sequence[pa.Array], frontier: Antichain) -> pa.Array:
    """Which times are not complete under a frontier."""
    past = [
        reduce(pc.and_, [pc.greater_equal(t, v) for t, v in zip(times, element, strict=True)])
        for element in frontier.elements
    ]
    return reduce(pc.or_, past)


def _inside(times: Sequence[pa.Array], box: Box) -> pa.Array:
    """Which times are in a box."""
    found = pa.array([True] * len(times[0]))
    for values, since, until in zip(times, box.since, box.until, strict=True):
        if since is not None:
            found = pc.and_(found, pc.greater_equal(values, since))
        if until is not None:
            found = pc.and_(found, pc.less(values, until))
    return found


def _no_cells(time_type: TimeType) -> pa.Table:
    names = [f"t{i}" for i in range(len(time_type.coordinates))]
    columns = [("worker", pa.int32()), *((n, pa.int64()) for n in names), ("records", pa.int64())]
    return pa.schema(columns).empty_table()
