"""Rows of `late` that are settled one by one: dropped, by batches of the feed.

The rows are written first, under a decision. They count once a batch that names it is on tape,
until a later one undoes that batch. Rows whose decision no batch names mean nothing.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.storage.delta import arrow_writer
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.lake import is_table
from capstan.storage.tape.feed import BatchEntry, Origin, synthetic_batches
from capstan.storage.tape.schema import SETTLED
from capstan.storage.tape.tape import Cut, Tape

_PLACE = ["batch", "pos", "reason"]


def write_settled(tape: Tape, decision: str, rows: pa.Table) -> None:
    """Write `batch`, `pos` and `reason` of rows of `late` under a decision, not yet named."""
    decisions = pa.array([decision] * rows.num_rows, pa.string())
    whole = rows.select(_PLACE).append_column("decision", decisions).select(SETTLED.names)
    schema = arrow_writer.arrow_schema(SETTLED)
    arrow_writer.append(tape.paths.settled, whole.cast(schema))


def drops(tape: Tape, cut: Cut) -> tuple[BatchEntry, ...]:
    """The batches up to a cut that drop records, by number, without those that were undone."""
    if not is_table(tape.paths.settled):
        return ()
    entries = [
        entry
        for entry in synthetic_batches(tape)
        if entry.origin is Origin.DROP and entry.batch <= cut.batch
    ]
    undone = {entry.detail.get("undo") for entry in entries}
    return tuple(entry for entry in entries if "rows" in entry.detail and entry.batch not in undone)


def dropped_rows(tape: Tape, cut: Cut) -> pa.Table:
    """The rows of `late` that are dropped as of a cut: `batch`, `pos` and `reason`."""
    empty = arrow_writer.arrow_schema(SETTLED).empty_table().select(_PLACE)
    entries = drops(tape, cut)
    if not entries:
        return empty
    return rows_of_batches(tape, entries)


def rows_of_batches(tape: Tape, entries: tuple[BatchEntry, ...]) -> pa.Table:
    """The rows of `late` that some batches drop: `batch`, `pos` and `reason`."""
    rows = read_columns(tape.paths.settled, [*_PLACE, "decision"])
    decisions = pa.array([entry.detail["rows"] for entry in entries], pa.string())
    return rows.filter(pc.is_in(rows["decision"], value_set=decisions)).select(_PLACE)


def is_among(rows: pa.Table) -> dataset.Expression:
    """The condition on `late` for some of its rows, at least one: by `batch` and `pos`."""
    batch, pos = dataset.field("batch"), dataset.field("pos")
    by_batch = rows.group_by("batch").aggregate([("pos", "list")]).to_pylist()
    return reduce(or_, ((batch == each["batch"]) & pos.isin(each["pos_list"]) for each in by_batch))
