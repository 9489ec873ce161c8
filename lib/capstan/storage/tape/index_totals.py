"""What the index of a tape amounts to at a commit, kept beside it from time to time.

Whoever asks for the newest state of a tape reads what was kept last, and the events after it: not
all that were ever written. A capture keeps it every `EVERY` commits, and maintenance each time.

What is kept follows from the index alone, and may be deleted at any time. It counts only as long as
the log of the index has the entry that was the newest when it was kept: of an index that was put
back from a copy, and went on otherwise, it says nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from capstan.core.times import ChangeBatch, Time, TimeType
from capstan.storage import delta
from capstan.storage.arrow_scan import iter_columns, merge_batches
from capstan.storage.data_files import files_between
from capstan.storage.lake import children, delete_file, exists, open_file, read_text, write_whole
from capstan.storage.tape.tape import Tape

EVERY = 64
"""At most so many files of an index that were written after what was kept are left to be read."""

TOTALS_FORMAT = 1
_KEPT = 4
"""So many are kept: a run goes on at the cut that it has pinned, while a capture goes on."""

_HELD = pa.list_(pa.struct([("time", pa.list_(pa.int64())), ("count", pa.int64())]))
_SCHEMA = pa.schema(
    [
        ("worker", pa.int32()), ("events", pa.int64()), ("records", pa.int64()),
        ("holdings", _HELD),
    ]
)  # fmt: skip
_ABOUT = b"capstan"


@dataclass(slots=True)
class Totals:
    """What all events up to a commit amount to.

    Attributes:
        commit: The commit; -1 before the first one.
        events: Events by worker.
        records: Records by worker.
        held: Changes of what each worker holds, beside the minimum that it starts with.
        greatest: The greatest last coordinate (the event time) of any messages event, as an
            integer; None without one.
    """

    commit: int = -1
    events: Counter[int] = field(default_factory=Counter)
    records: Counter[int] = field(default_factory=Counter)
    held: dict[int, ChangeBatch] = field(default_factory=dict)
    greatest: int | None = None

    def add(self, rows: pa.RecordBatch, time_type: TimeType) -> None:
        """Add events: columns `worker`, `time`, `updates`, `records`."""
        counted = pa.table(rows.select(["worker", "records"])).group_by("worker", use_threads=False)
        for row in counted.aggregate([("records", "sum"), ("worker", "count")]).to_pylist():
            self.events[row["worker"]] += row["worker_count"]
            self.records[row["worker"]] += row["records_sum"] or 0
        for worker, time, diff in _net_updates(rows, time_type):
            self.held.setdefault(worker, ChangeBatch()).update(time, diff)
        last = len(time_type.coordinates) - 1
        found = pc.max(integers(pc.struct_field(rows.column("time"), last))).as_py()
        if found is not None:
            self.greatest = found if self.greatest is None else max(found, self.greatest)


def totals_at(tape: Tape, commit: int) -> Totals:
    """What the events of a tape up to a commit amount to.

    Raises:
        SystemFailureError: `CAP-TABLE`, `CAP-DAMAGED`, `CAP-NO-ACCESS` where the index cannot be
            read.
    """
    table = delta.open_table(tape.paths.events)
    found = _newest(tape, table, commit) or Totals()
    first, found.commit = found.commit + 1, commit
    columns = ["worker", "time", "updates", "records", "commit"]
    files = files_between(tape.paths.events, table, "commit", first, commit)
    for rows in merge_batches(iter_columns(tape.paths.events, columns, table, files)):
        commits = rows.column("commit")
        wanted = pc.and_(pc.greater_equal(commits, first), pc.less_equal(commits, commit))
        found.add(rows if pc.all(wanted).as_py() else rows.filter(wanted), tape.time_type)
    return found


def keep_totals(tape: Tape, commit: int, least: int = EVERY) -> bool:
    """Keep what a tape amounts to at its newest commit, for those who ask later.

    Args:
        tape: The tape.
        commit: Its newest commit.
        least: Nothing is done where fewer files than this have events that nothing kept has.

    Returns:
        Whether it was kept.
    """
    table = delta.open_table(tape.paths.events)
    known = _newest(tape, table, commit)
    after = -1 if known is None else known.commit
    new = files_between(tape.paths.events, table, "commit", after + 1, commit)
    if commit < 0 or len(new) < least:
        return False
    version = table.version()
    about = {
        "format": TOTALS_FORMAT,
        "tape": str(table.metadata().id),
        "version": version,
        "entry": _entry(tape, version),
    }
    _write(tape, totals_at(tape, commit), about)
    return True


def _newest(tape: Tape, table: deltalake.DeltaTable, commit: int) -> Totals | None:
    """What was kept last, up to a commit, and still holds."""
    for kept in reversed(_commits(tape)):
        if kept <= commit:
            found = _read(tape, table, kept)
            if found is not None:
                return found
    return None


def _commits(tape: Tape) -> list[int]:
    """Commits of which something is kept, rising."""
    names = (name.removesuffix(".parquet") for name in children(tape.paths.totals))
    return sorted(int(name) for name in names if name.isdecimal())


def _place(tape: Tape, commit: int) -> str:
    return f"{tape.paths.totals}/{commit:020}.parquet"


def _entry(tape: Tape, version: int) -> str | None:
    """What tells an entry of the log of the index from any other; None where it is gone."""
    place = f"{tape.paths.events}/_delta_log/{version:020}.json"
    return hashlib.sha256(read_text(place).encode()).hexdigest() if exists(place) else None


def _read(tape: Tape, table: deltalake.DeltaTable, commit: int) -> Totals | None:
    """What was kept of a commit; None where it does not hold, or is not whole."""
    try:
        with open_file(_place(tape, commit)) as opened:
            rows = parquet.read_table(opened)
        about = json.loads(rows.schema.metadata[_ABOUT])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None  # Another one may just have cleared it away; the index has all of it.
    if about.get("format") != TOTALS_FORMAT or about["tape"] != str(table.metadata().id):
        return None
    version = int(about["version"])
    if version > table.version() or about["entry"] != _entry(tape, version):
        return None
    found = Totals(commit, greatest=about["greatest"])
    for row in rows.to_pylist():
        worker = row["worker"]
        found.events[worker], found.records[worker] = row["events"], row["records"]
        changes = [(Time(each["time"]), each["count"]) for each in row["holdings"]]
        found.held[worker] = ChangeBatch(changes)
    return found


def _write(tape: Tape, totals: Totals, about: dict[str, object]) -> None:
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
    told = json.dumps({**about, "greatest": totals.greatest}, sort_keys=True)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({_ABOUT: told}))
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    write_whole(_place(tape, totals.commit), sink.getvalue().to_pybytes())
    for commit in _commits(tape)[:-_KEPT]:
        delete_file(_place(tape, commit))


def _net_updates(batch: pa.RecordBatch, time_type: TimeType) -> Iterator[tuple[int, Time, int]]:
    """Updates of a batch of events, summed per worker and time."""
    updates = batch.column("updates")
    flat = pc.list_flatten(updates)
    owners = pc.take(batch.column("worker"), pc.list_parent_indices(updates))
    times = pc.struct_field(flat, "time")
    names = [f"t{i}" for i in range(len(time_type.coordinates))]
    fields = [integers(pc.struct_field(times, i)) for i in range(len(names))]
    diffs = pc.struct_field(flat, "diff")
    table = pa.table([owners, *fields, diffs], names=["worker", *names, "diff"])
    for row in (
        table.group_by(["worker", *names], use_threads=False)
        .aggregate([("diff", "sum")])
        .to_pylist()
    ):
        if row["diff_sum"]:
            yield row["worker"], Time(row[name] for name in names), row["diff_sum"]


def integers(column: pa.Array) -> pa.Array:
    """A coordinate's column as integers: itself, days, or microseconds."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return column
