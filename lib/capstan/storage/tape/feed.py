"""The feed of a tape: the input of each batch, recorded before anything else of the batch.

Most batches are micro-batches of a capture. The others are *synthetic*: a rescale, re-injected late
records, repaired ones, a drop, an idle advance. All get their numbers here, each by one commit, so
that of two competing processes one gets the number and the other ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.json_object import Json
from capstan.errors import FencedError
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import prune
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import is_table
from capstan.storage.tape.schema import FEED
from capstan.storage.tape.tape import Cut, Tape, replaced


class Origin(StrEnum):
    """The origin of a batch."""

    CAPTURE = "capture"
    """A micro-batch of a capture."""
    RESCALE = "rescale"
    """Workers are closed and others opened."""
    IDLE = "idle"
    """No records came for a while, and the clock moved the frontier."""
    PUT_BACK = "put-back"
    """Late records enter at the frontier."""
    DROP = "drop"
    """Records of `late` are closed for good, or opened again; nothing goes on tape."""
    FIX = "fix"
    """Repaired records of `late` enter at the frontier."""


_ORIGIN = "partition.origin"


@dataclass(frozen=True, slots=True)
class Consumed:
    """A part of the input of a micro-batch; None for what the source does not have."""

    part: str | None = None  # `topic/partition` for Kafka
    since: int | None = None  # the first offset; None from the beginning
    until: int | None = None  # the first offset after the input
    files: tuple[str, ...] | None = None
    detail: Json | None = None  # the source's own position, if no other is known


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A batch with its number and input."""

    batch: int
    origin: Origin
    checkpoint: str | None = None  # the identity, for a micro-batch
    number: int | None = None  # of a micro-batch in that checkpoint
    consumed: tuple[Consumed, ...] = (Consumed(),)  # one without attributes if unknown
    detail: Json = field(default_factory=dict)  # all parameters of a synthetic batch

    @property
    def by(self) -> tuple[str, str | None, int | None]:
        """The writer of the batch: equal for two entries of one writer."""
        return self.origin, self.checkpoint, self.number


def register_batch(tape: Tape, entry: BatchEntry) -> None:
    """Take a batch's number and record its input; idempotent for one writer."""
    txn = _next_transaction(tape, entry) if is_table(tape.paths.feed) else _transaction(tape, 0)
    if txn is None:
        return
    arrow_writer.create_table(tape.paths.feed, FEED, partitions=("origin",))
    unless = None if entry.checkpoint is None else replaced(tape, entry.checkpoint)
    if not arrow_writer.append(tape.paths.feed, _rows(entry), txn=txn, unless=unless):
        raise _taken(tape, entry.batch)


def _next_transaction(tape: Tape, entry: BatchEntry) -> Txn | None:
    """The transaction that takes a batch's number; None if its writer has it already."""
    table = delta.open_table(tape.paths.feed)
    existing = _entries_from(tape, table, entry.batch)
    if existing:
        # Two synthetic batches of one origin are the same only if they do the same.
        own = {(entry.batch, entry.by)} if entry.origin is Origin.CAPTURE else set()
        if all((other.batch, other.by) in own or other == entry for other in existing):
            return None
        raise _taken(tape, entry.batch)
    last = table.transaction_version(_transaction(tape, 0).app)
    return _transaction(tape, (last or 0) + 1)


def _transaction(tape: Tape, version: int) -> Txn:
    return Txn(f"feed:{tape.name}", version)


def entries_from(tape: Tape, batch: int) -> tuple[BatchEntry, ...]:
    """Entries of this batch and later ones, by batch, without their inputs."""
    if not is_table(tape.paths.feed):
        return ()
    return _entries_from(tape, delta.open_table(tape.paths.feed), batch)


def _entries_from(tape: Tape, table: OpenedTable, batch: int) -> tuple[BatchEntry, ...]:
    # Usually there are none, and no file is opened.
    return _read_entries(tape, table, table.files(), batch)


def synthetic_batches(tape: Tape, *, newest: bool = False) -> tuple[BatchEntry, ...]:
    """Synthetic batches by number, or at least the last one, which may not be carried out yet."""
    if not is_table(tape.paths.feed):
        return ()
    table = delta.open_table(tape.paths.feed)
    files, batch = _files(table, captured=False), 0
    if newest and _ORIGIN in files.column_names:
        batch = max(delta.stat(files, "max.batch"), default=0)
    entries = _read_entries(tape, table, files, batch)
    return tuple(entry for entry in entries if entry.origin is not Origin.CAPTURE)


def last_synthetic(tape: Tape) -> BatchEntry | None:
    """The last synthetic batch, which may not be carried out yet; None without one."""
    return next(reversed(synthetic_batches(tape, newest=True)), None)


def entry_of(tape: Tape, checkpoint: str, number: int) -> BatchEntry | None:
    """The entry of a checkpoint's micro-batch; only files that can have it are opened."""
    if not is_table(tape.paths.feed):
        return None
    table = delta.open_table(tape.paths.feed)
    files = prune(_files(table, captured=True), "number", number, number)
    entries = _read_entries(tape, table, files)
    found = [entry for entry in entries if (entry.checkpoint, entry.number) == (checkpoint, number)]
    return found[0] if found else None


def count_synthetic(tape: Tape, first: int, last: int) -> int:
    """The number of synthetic batches from number `first` to number `last`."""
    # A file with batches of that range alone is counted by the log. An idle stream gets such a file
    # with each advance of the clock, so they are not opened.
    if not is_table(tape.paths.feed):
        return 0
    table = delta.open_table(tape.paths.feed)
    files, counted = _files(table, captured=False), 0
    if {_ORIGIN, "min.batch", "max.batch", "num_records"} <= set(files.column_names):
        within = pc.and_(
            pc.greater_equal(files["min.batch"], first), pc.less_equal(files["max.batch"], last)
        )
        within = pc.fill_null(pc.and_(within, pc.is_valid(files["num_records"])), False)
        counted = pc.sum(files.filter(within)["num_records"]).as_py() or 0
        files = files.filter(pc.invert(within))
    entries = _read_entries(tape, table, prune(files, "batch", first, last), first)
    return counted + sum(
        entry.origin is not Origin.CAPTURE and entry.batch <= last for entry in entries
    )


def batches_of(tape: Tape, cut: Cut, *origins: Origin) -> tuple[BatchEntry, ...]:
    """The synthetic batches of some origins up to a cut, by number."""
    return tuple(
        entry
        for entry in synthetic_batches(tape)
        if entry.origin in origins and entry.batch <= cut.batch
    )


def reinjected_before(tape: Tape, cut: Cut) -> int:
    """Late records of batches before this one were re-injected; 0 for none."""
    return max((entry.batch for entry in batches_of(tape, cut, Origin.PUT_BACK)), default=0)


def count_reinjected(tape: Tape, cut: Cut) -> int:
    """The number of late records that were re-injected up to a cut."""
    return sum(entry.detail["records"] for entry in batches_of(tape, cut, Origin.PUT_BACK))


def _files(table: OpenedTable, *, captured: bool) -> pa.Table:
    """The log's actions for files with micro-batches, or for those with synthetic batches."""
    # The table is partitioned by origin, so files with others need not be opened. A feed of an
    # older format is not, and all of its files are returned.
    files = table.files()
    if _ORIGIN not in files.column_names:
        return files
    of_capture = pc.equal(files[_ORIGIN], str(Origin.CAPTURE))
    return files.filter(of_capture if captured else pc.invert(of_capture))


def _read_entries(
    tape: Tape, table: OpenedTable, files: pa.Table, batch: int = 0
) -> tuple[BatchEntry, ...]:
    """Entries of a batch and later ones from some files of the feed, given as log actions."""
    columns = ["batch", "origin", "checkpoint", "number", "detail"]
    entries: dict[int, BatchEntry] = {}
    for file in prune(files, "batch", batch).to_pylist():
        place = delta.resolve_path(tape.paths.feed, file["path"])
        for row in read_columns(tape.paths.feed, columns, table, [place]).to_pylist():
            # The partition column is not in the files.
            origin = Origin(row["origin"] or file[_ORIGIN])
            detail = json.loads(row["detail"]) if row["detail"] else {}
            by = origin, row["checkpoint"], row["number"]
            entries[row["batch"]] = BatchEntry(row["batch"], *by, detail=detail)
    return tuple(entries[number] for number in sorted(entries) if number >= batch)


def _rows(entry: BatchEntry) -> pa.Table:
    rows = [
        {
            "batch": entry.batch,
            "origin": str(entry.origin),
            "checkpoint": entry.checkpoint,
            "number": entry.number,
            "part": consumed.part,
            "since": consumed.since,
            "until": consumed.until,
            "files": None if consumed.files is None else list(consumed.files),
            "detail": _text(consumed.detail or entry.detail),
        }
        for consumed in entry.consumed
    ]
    return pa.Table.from_pylist(rows, schema=arrow_writer.arrow_schema(FEED))


def _text(detail: Json) -> str | None:
    return json.dumps(detail, sort_keys=True) if detail else None


def _taken(tape: Tape, batch: int) -> FencedError:
    return FencedError(
        "CAP-FENCED",
        f"stream {tape.name}: batch {batch} belongs to another process",
        "another capture of this stream is running or has taken over; repeat the command",
        stream=tape.name,
    )
