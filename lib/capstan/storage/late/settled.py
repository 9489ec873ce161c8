"""Rows of `late` that are settled one by one: dropped, or repaired, by batches of the feed.

The rows are written first, under a decision. They count once a batch that names it is on tape,
until a later one undoes that batch. Rows whose decision no batch names mean nothing.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.storage.delta import arrow_writer
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.lake import is_table
from capstan.storage.tape.feed import BatchEntry, Origin, batches_of
from capstan.storage.tape.schema import SETTLED
from capstan.storage.tape.tape import Cut, Tape

_KEYS = ["batch", "pos"]
_PLACE = [*_KEYS, "reason"]

SETTLING = (Origin.DROP, Origin.FIX)
"""The origins of batches that settle rows."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def write_settled(tape: Tape, decision: str, rows: pa.Table) -> None:
    """Write `batch`, `pos` and `reason` of rows of `late` under a decision, not yet named."""
    decisions = pa.array([decision] * rows.num_rows, pa.string())
    whole = rows.select(_PLACE).append_column("decision", decisions).select(SETTLED.names)
    schema = arrow_writer.arrow_schema(SETTLED)
    arrow_writer.append(tape.paths.settled, whole.cast(schema))


def settling(tape: Tape, cut: Cut, *origins: Origin) -> tuple[BatchEntry, ...]:
    """The batches up to a cut that settle records, by number, without those that were undone."""
    entries = _entries(tape, cut, *(origins or SETTLING))
    undone = {entry.detail.get("undo") for entry in entries}
    return tuple(entry for entry in entries if "rows" in entry.detail and entry.batch not in undone)


def undone_by(tape: Tape, cut: Cut, batch: int) -> int | None:
    """The batch up to a cut that opened again what another one had dropped; None without one."""
    entries = _entries(tape, cut, Origin.DROP)
    return next((entry.batch for entry in entries if entry.detail.get("undo") == batch), None)


def _entries(tape: Tape, cut: Cut, *origins: Origin) -> tuple[BatchEntry, ...]:
    return batches_of(tape, cut, *origins) if is_table(tape.paths.settled) else ()


def settled_rows(tape: Tape, cut: Cut, *origins: Origin) -> pa.Table:
    """The rows of `late` that are settled as of a cut: `batch`, `pos` and `reason`."""
    empty = arrow_writer.arrow_schema(SETTLED).empty_table().select(_PLACE)
    entries = settling(tape, cut, *origins)
    if not entries:
        return empty
    return rows_of_batches(tape, entries)


def rows_of_batches(tape: Tape, entries: tuple[BatchEntry, ...]) -> pa.Table:
    """The rows of `late` that some batches settle: `batch`, `pos` and `reason`."""
    rows = read_columns(tape.paths.settled, [*_PLACE, "decision"])
    decisions = pa.array([entry.detail["rows"] for entry in entries], pa.string())
    return rows.filter(pc.is_in(rows["decision"], value_set=decisions)).select(_PLACE)


def without(rows: Rows, settled: pa.Table) -> Rows:
    """Rows of `late` without those that are settled, by `batch` and `pos`."""
    if not settled.num_rows:
        return rows
    # A join cannot carry all columns (not the times), so it only finds the numbers of rows.
    numbers = pa.array(np.arange(rows.num_rows))
    places = pa.table([rows.column("batch"), rows.column("pos"), numbers], [*_KEYS, "row"])
    kept = places.join(settled.select(_KEYS), _KEYS, join_type="left anti")["row"]
    return rows.filter(pc.is_in(numbers, value_set=kept.combine_chunks()))
