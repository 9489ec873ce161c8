"""Records that shall not return: dropped by a batch of their own, and opened again by another."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from capstan.capture.drop_request import Drop
from capstan.capture.query.capture_query import in_turn
from capstan.capture.synthetic import synthetic_batch
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.errors.shell_command import command
from capstan.storage.late import settled
from capstan.storage.late.late_rows import chosen_late, count_late
from capstan.storage.ledger.tables import now
from capstan.storage.tape import feed
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape
from capstan.storage.tape.upgrade import take_settled, upgrade
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

_OPERATION = "dropping records"


@dataclass(frozen=True, slots=True)
class DropResult:
    """The outcome of a drop, or of opening what was dropped."""

    stream: str
    batch: int | None  # None when there was nothing to drop
    records: int  # 0 as well when they were open again already
    cut: int
    left: Mapping[str, int]  # remaining in `late`, by reason

    def to_json(self) -> dict[str, object]:
        """The outcome as one JSON object."""
        return asdict(self)


@in_turn
def drop(spark: SparkSession, lake: Lake, name: str, request: Drop) -> DropResult:
    """Drop records of `late`, or open what a batch has dropped; nothing is deleted."""
    tape = upgrade(open_tape(lake, name, what="`capstan late --drop`"))
    synthetic_batch.finish(spark, tape)
    if request.undo is not None:
        return _open_again(spark, tape, request, request.undo)
    cut = newest_cut(tape)
    rows = chosen_late(tape, cut, request.selection)
    if not rows.num_rows:
        return _result(tape, None, 0)
    synthetic_batch.require_insertable(tape, _OPERATION)
    take_settled(tape)
    decision = uuid.uuid4().hex
    settled.write_settled(tape, decision, rows)
    emit("drop.rows", stream=tape.name, records=rows.num_rows)
    detail = {
        "rows": decision,
        "records": rows.num_rows,
        "because": request.because,
        "selection": request.selection.to_json(),
        **_signed(request),
    }
    return _insert(spark, tape, cut, detail, rows.num_rows)


def _open_again(spark: SparkSession, tape: Tape, request: Drop, batch: int) -> DropResult:
    cut = newest_cut(tape)
    undone = settled.undone_by(tape, cut, batch)
    if undone is not None:  # By the same request, before it was repeated.
        return _result(tape, undone, 0)
    known = settled.drops(tape, cut)
    entry = next((each for each in known if each.batch == batch), None)
    if entry is None:
        numbers = ", ".join(str(each.batch) for each in known) or "none"
        raise InvalidRequestError(
            "CAP-DROPPED",
            f"stream {tape.name}: no records are dropped by batch {batch} (those that drop some: "
            f"{numbers})",
            f"{command('late', tape.name)} lists what is dropped, with the batches",
            stream=tape.name,
        )
    reasons = settled.rows_of_batches(tape, (entry,))["reason"].to_pylist()
    if "late" in reasons and feed.reinjected_before(tape, cut) > batch:
        # A put-back counts all late records of earlier batches that were not dropped.
        raise InvalidRequestError(
            "CAP-DROPPED",
            f"stream {tape.name}: batch {batch} has dropped records that came late, and others "
            "were put back since",
            "they stay dropped; their rows are in the table `late`",
            stream=tape.name,
        )
    return _insert(spark, tape, cut, {"undo": batch, **_signed(request)}, len(reasons))


def _signed(request: Drop) -> dict[str, object]:
    return {"by": request.by, "at": now().astimezone(UTC).isoformat(timespec="seconds")}


def _insert(
    spark: SparkSession, tape: Tape, cut: Cut, detail: dict[str, object], records: int
) -> DropResult:
    def unless_outrun(_: int) -> Json:
        # The rows were chosen at the cut. Only these two kinds of batches make others of them.
        later = feed.entries_from(tape, cut.batch + 1)
        if any(entry.origin in (Origin.PUT_BACK, Origin.DROP) for entry in later):
            raise RangeLockedError(
                "CAP-CONFLICT",
                f"stream {tape.name}: another process has put records back, or dropped some",
                "repeat the command",
                stream=tape.name,
            )
        return detail

    entry = synthetic_batch.insert(spark, tape, Origin.DROP, unless_outrun, _OPERATION)
    return _result(tape, None if entry is None else entry.batch, records)


def _result(tape: Tape, batch: int | None, records: int) -> DropResult:
    cut = newest_cut(tape)
    return DropResult(tape.name, batch, records, cut.commit, count_late(tape, cut))
