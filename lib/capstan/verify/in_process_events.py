"""Small sets of events, read and sorted in this process: checked without a job or a JVM."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.tape.tape import Cut, Tape
from capstan.verify.event_columns import NO_WORKER, Fingerprint

MAX_EVENTS = 50_000
"""The most events. Checking takes less than a second unless many times are held at once."""


def _are_few(tape: Tape, after: int) -> bool:
    """Whether the commits after an ordinal have few events, by the log of the index alone."""
    actions = pa.table(delta.open_table(tape.paths.events).get_add_actions(flatten=True))
    if not {"max.commit", "num_records"} <= set(actions.column_names):
        return len(actions) == 0
    last, rows = (actions[name].to_pylist() for name in ("max.commit", "num_records"))
    if None in last or None in rows:
        return False
    newer = sum(n for commit, n in zip(last, rows, strict=True) if commit > after)
    return bool(newer <= MAX_EVENTS)


def events(
    tape: Tape, cut: Cut, workers: Collection[int] | None, after: int
) -> list[pa.RecordBatch] | None:
    """Events as in `run.events_to_check`; None if many, or if two of a worker share a seq.

    Only Spark orders events with the same seq consistently.
    """
    if not _are_few(tape, after):
        return None
    wanted = (dataset.field("commit") <= cut.commit) & (dataset.field("commit") > after)
    if workers is not None:
        wanted &= dataset.field("worker").isin(list(workers))
    columns = ["worker", "seq", "commit", "kind", "time", "updates", "records", "fingerprint"]
    rows = rows_of(tape.paths.events).to_table(columns=columns, filter=wanted).combine_chunks()
    rows = rows.set_column(0, "worker", pc.fill_null(rows["worker"], NO_WORKER))
    rows = rows.set_column(7, "fingerprint", _completeness(rows["fingerprint"]))
    if rows.select(["worker", "seq"]).group_by(["worker", "seq"]).aggregate([]).num_rows < len(
        rows
    ):
        return None
    keys = [(name, "ascending", "at_start") for name in ("worker", "seq")]
    order = pc.sort_indices(rows, sort_keys=keys)
    batches: list[pa.RecordBatch] = rows.take(order).combine_chunks().to_batches()
    return batches


def _completeness(fingerprints: pa.ChunkedArray) -> pa.ChunkedArray:
    """How complete each fingerprint is, as TINYINT."""
    parts = [pc.is_valid(pc.struct_field(fingerprints, name)) for name in ("h1", "h2")]
    whole = pc.if_else(pc.and_(*parts), int(Fingerprint.WHOLE), int(Fingerprint.TORN))
    kinds = pc.if_else(pc.is_null(fingerprints), int(Fingerprint.NONE), whole)
    return kinds.cast(pa.int8())
