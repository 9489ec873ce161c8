"""The feed of a tape: what each batch is made of, written down before anything of it.

Most batches are micro-batches of a capture. The others are *inserted*: a rescale, records that are
put back, a source that stood idle. All take their numbers here, each by one commit, so that of two
processes one has the number and the other ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.errors import Fenced
from capstan.tape import arrow_writer, delta
from capstan.tape.lake import is_table
from capstan.tape.scan import read_columns, rows_of
from capstan.tape.schema import FEED
from capstan.tape.tape import Cut, Tape
from capstan.tape.transaction import Txn


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
class Claim:
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


def claim(tape: Tape, wanted: Claim) -> None:
    """Take a batch's number, and write down what it is made of; again, it stands.

    Raises:
        Fenced: `CAP-FENCED` when another writer has this number or a later one.
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


def claims_from(tape: Tape, batch: int) -> tuple[Claim, ...]:
    """Claims of this batch and later ones, without what they consumed; by batch."""
    if not is_table(tape.paths.feed):
        return ()
    return _claims_from(tape, delta.open_table(tape.paths.feed), batch)


def _claims_from(tape: Tape, table: deltalake.DeltaTable, batch: int) -> tuple[Claim, ...]:
    # Most often there is none, and no file has to be opened for it.
    if max(delta.stat(table.get_add_actions(flatten=True), "max.batch"), default=-1) < batch:
        return ()
    return _claims(rows_of(tape.paths.feed, table), dataset.field("batch") >= batch)


def inserted(tape: Tape) -> tuple[Claim, ...]:
    """Batches that no micro-batch gave, by their numbers; the last may not be carried out yet."""
    if not is_table(tape.paths.feed):
        return ()
    # The table is partitioned by origin: files of micro-batches are not opened.
    files = rows_of(tape.paths.feed)
    return _claims(files, dataset.field("origin") != str(Origin.CAPTURE))


def put_back(tape: Tape, cut: Cut) -> list[Claim]:
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
    batch, before = dataset.field("batch"), put_back_before(tape, cut)
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
    """How many records were fed up to a cut and are not on tape, by reason."""
    return {row.reason: row.records for row in late_by_reason(tape, cut)}


def count_put_back(tape: Tape, cut: Cut) -> int:
    """How many records had come late, and are on tape at a cut."""
    return sum(int(str(each.detail["records"])) for each in put_back(tape, cut))


def _claims(files: dataset.Dataset, wanted: dataset.Expression) -> tuple[Claim, ...]:
    columns = ["batch", "origin", "checkpoint", "number", "detail"]
    found: dict[int, Claim] = {}
    for row in files.to_table(columns=columns, filter=wanted).to_pylist():
        detail = json.loads(row["detail"]) if row["detail"] else {}
        origin = Origin(row["origin"])
        found[row["batch"]] = Claim(
            row["batch"], origin, row["checkpoint"], row["number"], detail=detail
        )
    return tuple(found[batch] for batch in sorted(found))


def _rows(wanted: Claim) -> pa.Table:
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


def _taken(tape: Tape, batch: int) -> Fenced:
    return Fenced(
        "CAP-FENCED",
        f"stream {tape.name}: batch {batch} belongs to another process",
        "another capture of this stream is running, or has taken over; run it again",
        stream=tape.name,
    )
