"""Reads of a tape's index without a JVM: workers, holdings, contents, cuts.

`events` is read through Arrow. Files are pruned by integer columns only: Delta stores bounds of
timestamps in milliseconds, and pruning by them can drop a row of that millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import is_not
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.json_object import Json
from capstan.core.protocol.events import stamp_text
from capstan.core.times import PRODUCT, Antichain, Box, Time, TimeOrder, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches, read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.delta.table_cache import cached, kept_facts
from capstan.storage.lake import newest_entry
from capstan.storage.tape.bounds import files_of
from capstan.storage.tape.index_sums import Holdings, from_start, holdings_of, net_changes
from capstan.storage.tape.index_totals import totals_at
from capstan.storage.tape.tape import Cut, Tape, newest_cut
from capstan.storage.tape.time_columns import coordinates


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A captured worker at a cut."""

    worker: int
    label: str  # the column value or source partition it stands for
    events: int  # on tape; the next `seq`
    records: int
    holdings: Holdings
    order: TimeOrder = field(default=PRODUCT, kw_only=True)

    @property
    def frontier(self) -> Antichain:
        """The minimal held times; empty when the worker is closed."""
        held = (time for time, count in self.holdings if count > 0)
        return Antichain.of(held, self.order)

    @property
    def closed(self) -> bool:
        """Whether the worker holds nothing."""
        return not self.holdings


@dataclass(frozen=True, slots=True)
class ContentSummary:
    """The content of a region of a tape."""

    messages: int
    records: int
    times: int
    fingerprint: str  # of all records, 32 hex digits
    by_worker: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """A messages event: worker, time, number of records, and the two sums of their hashes.

    The time is the first element of its stamp; without elements all its coordinates are None.
    """

    worker: int
    time: Time
    records: int
    h1: int
    h2: int


def find_cut(tape: Tape, as_of: int | None) -> Cut:
    """The cut at commit `as_of`, or the newest."""
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
    """The last batch of the commits up to this one; read from file bounds where possible."""
    path = tape.paths.events
    table = delta.open_table(path)
    files = table.files()
    batches, straddling = [-1], files_between(path, table, "commit", commit + 1)
    bounds = {"max.commit", "max.batch"}
    if bounds <= set(files.column_names):
        complete = files.filter(pc.less_equal(files["max.commit"], commit))
        batches += delta.stat(complete, "max.batch")
    started = files_between(path, table, "commit", 0, commit)
    mixed = sorted({*straddling} & {*started})
    for rows in iter_columns(path, ["batch", "commit"], table, mixed):
        last = pc.max(rows.filter(pc.less_equal(rows["commit"], commit))["batch"]).as_py()
        batches.append(-1 if last is None else last)
    return max(batches)


@dataclass(frozen=True, slots=True)
class TapeState:
    """The state of a tape at a cut."""

    workers: tuple[WorkerState, ...]
    greatest: int | None  # leading coordinate (event time) of any messages event


def tape_state(tape: Tape, cut: Cut) -> TapeState:
    """The state of a tape at a cut, from the last stored totals and the events after them."""
    labels = worker_labels(tape, cut)
    totals = totals_at(tape, cut.commit)
    minimum = tape.time_type.minimum
    net = net_changes(from_start(totals.changes, list(labels), minimum))
    states = states_of(labels, totals.counts, net, tape.time_type.order)
    return TapeState(states, totals.greatest)


def states_of(
    labels: Mapping[int, str], counts: pa.Table, net: pa.Table, order: TimeOrder
) -> tuple[WorkerState, ...]:
    """The states of labelled workers, by number.

    `counts` has the events `n` and records `r` of each `worker`, and `net` what it holds, in order.
    """
    counted = dict.fromkeys(labels, (0, 0))
    columns = (counts[name].to_pylist() for name in ("worker", "n", "r"))
    for worker, events, records in zip(*columns, strict=True):
        counted[worker] = events, records
    held = holdings_of(net)
    return tuple(
        WorkerState(worker, labels[worker], *counted[worker], held.get(worker, ()), order=order)
        for worker in sorted(labels)
    )


def worker_states(tape: Tape, cut: Cut) -> list[WorkerState]:
    """Every worker of the tape at a cut, by number."""
    return list(tape_state(tape, cut).workers)


def is_closed(tape: Tape, cut: Cut) -> bool:
    """Whether the stream has ended: it has workers, and all of them are closed."""
    states = worker_states(tape, cut)
    return bool(states) and all(state.closed for state in states)


def worker_labels(tape: Tape, cut: Cut) -> dict[int, str]:
    """Labels of the workers opened up to the cut, by worker number."""
    return {
        row["worker"]: row["label"]
        for row in sorted(_roster(tape), key=lambda row: row["worker"])
        if row["opened_commit"] <= cut.commit
    }


def opened_commits(tape: Tape, cut: Cut) -> dict[int, int]:
    """The commits that opened the workers of a tape up to the cut, by worker number."""
    opened = {row["worker"]: row["opened_commit"] for row in _roster(tape)}
    return {worker: at for worker, at in opened.items() if at <= cut.commit}


def _roster(tape: Tape) -> list[dict[str, Any]]:
    path = tape.paths.workers

    def read() -> Json:
        return {"rows": read_columns(path, ["worker", "label", "opened_commit"]).to_pylist()}

    newest = [newest_entry(path)]
    rows: list[dict[str, Any]] = cached(
        "roster", path, lambda: kept_facts("roster", path, newest, read)["rows"]
    )
    return rows


def frontier_of(tape: Tape, states: Collection[WorkerState]) -> Antichain:
    """The frontier of the sum of all workers' holdings."""
    # Without a worker it is the minimum and nothing is complete: any worker opens at the minimum.
    order = tape.time_type.order
    if not states:
        return Antichain.of([tape.time_type.minimum], order)
    held = (t for state in states for t, count in state.holdings if count > 0)
    return Antichain.of(held, order)


def content_summary(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region
) -> ContentSummary:
    """Count the content of these workers and times, from the index alone."""
    return summarised(messages(tape, cut, workers, region))


def summarised(events: Iterable[MessageCounts]) -> ContentSummary:
    """The content of some messages."""
    by_worker: Counter[int] = Counter()
    count, h1, h2 = 0, 0, 0
    times: set[Time] = set()
    for event in events:
        count += 1
        by_worker[event.worker] += event.records
        times.add(event.time)
        h1, h2 = h1 + event.h1, h2 + event.h2
    # What is under no element of a stamp has no time.
    timed = sum(None not in time for time in times)
    content_hash = f"{h1 % 2**64:016x}{h2 % 2**64:016x}"
    return ContentSummary(count, by_worker.total(), timed, content_hash, dict(by_worker))


def messages(
    tape: Tape, cut: Cut, workers: Iterable[int], region: Region
) -> Iterator[MessageCounts]:
    """The messages events of these workers and times, from the index alone, in no order."""
    chosen = pa.array(sorted(workers), pa.int32())
    columns = ["worker", "kind", "time", "records", "fingerprint", *tape.stamp]
    contains: Callable[[Time], bool] = region.contains
    if tape.stamped:
        contains = partial(is_not, None)  # The places of others are None.
    for batch in _scan(tape, cut, columns, region):
        matching = pc.and_(
            pc.equal(batch.column("kind"), "messages"),
            pc.is_in(batch.column("worker"), value_set=chosen),
        )
        rows = batch.filter(matching)
        times = arrow_times(rows.column("time"), tape.time_type)
        for time, worker, records, content in zip(
            _places(rows, tape.time_type, region) if tape.stamped else times,
            rows.column("worker").to_pylist(),
            rows.column("records").to_pylist(),
            rows.column("fingerprint").to_pylist(),
            strict=True,
        ):
            if contains(time):
                yield MessageCounts(worker, time, records, content["h1"], content["h2"])


def _places(rows: pa.RecordBatch, time_type: TimeType, region: Region) -> list[Any]:
    """The times that messages of a tape of stamps have in a region; None for those outside.

    Where nothing bounds the times, messages without elements have one without coordinates.
    """
    first = list(arrow_times(rows.column("time"), time_type))
    if region.is_everything:
        return first
    elements = _stamps(rows.column("stamp"), time_type)
    both = zip(elements, first, strict=True)
    return [region.place((time,) if stamp is None else stamp) for stamp, time in both]


def _stamps(column: pa.ListArray, time_type: TimeType) -> Iterator[tuple[Time, ...] | None]:
    """The stamps of a column; None for those of one element."""
    times = arrow_times(column.flatten(), time_type)
    for size in pc.list_value_length(column).to_pylist():
        yield None if size is None else tuple(islice(times, size))


def stamps(
    tape: Tape, cut: Cut, workers: Iterable[int]
) -> Iterator[tuple[int, tuple[Time, ...], int]]:
    """Messages of these workers that do not have one time: worker, stamp, number of records."""
    if not tape.stamped:
        return
    chosen = pa.array(sorted(workers), pa.int32())
    everything = Region(Box.everything(tape.time_type))
    for batch in _scan(tape, cut, ["worker", "stamp", "records"], everything):
        wanted = pc.and_(
            pc.is_valid(batch.column("stamp")), pc.is_in(batch.column("worker"), value_set=chosen)
        )
        rows = batch.filter(wanted)
        yield from zip(
            rows.column("worker").to_pylist(),
            (stamp or () for stamp in _stamps(rows.column("stamp"), tape.time_type)),
            (records or 0 for records in rows.column("records").to_pylist()),
            strict=True,
        )


def require_one_time(tape: Tape, cut: Cut, workers: Iterable[int], why: str, hint: str) -> None:
    """Check that each message of these workers has one time."""
    for worker, stamp, _ in stamps(tape, cut, workers):
        raise InvalidRequestError(
            "CAP-STAMP",
            f"stream {tape.name}, worker {worker}: messages have {stamp_text(stamp)}, {why}",
            hint,
            stream=tape.name,
            worker=worker,
        )


def added_counts(tape: Tape, version: int) -> tuple[Counter[int], int]:
    """Events by worker, and records in total, of one version of the index; reads only its files."""
    added = delta.added_files(tape.paths.events, version)
    rows = read_columns(tape.paths.events, ["worker", "records"], files=added)
    records = pc.sum(rows.column("records")).as_py() or 0
    return Counter(rows.column("worker").to_pylist()), records


def arrow_times(column: pa.StructArray, time_type: TimeType) -> Iterator[Time]:
    """The times of a struct column without nulls."""
    fields = arrow_coordinates(column, time_type)
    return map(Time, zip(*(field.to_pylist() for field in fields), strict=True))


def arrow_coordinates(column: pa.StructArray, time_type: TimeType) -> list[pa.Array]:
    """The coordinates of a struct column of times, as integers."""
    return coordinates(column, len(time_type.coordinates))


def _scan(tape: Tape, cut: Cut, columns: list[str], region: Region) -> Iterator[pa.RecordBatch]:
    """Events up to a cut, from files that can have a time of a region."""
    path = tape.paths.events
    table = delta.open_table(path)
    chosen = files_of(table, tape.time_type, region=region)
    files = [delta.resolve_path(path, file) for file in chosen]
    for batch in merge_batches(iter_columns(path, [*columns, "commit"], table, files)):
        in_cut = pc.less_equal(batch.column("commit"), cut.commit)
        yield (batch if pc.all(in_cut).as_py() else batch.filter(in_cut)).select(columns)
