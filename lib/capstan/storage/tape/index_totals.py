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
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.data_files import files_between
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached, is_enabled, keep
from capstan.storage.lake import children, delete_file, open_file, read_if_any, write_whole
from capstan.storage.tape.index_sums import (
    SUMMED,
    IndexSums,
    net_changes,
    no_changes,
    read_sums,
    sums_of,
    together,
)
from capstan.storage.tape.tape import Tape

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
_COUNTED = pa.schema([("worker", pa.int32()), ("n", pa.int64()), ("r", pa.int64())])


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all events up to a commit.

    They are columns by worker, since a tape may have thousands: `counts` with the number of events
    `n` and of records `r`, and `changes`, the net changes `diff` of held times `t0`, `t1`, ...
    since each worker held the minimum.
    """

    commit: int  # -1 before the first one
    counts: pa.Table
    changes: pa.Table
    greatest: int | None  # leading coordinate (event time) of any messages event

    @classmethod
    def none(cls, width: int) -> Totals:
        """The totals of no events, whose times have `width` coordinates."""
        changes = no_changes(width).drop_columns("commit")
        return cls(-1, _COUNTED.empty_table(), changes, None)

    def plus(self, commit: int, sums: IndexSums) -> Totals:
        """These totals and the sums over all later events up to a commit."""
        counted = sums.by("worker")
        counts = pa.concat_tables([self.counts, counted.select(_COUNTED.names)])
        changes = sums.changes.select(self.changes.column_names).drop_null()
        times = [
            time for time in (self.greatest, pc.max(counted["last"]).as_py()) if time is not None
        ]
        return Totals(
            commit,
            together(counts, ["worker"]).sort_by("worker"),
            net_changes(pa.concat_tables([self.changes, changes])),
            max(times, default=None),
        )


def totals_at(tape: Tape, commit: int) -> Totals:
    """Totals of a tape's events up to a commit."""
    nothing = Totals.none(len(tape.time_type.coordinates))
    if is_enabled():
        # A process that serves pages keeps these sums.
        return nothing.plus(commit, read_sums(tape).up_to(commit))
    table = delta.open_table(tape.paths.events)
    totals = _newest(tape, table, commit) or nothing
    first = totals.commit + 1
    files = files_between(tape.paths.events, table, "commit", first, commit)
    for rows in merge_batches(iter_columns(tape.paths.events, SUMMED, table, files)):
        commits = rows.column("commit")
        new = pc.and_(pc.greater_equal(commits, first), pc.less_equal(commits, commit))
        later = rows if pc.all(new).as_py() else rows.filter(new)
        totals = totals.plus(commit, sums_of(later, tape.time_type))
    return replace(totals, commit=commit)


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
    _write(tape, totals_at(tape, commit), metadata, version)
    return True


def _newest(tape: Tape, table: OpenedTable, commit: int) -> Totals | None:
    """The last valid totals up to a commit."""
    # Those of an earlier look will do; a capture looks before its batch, and after it.
    commits = cached("totals", tape.paths.events, lambda: _commits(tape))
    for stored in reversed(commits):
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
    text = read_if_any(place)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


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
    rows = rows.combine_chunks()
    counts = pa.table([rows["worker"], rows["events"], rows["records"]], schema=_COUNTED)
    held = pa.chunked_array(rows["holdings"]).combine_chunks()
    changes, width = pc.list_flatten(held), len(tape.time_type.coordinates)
    times = [pc.list_element(pc.struct_field(changes, "time"), i) for i in range(width)]
    owners = rows["worker"].take(pc.list_parent_indices(held))
    columns = [owners, *times, pc.struct_field(changes, "count")]
    names = Totals.none(width).changes.schema
    return Totals(
        commit, counts, net_changes(pa.table(columns, schema=names)), metadata["greatest"]
    )


def _write(tape: Tape, totals: Totals, metadata: Mapping[str, object], version: int) -> None:
    holdings = defaultdict[int, list[dict[str, object]]](list)
    for worker, *time, count in zip(*totals.changes.to_pydict().values(), strict=True):
        holdings[worker].append({"time": time, "count": count})
    counted = {row["worker"]: row for row in totals.counts.to_pylist()}
    rows = [
        {
            "worker": worker,
            "events": counted[worker]["n"] if worker in counted else 0,
            "records": counted[worker]["r"] if worker in counted else 0,
            "holdings": holdings.get(worker, []),
        }
        for worker in sorted({*counted, *holdings})
    ]
    text = json.dumps({**metadata, "greatest": totals.greatest}, sort_keys=True)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({_METADATA: text}))
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    write_whole(_place(tape, totals.commit), sink.getvalue().to_pybytes())
    commits = _commits(tape)
    for commit in commits[:-_STORED]:
        delete_file(_place(tape, commit))
    keep("totals", tape.paths.events, version, commits[-_STORED:], own=False)
