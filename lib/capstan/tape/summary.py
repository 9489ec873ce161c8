"""What is on a tape, told from its index without a JVM: workers, holdings, cells, cuts.

Reads `events` through Arrow. Files are pruned by integers only: Delta keeps the bounds of
timestamps in milliseconds, and a reader that trusts them can drop a row of that millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.errors import BadRequest
from capstan.tape import delta
from capstan.tape.files import files_of
from capstan.tape.scan import in_portions, iter_columns, read_columns, rows_of
from capstan.tape.tape import Cut, Tape, newest_cut
from capstan.times import Antichain, ChangeBatch, Time, TimeType
from capstan.times.region import Region


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A captured worker at a cut.

    Attributes:
        worker: Its number.
        label: What it stands for: a column value, a source partition.
        events: Events on tape; the next `seq`.
        records: Records on tape.
        holdings: Held times with their counts, in listing order.
    """

    worker: int
    label: str
    events: int
    records: int
    holdings: tuple[tuple[Time, int], ...]

    @property
    def frontier(self) -> Antichain:
        """The minimal held times; empty when the worker is closed."""
        return Antichain.of(time for time, count in self.holdings if count > 0)

    @property
    def closed(self) -> bool:
        """Whether nothing is held any more."""
        return not self.holdings


@dataclass(frozen=True, slots=True)
class Played:
    """What lies in a region of a tape.

    Attributes:
        messages: Messages events.
        records: Records.
        times: Distinct times.
        fingerprint: The content hash of all records, 32 hex digits.
        by_worker: Records by worker.
    """

    messages: int
    records: int
    times: int
    fingerprint: str
    by_worker: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Messages:
    """A messages event: its worker and time, how many records, and the two sums of their hashes."""

    worker: int
    time: Time
    records: int
    h1: int
    h2: int


def find_cut(tape: Tape, as_of: int | None) -> Cut:
    """The cut at commit `as_of`, or the newest.

    Raises:
        BadRequest: `CAP-CUT` when the tape has no such commit.
    """
    newest = newest_cut(tape)
    if as_of is None or as_of == newest.commit:
        return newest
    if not 0 <= as_of < newest.commit:
        raise BadRequest(
            "CAP-CUT",
            f"stream {tape.name} has no commit {as_of}: it has 0 to {newest.commit}",
            "see `capstan show`",
            stream=tape.name,
        )
    batches = [
        pc.max(batch.column("batch")).as_py()
        for batch in _scan(tape, Cut(as_of, 0), ["batch"])
        if batch.num_rows
    ]
    return Cut(as_of, max(batches, default=-1))


def worker_states(tape: Tape, cut: Cut) -> list[WorkerState]:
    """Every worker of the tape at a cut, by number."""
    events: Counter[int] = Counter()
    records: Counter[int] = Counter()
    held: dict[int, ChangeBatch] = {}
    minimum = tape.time_type.minimum
    labels = worker_labels(tape, cut)
    for worker in labels:
        held[worker] = ChangeBatch()
        held[worker].update(minimum, 1)
    for batch in _scan(tape, cut, ["worker", "updates", "records"]):
        for row in _sums(batch, ["worker"], ["records"]):
            events[row["worker"]] += row["worker_count"]
            records[row["worker"]] += row["records_sum"] or 0
        for worker, time, diff in _net_updates(batch, tape.time_type):
            held[worker].update(time, diff)
    return [
        WorkerState(worker, labels[worker], events[worker], records[worker], held[worker].items())
        for worker in sorted(labels)
    ]


def is_closed(tape: Tape, cut: Cut) -> bool:
    """Whether the stream has ended: it has workers, and none of them holds anything."""
    states = worker_states(tape, cut)
    return bool(states) and all(state.closed for state in states)


def worker_labels(tape: Tape, cut: Cut) -> dict[int, str]:
    """Labels by worker number, of the workers that were opened up to the cut."""
    rows = read_columns(tape.paths.workers, ["worker", "label", "opened_commit"]).to_pylist()
    return {
        row["worker"]: row["label"]
        for row in sorted(rows, key=lambda row: row["worker"])
        if row["opened_commit"] <= cut.commit
    }


def resolve_workers(tape: Tape, cut: Cut, chosen: Collection[str] | None) -> dict[int, str]:
    """Workers by label or number, in the order they were chosen; None chooses all.

    Raises:
        BadRequest: `CAP-WORKER` for one that the stream does not have.
    """
    labels = worker_labels(tape, cut)
    if chosen is None:
        return labels
    by_label = {label: worker for worker, label in labels.items()}
    found: dict[int, str] = {}
    for text in chosen:
        worker = by_label.get(text)
        if worker is None and text.isdecimal() and int(text) in labels:
            worker = int(text)
        if worker is None:
            raise BadRequest(
                "CAP-WORKER",
                f"stream {tape.name} has no worker {text!r}: it has {', '.join(by_label)}",
                "name workers by label or number, separated by commas",
                stream=tape.name,
                worker=text,
            )
        found[worker] = labels[worker]
    return found


def frontier_of(tape: Tape, states: Collection[WorkerState]) -> Antichain:
    """The frontier of the sum of the workers' holdings; the minimum while there is no worker.

    Without a worker nothing is complete: any that comes opens at the minimum.
    """
    if not states:
        return Antichain.of([tape.time_type.minimum])
    return Antichain.of(t for state in states for t, count in state.holdings if count > 0)


def played(tape: Tape, cut: Cut, workers: Collection[int], region: Region) -> Played:
    """Count what a replay of these workers and times plays, from the index alone."""
    by_worker: Counter[int] = Counter()
    count, h1, h2 = 0, 0, 0
    times: set[Time] = set()
    for each in messages(tape, cut, workers, region):
        count += 1
        by_worker[each.worker] += each.records
        times.add(each.time)
        h1, h2 = h1 + each.h1, h2 + each.h2
    content_hash = f"{h1 % 2**64:016x}{h2 % 2**64:016x}"
    return Played(count, by_worker.total(), len(times), content_hash, dict(by_worker))


def messages(tape: Tape, cut: Cut, workers: Iterable[int], region: Region) -> Iterator[Messages]:
    """The messages events of these workers and times, from the index alone; no order."""
    chosen = pa.array(sorted(workers), pa.int32())
    columns = ["worker", "kind", "time", "records", "fingerprint"]
    for batch in _scan(tape, cut, columns, region):
        wanted = pc.and_(
            pc.equal(batch.column("kind"), "messages"),
            pc.is_in(batch.column("worker"), value_set=chosen),
        )
        rows = batch.filter(wanted)
        for time, worker, records, content in zip(
            arrow_times(rows.column("time"), tape.time_type),
            rows.column("worker").to_pylist(),
            rows.column("records").to_pylist(),
            rows.column("fingerprint").to_pylist(),
            strict=True,
        ):
            if region.contains(time):
                yield Messages(worker, time, records, content["h1"], content["h2"])


def added_counts(tape: Tape, version: int) -> tuple[Counter[int], int]:
    """Events by worker, and records in all, that one version of the index has added.

    Only the files of that version are read, however many the index has.
    """
    added = delta.added_files(tape.paths.events, version)
    rows = read_columns(tape.paths.events, ["worker", "records"], files=added)
    records = pc.sum(rows.column("records")).as_py() or 0
    return Counter(rows.column("worker").to_pylist()), records


def greatest_time(tape: Tape, cut: Cut) -> int | None:
    """The greatest last coordinate (the event time) of any messages event, or None without one."""
    greatest: int | None = None
    last = len(tape.time_type.coordinates) - 1
    for batch in _scan(tape, cut, ["time"]):
        found = pc.max(_integers(pc.struct_field(batch.column("time"), last))).as_py()
        if found is not None:
            greatest = found if greatest is None else max(greatest, found)
    return greatest


def arrow_times(column: pa.StructArray, time_type: TimeType) -> Iterator[Time]:
    """The times of a struct column, none of them null."""
    fields = arrow_coordinates(column, time_type)
    return map(Time, zip(*(field.to_pylist() for field in fields), strict=True))


def arrow_coordinates(column: pa.StructArray, time_type: TimeType) -> list[pa.Array]:
    """The coordinates of a struct column of times, as integers."""
    return [_integers(pc.struct_field(column, i)) for i in range(len(time_type.coordinates))]


def _integers(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return column


def _scan(
    tape: Tape, cut: Cut, columns: list[str], region: Region | None = None
) -> Iterator[pa.RecordBatch]:
    """Events of a cut; with a region, only from files that can have a time of it."""
    table = delta.open_table(tape.paths.events)
    if region is None:
        for batch in in_portions(iter_columns(tape.paths.events, [*columns, "commit"], table)):
            there = pc.less_equal(batch.column("commit"), cut.commit)
            yield (batch if pc.all(there).as_py() else batch.filter(there)).select(columns)
        return
    files = rows_of(tape.paths.events, table)
    chosen = set(files_of(table, tape.time_type, region=region))
    fragments = [each for each in files.get_fragments() if each.path.lstrip("/") in chosen]
    files = dataset.FileSystemDataset(fragments, files.schema, files.format, files.filesystem)
    yield from files.scanner(
        columns=columns, filter=dataset.field("commit") <= cut.commit
    ).to_batches()


def _sums(batch: pa.RecordBatch, keys: list[str], values: list[str]) -> list[dict[str, int]]:
    table = pa.table(batch).select([*keys, *values])
    wanted = [*((value, "sum") for value in values), (keys[0], "count")]
    return table.group_by(keys, use_threads=False).aggregate(wanted).to_pylist()  # type: ignore[no-any-return]


def _net_updates(batch: pa.RecordBatch, time_type: TimeType) -> Iterator[tuple[int, Time, int]]:
    """Updates of a batch of events, summed per worker and time."""
    updates = batch.column("updates")
    flat = pc.list_flatten(updates)
    owners = pc.take(batch.column("worker"), pc.list_parent_indices(updates))
    times = pc.struct_field(flat, "time")
    names = [f"t{i}" for i in range(len(time_type.coordinates))]
    fields = [_integers(pc.struct_field(times, i)) for i in range(len(names))]
    diffs = pc.struct_field(flat, "diff")
    table = pa.table([owners, *fields, diffs], names=["worker", *names, "diff"])
    for row in (
        table.group_by(["worker", *names], use_threads=False)
        .aggregate([("diff", "sum")])
        .to_pylist()
    ):
        if row["diff_sum"]:
            yield row["worker"], Time(row[name] for name in names), row["diff_sum"]
