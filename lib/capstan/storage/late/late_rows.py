"""The rows of `late`: which are not on tape at a cut, counted by reason and by cause."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.late.settled import settled_rows, without
from capstan.storage.tape.bounds import fit, interval, only_value
from capstan.storage.tape.feed import reinjected_before
from capstan.storage.tape.tape import Cut, Tape
from capstan.storage.tape.time_columns import as_integers

_CAUSE = ("field", "error", "file")


def kept_late(tape: Tape, cut: Cut) -> dataset.Expression:
    """The condition on `late` for records that were read up to a cut and are not on tape.

    Those that are settled are not told by a condition: `settled.without` takes them away.
    """
    return _kept(cut, reinjected_before(tape, cut))


def _kept(cut: Cut, before: int) -> dataset.Expression:
    batch = dataset.field("batch")
    kept = batch <= cut.batch
    if before:
        kept &= (batch >= before) | (dataset.field("reason") != "late")
    return kept


@dataclass(frozen=True, slots=True)
class LateSelection:
    """Which records of `late` are meant, by what `capstan late` shows; None for any."""

    reason: str | None = None
    cause: str | None = None  # a column to blame, what is wrong, or both with a blank between
    file: str | None = None  # the URI of a file, or the end of it behind a slash

    def mask(self, rows: pa.Table) -> pa.Array:
        """Whether each row is meant; `rows` have a `reason`, and causes if they are known."""
        nothing = pa.nulls(rows.num_rows, pa.string())
        field, error, file = (
            rows[name] if name in rows.column_names else nothing for name in _CAUSE
        )
        chosen = pa.array([True] * rows.num_rows, pa.bool_())
        if self.reason is not None:
            chosen = pc.and_(chosen, pc.equal(rows["reason"], self.reason))
        if self.cause is not None:
            both = pc.binary_join_element_wise(field, error, " ")
            same = [pc.fill_null(pc.equal(c, self.cause), False) for c in (field, error, both)]
            chosen = pc.and_(chosen, pc.or_(pc.or_(*same[:2]), same[2]))
        if self.file is not None:
            ends = pc.or_(pc.equal(file, self.file), pc.ends_with(file, f"/{self.file}"))
            chosen = pc.and_(chosen, pc.fill_null(ends, False))
        return chosen

    def to_json(self) -> dict[str, object]:
        """The selection, as the feed keeps it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def chosen_late(tape: Tape, cut: Cut, selection: LateSelection) -> pa.Table:
    """The records up to a cut that are not on tape, and are meant: `batch`, `pos`, `reason`."""
    table = delta.open_table(tape.paths.late)
    columns = ["reason", "batch", "pos", *_causes(table.schema().to_arrow())]
    rows = read_columns(tape.paths.late, columns, table).filter(kept_late(tape, cut))
    rows = without(rows, settled_rows(tape, cut))
    return rows.filter(selection.mask(rows)).select(["batch", "pos", "reason"])


@dataclass(frozen=True, slots=True)
class LateRows:
    """Records with one reason and one cause that were read but are not on tape."""

    reason: str
    field: str | None  # the columns that are to blame, if any are
    error: str | None  # what is wrong with them, or with the record
    file: str | None  # the URI of the file that they came from, if it is known
    records: int
    workers: tuple[int, ...]
    first: int  # batch
    last: int
    since: int | None  # the least of their own times, its last coordinate as an integer
    until: int | None  # the greatest


def late_by_cause(tape: Tape, cut: Cut) -> tuple[LateRows, ...]:
    """Records up to a cut that are not on tape by reason and cause, most frequent first."""
    table = delta.open_table(tape.paths.late)
    causes = _causes(table.schema().to_arrow())
    settled = settled_rows(tape, cut)
    place = ["pos"] if settled.num_rows else []
    columns = ["reason", "worker", "batch", "time", *place, *causes]
    rows = read_columns(tape.paths.late, columns, table)
    # The feed lists re-injections, but grows with each batch, so it is read only when needed.
    has_late = pc.any(pc.equal(rows["reason"], "late")).as_py()
    rows = rows.filter(_kept(cut, reinjected_before(tape, cut) if has_late else 0))
    rows = without(rows, settled)
    rows = rows.set_column(rows.column_names.index("time"), "time", _own_times(tape, rows["time"]))
    measures = [("reason", "count"), ("worker", "distinct")]
    measures += [(name, bound) for name in ("batch", "time") for bound in ("min", "max")]
    found = rows.group_by(["reason", *causes]).aggregate(measures).to_pylist()
    groups = (
        LateRows(
            str(row["reason"]),
            row.get("field"),
            row.get("error"),
            row.get("file"),
            row["reason_count"],
            tuple(sorted(worker for worker in row["worker_distinct"] if worker is not None)),
            row["batch_min"],
            row["batch_max"],
            row["time_min"],
            row["time_max"],
        )
        for row in found
    )
    return tuple(sorted(groups, key=_most_frequent))


def _most_frequent(rows: LateRows) -> tuple[object, ...]:
    return -rows.records, rows.reason, rows.field or "", rows.error or "", rows.file or ""


def _causes(schema: pa.Schema) -> list[str]:
    """The columns of causes that a table has: an older one may have none."""
    names = set(pa.schema(schema).names)
    return [name for name in _CAUSE if name in names]


def _own_times(tape: Tape, times: pa.ChunkedArray) -> pa.ChunkedArray:
    """The last coordinates of times as integers; null for a record without a time."""
    return as_integers(pc.struct_field(times, tape.time_type.names[-1]))


def count_late(tape: Tape, cut: Cut) -> dict[str, int]:
    """The number of records up to a cut that are not on tape by reason, most frequent first."""
    # For a file with only one reason the log has the count; only other files are read.
    table = delta.open_table(tape.paths.late)
    files = table.files().to_pylist()
    reasons = [only_value(file, "reason") for file in files]
    before = reinjected_before(tape, cut) if {None, "late"} & set(reasons) else 0
    settled = settled_rows(tape, cut)
    batches = sorted(set(settled["batch"].to_pylist()))
    counts: Counter[str] = Counter()
    rest: list[str] = []
    for file, reason in zip(files, reasons, strict=True):
        since = before if reason == "late" else 0
        first, end = interval(file, "batch")
        counted = fit(Box((first,), (end,)), Region(Box((since,), (cut.batch + 1,))))
        at = bisect_left(batches, first or 0)
        if counted and at < len(batches) and (end is None or batches[at] < end):
            counted = None
        if counted and reason is not None:
            counts[str(reason)] += file["num_records"] or 0
        elif counted is not False:
            rest.append(delta.resolve_path(tape.paths.late, file["path"]))
    place = ["pos"] if settled.num_rows else []
    rows = read_columns(tape.paths.late, ["reason", "batch", *place], table, rest)
    kept = without(rows.filter(_kept(cut, before)), settled)
    counts.update(kept["reason"].to_pylist())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
