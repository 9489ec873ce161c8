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

from capstan.core.times import Antichain, ChangeBatch, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage import delta
from capstan.storage.arrow_scan import iter_columns, merge_batches, read_columns
from capstan.storage.data_files import files_between, files_of
from capstan.storage.tape.index_totals import integers, totals_at
from capstan.storage.tape.tape import Cut, Tape, newest_cut

# So many workers an error names.
_SHOWN = 20


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
class ContentSummary:
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
        InvalidRequestError: `CAP-CUT` when the tape has no such commit.
    """
    newest = newest_cut(tape)
    if as_of is None or as_of == newest.commit:
        return newest
    if not 0 <= as_of < newest.commit:
        raise InvalidRequestError(
            "CAP-CUT",
            f"stream {tape.name} has no commit {as_of}: it has 0 to {newest.commit}",
            "see `capstan show`",
            stream=tape.name,
        )
    return Cut(as_of, _last_batch(tape, as_of))


def _last_batch(tape: Tape, commit: int) -> int:
    """The last batch of the commits up to this one; of files of these alone their bounds say it."""
    path = tape.paths.events
    table = delta.open_table(path)
    files = pa.table(table.get_add_actions(flatten=True))
    batches, straddling = [-1], files_between(path, table, "commit", commit + 1)
    bounds = {"max.commit", "max.batch"}
    if bounds <= set(files.column_names):
        whole = files.filter(pc.less_equal(files["max.commit"], commit))
        batches += delta.stat(whole, "max.batch")
    started = files_between(path, table, "commit", 0, commit)
    read = sorted({*straddling} & {*started})
    for rows in iter_columns(path, ["batch", "commit"], table, read):
        found = pc.max(rows.filter(pc.less_equal(rows["commit"], commit))["batch"]).as_py()
        batches.append(-1 if found is None else found)
    return max(batches)


@dataclass(frozen=True, slots=True)
class TapeState:
    """What is on a tape at a cut.

    Attributes:
        workers: Every worker, by number.
        greatest: The greatest last coordinate (the event time) of any messages event, as an
            integer; None without one.
    """

    workers: tuple[WorkerState, ...]
    greatest: int | None


def tape_state(tape: Tape, cut: Cut) -> TapeState:
    """What is on a tape at a cut: by what was kept last, and the events after it."""
    labels = worker_labels(tape, cut)
    totals = totals_at(tape, cut.commit)
    minimum = tape.time_type.minimum
    workers = []
    for worker in sorted(labels):
        held = ChangeBatch([(minimum, 1)])
        held.extend(totals.held[worker].items() if worker in totals.held else ())
        counts = totals.events[worker], totals.records[worker]
        workers.append(WorkerState(worker, labels[worker], *counts, held.items()))
    return TapeState(tuple(workers), totals.greatest)


def worker_states(tape: Tape, cut: Cut) -> list[WorkerState]:
    """Every worker of the tape at a cut, by number."""
    return list(tape_state(tape, cut).workers)


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

    Where labels are numbers themselves, and not those of their workers, a number is a label: what
    it means must not hang on which labels there are.

    Raises:
        InvalidRequestError: `CAP-WORKER` for one that the stream does not have.
    """
    labels = worker_labels(tape, cut)
    if chosen is None:
        return labels
    by_label = {label: worker for worker, label in labels.items()}
    by_number = not any(name.isdecimal() and name != str(n) for n, name in labels.items())
    found: dict[int, str] = {}
    for text in chosen:
        worker = by_label.get(text)
        if worker is None and by_number and text.isdecimal() and int(text) in labels:
            worker = int(text)
        if worker is None:
            more = f" and {len(by_label) - _SHOWN:,} more" if len(by_label) > _SHOWN else ""
            raise InvalidRequestError(
                "CAP-WORKER",
                f"stream {tape.name} has no worker {text!r}: "
                f"it has {', '.join(list(by_label)[:_SHOWN])}{more}",
                f"name workers by label{' or number' if by_number else ''}, separated by commas",
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


def content_summary(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region
) -> ContentSummary:
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
    return ContentSummary(count, by_worker.total(), len(times), content_hash, dict(by_worker))


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


def arrow_times(column: pa.StructArray, time_type: TimeType) -> Iterator[Time]:
    """The times of a struct column, none of them null."""
    fields = arrow_coordinates(column, time_type)
    return map(Time, zip(*(field.to_pylist() for field in fields), strict=True))


def arrow_coordinates(column: pa.StructArray, time_type: TimeType) -> list[pa.Array]:
    """The coordinates of a struct column of times, as integers."""
    return [integers(pc.struct_field(column, i)) for i in range(len(time_type.coordinates))]


def _scan(tape: Tape, cut: Cut, columns: list[str], region: Region) -> Iterator[pa.RecordBatch]:
    """Events of a cut, from files that can have a time of a region."""
    path = tape.paths.events
    table = delta.open_table(path)
    chosen = files_of(table, tape.time_type, region=region)
    files = [delta.resolve_path(path, file) for file in chosen]
    for batch in merge_batches(iter_columns(path, [*columns, "commit"], table, files)):
        there = pc.less_equal(batch.column("commit"), cut.commit)
        yield (batch if pc.all(there).as_py() else batch.filter(there)).select(columns)
