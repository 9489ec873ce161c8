"""Totals of a tape's index at some commits, stored beside it.

The newest state of a tape is computed from the last totals and the events after them, instead of
all events. A capture stores totals every `EVERY` commits, and maintenance on each run.

Totals are derived from the index and may be deleted at any time. They are valid only while the
log of the index has the entry that was newest when they were stored. This rejects totals of an
index that was restored from a backup and then continued differently.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from capstan.core.times import ChangeBatch, Time, TimeType
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.data_files import files_between
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import is_enabled
from capstan.storage.lake import children, delete_file, exists, open_file, read_text, write_whole
from capstan.storage.tape.index_sums import read_sums
from capstan.storage.tape.tape import Tape
from capstan.storage.tape.time_columns import coordinates, held_changes

EVERY = 64
"""The maximum number of index files written since the last totals."""

TOTALS_FORMAT = 1
_STORED = 4
"""The number of totals to store: a run resumes at its pinned cut while a capture continues."""

_HELD = pa.list_(pa.struct([("time", pa.list_(pa.int64())), ("count", pa.int64())]))
_SCHEMA = pa.schema(
    [
        ("worker", pa.int32()), ("events", pa.int64()), ("records", pa.int64()),
        ("holdings", _HELD),
    ]
)  # fmt: skip
_METADATA = b"capstan"


@dataclass(slots=True)
class Totals:
    """Totals of all events up to a commit."""

    commit: int = -1  # -1 before the first one
    events: Counter[int] = field(default_factory=Counter)
    records: Counter[int] = field(default_factory=Counter)
    held: dict[int, ChangeBatch] = field(default_factory=dict)  # changes since the initial minimum
    greatest: int | None = None  # leading coordinate (event time) of any messages event

    def add(self, rows: pa.RecordBatch, time_type: TimeType) -> None:
        """Add events: columns `worker`, `time`, `updates`, `records`."""
        counted = pa.table(rows.select(["worker", "records"])).group_by("worker", use_threads=False)
        for row in counted.aggregate([("records", "sum"), ("worker", "count")]).to_pylist():
            self.events[row["worker"]] += row["worker_count"]
            self.records[row["worker"]] += row["records_sum"] or 0
        for worker, time, diff in _net_updates(rows, time_type):
            self.held.setdefault(worker, ChangeBatch()).update(time, diff)
        times = coordinates(rows.column("time"), len(time_type.coordinates))
        last_time = pc.max(times[time_type.leading]).as_py()
        if last_time is not None:
            self.greatest = last_time if self.greatest is None else max(last_time, self.greatest)


def totals_at(tape: Tape, commit: int) -> Totals:
    """Totals of a tape's events up to a commit."""
    if is_enabled():
        return _totals_of_sums(tape, commit)
    table = delta.open_table(tape.paths.events)
    totals = _newest(tape, table, commit) or Totals()
    first, totals.commit = totals.commit + 1, commit
    columns = ["worker", "time", "updates", "records", "commit"]
    files = files_between(tape.paths.events, table, "commit", first, commit)
    for rows in merge_batches(iter_columns(tape.paths.events, columns, table, files)):
        commits = rows.column("commit")
        new = pc.and_(pc.greater_equal(commits, first), pc.less_equal(commits, commit))
        totals.add(rows if pc.all(new).as_py() else rows.filter(new), tape.time_type)
    return totals


def _totals_of_sums(tape: Tape, commit: int) -> Totals:
    """Totals from the sums that a process which serves pages keeps."""
    sums = read_sums(tape).up_to(commit)
    totals = Totals(commit, greatest=pc.max(sums.counts["last"]).as_py())
    for row in sums.by("worker").to_pylist():
        totals.events[row["worker"]] = row["n"]
        totals.records[row["worker"]] = row["r"] or 0
    for worker, time, diff in net_changes(sums.changes):
        totals.held.setdefault(worker, ChangeBatch()).update(time, diff)
    return totals


def store_totals(tape: Tape, commit: int, least: int = EVERY) -> bool:
    """Store the totals of a tape at its newest commit; returns whether it did.

    It does nothing with fewer than `least` index files since the last totals.
    """
    table = delta.open_table(tape.paths.events)
    known = _newest(tape, table, commit)
    after = -1 if known is None else known.commit
    new = files_between(tape.paths.events, table, "commit", after + 1, commit)
    if commit < 0 or len(new) < least:
        return False
    version = table.version()
    metadata = {
        "format": TOTALS_FORMAT,
        "tape": str(table.metadata().id),
        "version": version,
        "entry": _entry(tape, version),
    }
    _write(tape, totals_at(tape, commit), metadata)
    return True


def _newest(tape: Tape, table: OpenedTable, commit: int) -> Totals | None:
    """The last valid totals up to a commit."""
    for stored in reversed(_commits(tape)):
        if stored <= commit:
            totals = _read(tape, table, stored)
            if totals is not None:
                return totals
    return None


def _commits(tape: Tape) -> list[int]:
    """Commits with stored totals, ascending."""
    names = (name.removesuffix(".parquet") for name in children(tape.paths.totals))
    return sorted(int(name) for name in names if name.isdecimal())


def _place(tape: Tape, commit: int) -> str:
    return f"{tape.paths.totals}/{commit:020}.parquet"


def _entry(tape: Tape, version: int) -> str | None:
    """The hash of a log entry of the index; None if it no longer exists."""
    place = f"{tape.paths.events}/_delta_log/{version:020}.json"
    return hashlib.sha256(read_text(place).encode()).hexdigest() if exists(place) else None


def _read(tape: Tape, table: OpenedTable, commit: int) -> Totals | None:
    """The stored totals of a commit; None if they are invalid or incomplete."""
    try:
        with open_file(_place(tape, commit)) as opened:
            rows = parquet.read_table(opened)
        metadata = json.loads(rows.schema.metadata[_METADATA])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None  # Another process may just have deleted them; the index has all events.
    if metadata.get("format") != TOTALS_FORMAT or metadata["tape"] != str(table.metadata().id):
        return None
    version = int(metadata["version"])
    if version > table.version() or metadata["entry"] != _entry(tape, version):
        return None
    totals = Totals(commit, greatest=metadata["greatest"])
    for row in rows.to_pylist():
        worker = row["worker"]
        totals.events[worker], totals.records[worker] = row["events"], row["records"]
        changes = [(Time(held["time"]), held["count"]) for held in row["holdings"]]
        totals.held[worker] = ChangeBatch(changes)
    return totals


def _write(tape: Tape, totals: Totals, metadata: dict[str, object]) -> None:
    rows = [
        {
            "worker": worker,
            "events": totals.events[worker],
            "records": totals.records[worker],
            "holdings": [
                {"time": list(time), "count": count}
                for time, count in totals.held.get(worker, ChangeBatch()).items()
            ],
        }
        for worker in sorted({*totals.events, *totals.held})
    ]
    text = json.dumps({**metadata, "greatest": totals.greatest}, sort_keys=True)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({_METADATA: text}))
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    write_whole(_place(tape, totals.commit), sink.getvalue().to_pybytes())
    for commit in _commits(tape)[:-_STORED]:
        delete_file(_place(tape, commit))


def _net_updates(batch: pa.RecordBatch, time_type: TimeType) -> Iterator[tuple[int, Time, int]]:
    """Updates in a batch of events, summed by worker and time."""
    yield from net_changes(held_changes(batch, ["worker"], len(time_type.coordinates)))


def net_changes(changes: pa.Table) -> Iterator[tuple[int, Time, int]]:
    """Changes of held times, as of `held_changes`, summed by worker and time."""
    names = [name for name in changes.column_names if name not in ("worker", "commit", "diff")]
    # An imported tape that breaks the rules may have updates without a worker, time or count.
    grouped = changes.drop_null().group_by(["worker", *names], use_threads=False)
    net = grouped.aggregate([("diff", "sum")])
    # Most times were held once, and have been released.
    for row in net.filter(pc.not_equal(net["diff_sum"], 0)).to_pylist():
        yield row["worker"], Time(row[name] for name in names), row["diff_sum"]
