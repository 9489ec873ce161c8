"""Records of `late` that are dropped or repaired, by a batch of their own; a drop can be undone."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING

from capstan.capture.drop_request import Drop
from capstan.capture.fix_request import Fix
from capstan.capture.query.capture_query import in_turn
from capstan.capture.query.tape_settings import require_same, settings_of
from capstan.capture.repair import Repair, RepairSummary
from capstan.capture.source.selection import fix_failed
from capstan.capture.synthetic import synthetic_batch
from capstan.core.json_object import Json
from capstan.errors import CapstanError, InvalidRequestError, RangeLockedError
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

    from capstan.core.config import Stream
    from capstan.storage.lake import Lake

_OPERATIONS = {Origin.DROP: "dropping records", Origin.FIX: "repairing records"}


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


@dataclass(frozen=True, slots=True)
class FixResult:
    """The outcome of a fix, or with `dry_run` what it would be."""

    stream: str
    dry_run: bool
    batch: int | None  # None when nothing was written
    cut: int
    repair: RepairSummary
    left: Mapping[str, int]  # remaining in `late`, by reason

    def to_json(self) -> dict[str, object]:
        """The outcome as one JSON object."""
        value = asdict(self)
        del value["repair"]
        return {**asdict(self.repair), **value}


@in_turn
def fix(spark: SparkSession, lake: Lake, stream: Stream, request: Fix) -> FixResult:
    """Repair records of `late` by SQL, and put them on tape at the frontier, once each.

    Those that are still wrong stay in `late`.
    """
    tape = open_tape(lake, stream.name, what="`capstan late --fix`")
    if not request.dry_run and synthetic_batch.finish(spark, upgrade(tape)):
        tape = open_tape(lake, stream.name)
    require_same(tape, settings_of(stream))
    cut = newest_cut(tape)
    chosen = chosen_late(tape, cut, request.selection)
    repair = Repair(spark, tape, stream, cut, request.select, chosen)
    try:
        summary = repair.summary()
        if request.dry_run or not summary.records:
            return _fixed(tape, request, None, summary)
        synthetic_batch.require_insertable(tape, _OPERATIONS[Origin.FIX])
        take_settled(tape)
        decision = uuid.uuid4().hex
        records = repair.write(decision)
    except CapstanError:
        raise
    except Exception as error:
        raise fix_failed(stream.name, error) or error from None
    finally:
        repair.release()
    emit("fix.rows", stream=tape.name, records=records)
    detail = {
        "rows": decision,
        "records": records,
        "fix": list(request.select),
        "selection": request.selection.to_json(),
        **_signed(request.by),
    }
    batch = _insert(spark, tape, Origin.FIX, cut, detail)
    return _fixed(tape, request, batch, replace(summary, records=records))


def _fixed(tape: Tape, request: Fix, batch: int | None, summary: RepairSummary) -> FixResult:
    cut = newest_cut(tape)
    return FixResult(tape.name, request.dry_run, batch, cut.commit, summary, count_late(tape, cut))


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
    synthetic_batch.require_insertable(tape, _OPERATIONS[Origin.DROP])
    take_settled(tape)
    decision = uuid.uuid4().hex
    settled.write_settled(tape, decision, rows)
    emit("drop.rows", stream=tape.name, records=rows.num_rows)
    detail = {
        "rows": decision,
        "records": rows.num_rows,
        "because": request.because,
        "selection": request.selection.to_json(),
        **_signed(request.by),
    }
    return _result(tape, _insert(spark, tape, Origin.DROP, cut, detail), rows.num_rows)


def _open_again(spark: SparkSession, tape: Tape, request: Drop, batch: int) -> DropResult:
    cut = newest_cut(tape)
    undone = settled.undone_by(tape, cut, batch)
    if undone is not None:  # By the same request, before it was repeated.
        return _result(tape, undone, 0)
    known = settled.settling(tape, cut, Origin.DROP)
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
    detail = {"undo": batch, **_signed(request.by)}
    return _result(tape, _insert(spark, tape, Origin.DROP, cut, detail), len(reasons))


def _signed(by: str) -> dict[str, object]:
    return {"by": by, "at": now().astimezone(UTC).isoformat(timespec="seconds")}


def _insert(
    spark: SparkSession, tape: Tape, origin: Origin, cut: Cut, detail: dict[str, object]
) -> int:
    def unless_outrun(_: int) -> Json:
        # The rows were chosen at the cut. Only these kinds of batches make others of them.
        later = feed.entries_from(tape, cut.batch + 1)
        if any(entry.origin in (Origin.PUT_BACK, *settled.SETTLING) for entry in later):
            raise RangeLockedError(
                "CAP-CONFLICT",
                f"stream {tape.name}: another process has put records back, or has dropped or "
                "repaired some",
                "repeat the command",
                stream=tape.name,
            )
        return detail

    entry = synthetic_batch.insert(spark, tape, origin, unless_outrun, _OPERATIONS[origin])
    assert entry is not None  # There are details for any number.
    return entry.batch


def _result(tape: Tape, batch: int | None, records: int) -> DropResult:
    cut = newest_cut(tape)
    return DropResult(tape.name, batch, records, cut.commit, count_late(tape, cut))
