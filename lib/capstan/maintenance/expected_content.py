"""Expected content of batches from the index: records per worker and time, and hashes."""

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
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.tape.index import WorkerState, arrow_coordinates
from capstan.storage.tape.tape import Cut, Tape

_ALL = 2**64


@dataclass(frozen=True, slots=True)
class ExpectedContent:
    """The expected records of some batches."""

    records: Mapping[int, int]  # by worker
    hashes: tuple[int, int]  # the sums of both content hashes, modulo 2^64
    cells: pa.Table = field(repr=False)  # a row per worker and time, with `records`

    @property
    def content(self) -> tuple[int, int, int]:
        """The total number of records, and both hashes."""
        return sum(self.records.values()), *self.hashes

    def times_of(self, worker: int) -> Cells:
        """The times of a worker in order, with their numbers of records."""
        names = [name for name in self.cells.column_names if name.startswith("t")]
        cells = self.cells.filter(pc.equal(self.cells["worker"], worker))
        grouped = cells.group_by(names).aggregate([("records", "sum")])
        ordered = grouped.sort_by([(name, "ascending") for name in names])
        times = zip(*(ordered[name].to_pylist() for name in names), strict=True)
        return list(zip(times, ordered["records_sum"].to_pylist(), strict=True))


def expected_content(
    tape: Tape, low: int, high: int, retired: Sequence[Box] = ()
) -> ExpectedContent:
    """The expected content of the batches `low` to `high`, without retired records."""
    records: Counter[int] = Counter()
    h1, h2 = 0, 0
    parts = []
    columns = ["worker", "time", "records", "fingerprint"]
    for batch in _messages(tape, low, high, columns):
        kept = _without_retired(batch, tape, retired)
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
    all_cells = pa.concat_tables(parts) if parts else _no_cells(tape.time_type)
    return ExpectedContent(dict(records), (h1 % _ALL, h2 % _ALL), all_cells)


def expected_by_batch(
    tape: Tape, low: int, high: int, retired: Sequence[Box] = ()
) -> dict[int, tuple[int, int, int]]:
    """The number of records and both hashes of each batch, without retired records."""
    contents: dict[int, tuple[int, int, int]] = {}
    for batch in _messages(tape, low, high, ["time", "batch", "records", "fingerprint"]):
        kept = _without_retired(batch, tape, retired)
        content = kept.column("fingerprint")
        columns = (
            kept.column("batch"),
            kept.column("records"),
            pc.struct_field(content, "h1"),
            pc.struct_field(content, "h2"),
        )
        for number, records, h1, h2 in zip(*(c.to_pylist() for c in columns), strict=True):
            before = contents.get(number, (0, 0, 0))
            contents[number] = (
                before[0] + records, (before[1] + h1) % _ALL, (before[2] + h2) % _ALL,
            )  # fmt: skip
    return contents


def _without_retired(batch: pa.RecordBatch, tape: Tape, retired: Sequence[Box]) -> pa.RecordBatch:
    """The events of a batch, without those of retired records."""
    if not retired:
        return batch
    times = arrow_coordinates(batch.column("time"), tape.time_type)
    is_retired = reduce(pc.or_, [_inside(times, box) for box in retired])
    return batch.filter(pc.invert(is_retired))


def records_in(tape: Tape, cut: Cut, box: Box, besides: Sequence[Box] = ()) -> int:
    """The number of records at times inside `box` and outside all of `besides`."""
    count = 0
    for batch in _messages(tape, 0, cut.batch, ["time", "records"]):
        times = arrow_coordinates(batch.column("time"), tape.time_type)
        counted = _inside(times, box)
        for other in besides:
            counted = pc.and_(counted, pc.invert(_inside(times, other)))
        count += pc.sum(batch.column("records").filter(counted)).as_py() or 0
    return count


def settled_batch(tape: Tape, cut: Cut, states: Sequence[WorkerState], since: int) -> int:
    """The last settled batch: no more records can arrive at the times of batches up to it."""
    # Each worker's times are compared with its own frontier, so a stalled worker holds up no other.

    # An invalid recording may have only negative counts; then it holds nothing.
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
    messages = (batch >= low) & (batch <= high) & (kind == "messages")
    for events in table.scanner(columns=columns, filter=messages).to_batches():
        if events.num_rows:
            yield events


def _reached(times: Sequence[pa.Array], frontier: Antichain) -> pa.Array:
    """Whether each time is incomplete under a frontier."""
    reached = [
        reduce(pc.and_, [pc.greater_equal(t, v) for t, v in zip(times, element, strict=True)])
        for element in frontier.elements
    ]
    return reduce(pc.or_, reached)


def _inside(times: Sequence[pa.Array], box: Box) -> pa.Array:
    """Whether each time is in a box."""
    inside = pa.array([True] * len(times[0]))
    for values, since, until in zip(times, box.since, box.until, strict=True):
        if since is not None:
            inside = pc.and_(inside, pc.greater_equal(values, since))
        if until is not None:
            inside = pc.and_(inside, pc.less(values, until))
    return inside


def _no_cells(time_type: TimeType) -> pa.Table:
    names = [f"t{i}" for i in range(len(time_type.coordinates))]
    columns = [("worker", pa.int32()), *((n, pa.int64()) for n in names), ("records", pa.int64())]
    return pa.schema(columns).empty_table()
