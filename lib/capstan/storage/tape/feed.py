"""The feed of a tape: what each batch is made of, written down before anything of it.

Most batches are micro-batches of a capture. The others are *inserted*: a rescale, records that are
put back, a source that stood idle. All take their numbers here, each by one commit, so that of two
processes one has the number and the other ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.errors import FencedError
from capstan.storage import arrow_writer, delta
from capstan.storage.arrow_scan import read_columns
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import is_table
from capstan.storage.tape.schema import FEED
from capstan.storage.tape.tape import Cut, Tape


class Origin(StrEnum):
    """What a batch comes from."""

    CAPTURE = "capture"
    """A micro-batch of a capture."""
    RESCALE = "rescale"
    """Workers close, and others open."""
    IDLE = "idle"
    """Nothing came for long, and the clock moved the frontier."""
    PUT_BACK = "put-back"
    """Records that had come late enter at the frontier."""


_ORIGIN = "partition.origin"


@dataclass(frozen=True, slots=True)
class Consumed:
    """A part of what a micro-batch has consumed of its source.

    Attributes:
        part: `topic/partition` of Kafka; None where the source has no such parts.
        since: The first offset; None where the source does not count, or from its beginning.
        until: The first offset no longer consumed; None where the source does not count.
        files: Files that were read; None for a source that is none of files.
        detail: What the source says itself of where it stands, where nothing else is known.
    """

    part: str | None = None
    since: int | None = None
    until: int | None = None
    files: tuple[str, ...] | None = None
    detail: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A batch by its number, and what it is made of.

    Attributes:
        batch: The tape's number of it.
        origin: What it comes from.
        checkpoint: Of a micro-batch the identity of its checkpoint; else None.
        number: Of a micro-batch its number in that checkpoint; else None.
        consumed: Of a micro-batch what it consumed; one of no attributes where nothing is known.
        detail: Of an inserted batch all that is needed to carry it out.
    """

    batch: int
    origin: Origin
    checkpoint: str | None = None
    number: int | None = None
    consumed: tuple[Consumed, ...] = (Consumed(),)
    detail: Mapping[str, object] = field(default_factory=dict)

    @property
    def by(self) -> tuple[str, str | None, int | None]:
        """Who has it: two claims of a batch are of one writer when they agree in this."""
        return self.origin, self.checkpoint, self.number


def register_batch(tape: Tape, wanted: BatchEntry) -> None:
    """Take a batch's number, and write down what it is made of; again, it stands.

    Raises:
        FencedError: `CAP-FENCED` when another writer has this number or a later one.
    """
    txn = Txn(f"feed:{tape.name}", 0)
    if is_table(tape.paths.feed):
        table = delta.open_table(tape.paths.feed)
        txn = Txn(txn.app, (table.transaction_version(txn.app) or 0) + 1)
        there = _claims_from(tape, table, wanted.batch)
        if there:
            if all(each.batch == wanted.batch and each.by == wanted.by for each in there):
                return
            raise _taken(tape, wanted.batch)
    arrow_writer.create_table(tape.paths.feed, FEED, partitions=("origin",))
    if not arrow_writer.append(tape.paths.feed, _rows(wanted), txn=txn):
        raise _taken(tape, wanted.batch)


def claims_from(tape: Tape, batch: int) -> tuple[BatchEntry, ...]:
    """Claims of this batch and later ones, without what they consumed; by batch."""
    if not is_table(tape.paths.feed):
        return ()
    return _claims_from(tape, delta.open_table(tape.paths.feed), batch)


def _claims_from(tape: Tape, table: deltalake.DeltaTable, batch: int) -> tuple[BatchEntry, ...]:
    # Most often there is none, and no file has to be opened for it.
    return _claims(tape, table, pa.table(table.get_add_actions(flatten=True)), batch)


def inserted(tape: Tape) -> tuple[BatchEntry, ...]:
    """Batches that no micro-batch gave, by their numbers; the last may not be carried out yet."""
    return _inserted(tape)


def last_inserted(tape: Tape) -> BatchEntry | None:
    """The last batch that no micro-batch gave, which may not be carried out yet; None without."""
    found = _inserted(tape, newest=True)
    return found[-1] if found else None


def put_back(tape: Tape, cut: Cut) -> list[BatchEntry]:
    """The batches at a cut by which late records were put back on tape, by their numbers."""
    return [
        each
        for each in inserted(tape)
        if each.origin is Origin.PUT_BACK and each.batch <= cut.batch
    ]


def put_back_before(tape: Tape, cut: Cut) -> int:
    """Late records of batches before this one have been put back on tape; 0 for none."""
    return max((each.batch for each in put_back(tape, cut)), default=0)


def kept_late(tape: Tape, cut: Cut) -> dataset.Expression:
    """The condition on `late` that a record was fed up to a cut, and is not on tape."""
    return _kept(cut, put_back_before(tape, cut))


def _kept(cut: Cut, before: int) -> dataset.Expression:
    batch = dataset.field("batch")
    fed = batch <= cut.batch
    return fed & ((batch >= before) | (dataset.field("reason") != "late")) if before else fed


@dataclass(frozen=True, slots=True)
class LateRows:
    """Records that were fed and are not on tape, of one reason.

    Attributes:
        reason: Why they are not.
        records: How many there are.
        workers: Whose they would be, where that is known.
        first: The first batch that brought some.
        last: The last one.
    """

    reason: str
    records: int
    workers: tuple[int, ...]
    first: int
    last: int


def late_by_reason(tape: Tape, cut: Cut) -> tuple[LateRows, ...]:
    """Records that were fed up to a cut and are not on tape, the most frequent reason first."""
    rows = read_columns(tape.paths.late, ["reason", "worker", "batch"])
    if (pc.max(rows["batch"]).as_py() or 0) > cut.batch:
        rows = rows.filter(dataset.field("batch") <= cut.batch)
    if pc.any(pc.equal(rows["reason"], "late")).as_py():
        # The feed, which says what was put back, grows with each batch: it is not read for nothing.
        rows = rows.filter(kept_late(tape, cut))
    wanted = [("reason", "count"), ("worker", "distinct"), ("batch", "min"), ("batch", "max")]
    found = rows.group_by("reason").aggregate(wanted).to_pylist()
    return tuple(
        LateRows(
            str(row["reason"]),
            row["reason_count"],
            tuple(sorted(worker for worker in row["worker_distinct"] if worker is not None)),
            row["batch_min"],
            row["batch_max"],
        )
        for row in sorted(found, key=lambda row: (-row["reason_count"], str(row["reason"])))
    )


def count_late(tape: Tape, cut: Cut) -> dict[str, int]:
    """How many records were fed up to a cut and are not on tape, by reason.

    The most frequent comes first. Of a file of one reason the log says how many it has: only others
    are read.
    """
    table = delta.open_table(tape.paths.late)
    files = [_LateFile.of(row) for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()]
    before = put_back_before(tape, cut) if any(file.may_be_late for file in files) else 0
    counts: Counter[str] = Counter()
    rest: list[str] = []
    for file in files:
        if file.is_beside(cut, before):
            continue
        if file.is_told(cut, before):
            counts[str(file.reason)] += file.rows
        else:
            rest.append(delta.resolve_path(tape.paths.late, file.path))
    rows = read_columns(tape.paths.late, ["reason", "batch"], table, rest)
    counts.update(rows.filter(_kept(cut, before))["reason"].to_pylist())
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


@dataclass(frozen=True, slots=True)
class _LateFile:
    """A file of `late`, as the log tells of it.

    Attributes:
        path: Its path, as the log has it.
        rows: How many it has.
        reason: The reason of all of them; None where they have several, or it is not known.
        first: The first batch; None where it is not known.
        last: The last one.
    """

    path: str
    rows: int
    reason: str | None
    first: int | None
    last: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _LateFile:
        least, most = row.get("min.reason"), row.get("max.reason")
        reason = least if least == most else None
        batches = row.get("min.batch"), row.get("max.batch")
        return cls(row["path"], row["num_records"] or 0, reason, *batches)

    @property
    def may_be_late(self) -> bool:
        return self.reason in (None, "late")

    def is_beside(self, cut: Cut, before: int) -> bool:
        """Whether none of its records is kept at the cut: they came later, or were put back."""
        if self.first is None or self.last is None:
            return False
        return self.first > cut.batch or (self.reason == "late" and self.last < before)

    def is_told(self, cut: Cut, before: int) -> bool:
        """Whether all of its records are of one reason, were fed up to the cut, and are kept."""
        if self.reason is None or self.first is None or self.last is None:
            return False
        return self.last <= cut.batch and (self.reason != "late" or self.first >= before)


def count_put_back(tape: Tape, cut: Cut) -> int:
    """How many records had come late, and are on tape at a cut."""
    return sum(int(str(each.detail["records"])) for each in put_back(tape, cut))


def _inserted(tape: Tape, *, newest: bool = False) -> tuple[BatchEntry, ...]:
    """Batches that no micro-batch gave; at least the last of them where `newest` is enough."""
    if not is_table(tape.paths.feed):
        return ()
    table = delta.open_table(tape.paths.feed)
    files, batch = pa.table(table.get_add_actions(flatten=True)), 0
    # The table is partitioned by origin: files of micro-batches are not opened.
    if _ORIGIN in files.column_names:
        files = files.filter(pc.not_equal(files[_ORIGIN], str(Origin.CAPTURE)))
        batch = max(delta.stat(files, "max.batch"), default=0) if newest else 0
    found = _claims(tape, table, files, batch)
    return tuple(claim for claim in found if claim.origin is not Origin.CAPTURE)


def _claims(
    tape: Tape, table: deltalake.DeltaTable, files: pa.Table, batch: int = 0
) -> tuple[BatchEntry, ...]:
    """Claims of a batch and later ones, by these files of the feed, as its log tells of them."""
    if "max.batch" in files.column_names:
        files = files.filter(pc.fill_null(pc.greater_equal(files["max.batch"], batch), True))
    columns = ["batch", "origin", "checkpoint", "number", "detail"]
    found: dict[int, BatchEntry] = {}
    for file in files.to_pylist():
        place = delta.resolve_path(tape.paths.feed, file["path"])
        for row in read_columns(tape.paths.feed, columns, table, [place]).to_pylist():
            # What a table is partitioned by is not in its files.
            origin = Origin(row["origin"] or file[_ORIGIN])
            detail = json.loads(row["detail"]) if row["detail"] else {}
            by = origin, row["checkpoint"], row["number"]
            found[row["batch"]] = BatchEntry(row["batch"], *by, detail=detail)
    return tuple(found[each] for each in sorted(found) if each >= batch)


def _rows(wanted: BatchEntry) -> pa.Table:
    rows = [
        {
            "batch": wanted.batch,
            "origin": str(wanted.origin),
            "checkpoint": wanted.checkpoint,
            "number": wanted.number,
            "part": each.part,
            "since": each.since,
            "until": each.until,
            "files": None if each.files is None else list(each.files),
            "detail": _text(each.detail or wanted.detail),
        }
        for each in wanted.consumed
    ]
    return pa.Table.from_pylist(rows, schema=arrow_writer.arrow_schema(FEED))


def _text(detail: Mapping[str, object]) -> str | None:
    return json.dumps(detail, sort_keys=True) if detail else None


def _taken(tape: Tape, batch: int) -> FencedError:
    return FencedError(
        "CAP-FENCED",
        f"stream {tape.name}: batch {batch} belongs to another process",
        "another capture of this stream is running, or has taken over; run it again",
        stream=tape.name,
    )
