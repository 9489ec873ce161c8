"""Expected content of batches from the index: records per worker and time, and hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Antichain, Box
from capstan.core.times.box_conditions import box_conditions
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.tape.index import WorkerState, arrow_coordinates
from capstan.storage.tape.tape import Cut, Tape

_ALL = 2**64
_COMPARE = {">=": pc.greater_equal, ">": pc.greater, "<=": pc.less_equal, "<": pc.less}
_MEASURES = ("records", "h1", "h2")

Content = tuple[int, int, int]
"""A number of records, and the sums of both content hashes, modulo 2^64."""
Cells = Sequence[tuple[tuple[int, ...], int]]
"""The times of one worker in ascending order, each with its number of records."""


def content(records: int | None, h1: int | None, h2: int | None) -> Content:
    """The content of records, from sums of their hashes that wrap around; None for no records."""
    return records or 0, (h1 or 0) % _ALL, (h2 or 0) % _ALL


@dataclass(frozen=True, slots=True)
class ExpectedContent:
    """The expected records of some batches."""

    messages: pa.Table  # the columns `worker, batch, records, h1, h2, t0, t1, ...`

    @property
    def total(self) -> Content:
        """The content of all workers and batches."""
        return content(*(pc.sum(self.messages[name]).as_py() for name in _MEASURES))

    def by(self, column: str) -> dict[int, Content]:
        """The content of each worker, or of each batch."""
        grouped = self.messages.group_by(column).aggregate([(name, "sum") for name in _MEASURES])
        values = (grouped[f"{name}_sum"].to_pylist() for name in _MEASURES)
        return dict(zip(grouped[column].to_pylist(), map(content, *values), strict=True))

    def times_of(self, worker: int) -> Cells:
        """The times of a worker in order, with their numbers of records."""
        names = [name for name in self.messages.column_names if name.startswith("t")]
        messages = self.messages.filter(pc.equal(self.messages["worker"], worker))
        # Records without a time, under no element of a stamp, stay in the worker's first file.
        grouped = messages.group_by(names).aggregate([("records", "sum")]).drop_null()
        ordered = grouped.sort_by([(name, "ascending") for name in names])
        times = zip(*(ordered[name].to_pylist() for name in names), strict=True)
        return list(zip(times, ordered["records_sum"].to_pylist(), strict=True))


def expected_content(tape: Tape, low: int, high: int, retired: Sequence[Box]) -> ExpectedContent:
    """The expected content of the batches `low` to `high`, without retired records."""
    coordinates = [f"t{i}" for i in range(len(tape.time_type.coordinates))]
    plain = {"worker": pa.int32(), "batch": pa.int64(), "records": pa.int64()}
    numbers = dict.fromkeys(("h1", "h2", *coordinates), pa.int64())
    parts = []
    for events, times in _messages(tape, low, high, [*plain, "fingerprint"], retired):
        hashes = (pc.struct_field(events.column("fingerprint"), name) for name in ("h1", "h2"))
        columns = [*(events.column(name) for name in plain), *hashes, *times]
        parts.append(pa.table(columns, names=[*plain, *numbers]))
    schema = pa.schema(plain | numbers)
    return ExpectedContent(pa.concat_tables([schema.empty_table(), *parts]))


def records_in(tape: Tape, cut: Cut, box: Box, besides: Sequence[Box]) -> int:
    """The number of records at times inside `box` and outside all of `besides`."""
    return sum(
        pc.sum(events.column("records").filter(_inside(times, box))).as_py() or 0
        for events, times in _messages(tape, 0, cut.batch, ["records"], besides)
    )


def settled_batch(tape: Tape, cut: Cut, states: Sequence[WorkerState], since: int) -> int:
    """The last settled batch: no more records can arrive at the times of batches up to it."""
    # Each worker's times are compared with its own frontier, so a stalled worker holds up no other.

    # An invalid recording may have only negative counts; then it holds nothing.
    frontiers = {state.worker: state.frontier for state in states if state.frontier}
    last = cut.batch
    if not frontiers:
        return last
    for events, times in _messages(tape, since, last, ["worker", "batch"]):
        for worker in pc.unique(events.column("worker")).to_pylist():
            if worker not in frontiers:
                continue
            open_ = pc.and_(
                pc.equal(events.column("worker"), worker), _reached(times, frontiers[worker])
            )
            first = pc.min(events.filter(open_).column("batch")).as_py()
            if first is not None:
                last = min(last, first - 1)
    return last


def _messages(
    tape: Tape, low: int, high: int, columns: list[str], besides: Sequence[Box] = ()
) -> Iterator[tuple[pa.RecordBatch, list[pa.Array]]]:
    """The messages events of some batches outside all of `besides`, and their coordinates."""
    batch, kind = dataset.field("batch"), dataset.field("kind")
    wanted = (batch >= low) & (batch <= high) & (kind == "messages")
    scanner = rows_of(tape.paths.events).scanner(columns=["time", *columns], filter=wanted)
    for events in scanner.to_batches():
        times = arrow_coordinates(events.column("time"), tape.time_type)
        outside = (pc.invert(_inside(times, box)) for box in besides)
        kept = reduce(pc.and_, outside, pa.repeat(True, events.num_rows))
        if pc.any(kept).as_py():
            yield events.filter(kept), [column.filter(kept) for column in times]


def _reached(times: Sequence[pa.Array], frontier: Antichain) -> pa.Array:
    """Whether each time is incomplete under a frontier."""
    unbounded = (None,) * len(times)
    boxes = [Box(element, unbounded, frontier.order) for element in frontier.elements]
    return reduce(pc.or_, [_inside(times, box) for box in boxes])


def _inside(times: Sequence[pa.Array], box: Box) -> pa.Array:
    """Whether each time is in a box."""

    def compared(axis: int, sign: str, bound: int) -> pa.Array:
        return _COMPARE[sign](times[axis], bound)

    conditions = box_conditions(box, compared, pc.and_, pc.or_)
    return reduce(pc.and_, conditions, pa.repeat(True, len(times[0])))
