"""Export: what is on a tape, as recordings that other systems and later ones can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.protocol import Rule
from capstan.core.times import Box, Time
from capstan.core.times.region import Region
from capstan.errors import CapstanError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.interop.transfer import recording_writer
from capstan.interop.transfer.payload_columns import payload_type
from capstan.interop.transfer.recording_format import Form, Format
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import WHOLE, require_kept
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Cut, Tape, newest_cut, read_events, read_records
from capstan.storage.tape.time_columns import JSON, integers
from capstan.verify import Verification, verify
from capstan.verify.content_check import count_mismatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        stream: The stream.
        cut: The commit up to which it was written.
        folder: Where the files are.
        files: By worker its file's name, events, records and bytes.
    """

    stream: str
    cut: int
    folder: str
    files: tuple[recording_writer.Written, ...]

    def to_json(self) -> dict[str, object]:
        """The answer as one JSON object."""
        return {
            "stream": self.stream,
            "cut": self.cut,
            "folder": self.folder,
            "events": sum(each.events for each in self.files),
            "records": sum(each.records for each in self.files),
            "workers": [each.to_json() for each in self.files],
        }


def form_of(
    tape: Tape, form: Format, time_type: str | None = None, record_type: str | None = None
) -> Form:
    """How a stream is written: with the types that are given, else those it was imported with.

    Raises:
        InvalidRequestError: `CAP-FILE`, frames are wanted and the types are not known; `CAP-TYPE`.
    """
    fixed = tape.settings.get("fixed")
    kept = fixed.get("import") if isinstance(fixed, dict) else None
    start = list(tape.time_type.minimum)
    known: dict[str, object] = {"minimum": start if len(start) > 1 else start[0]}
    known |= kept if isinstance(kept, dict) else {}
    given = {"time_type": time_type, "record_type": record_type}
    known |= {name: text for name, text in given.items() if text is not None}
    return Form.from_json(known, form)


def export_recordings(
    spark: SparkSession,
    lake: Lake,
    tape: Tape,
    folder: Path,
    form: Form,
    *,
    workers: Iterable[int],
    cut: Cut | None = None,
) -> Exported:
    """Write the recordings of workers into a new folder, a file each, and `case.json` beside them.

    What was imported comes out as the same bytes. Of a stream that was captured, times are written
    as integers (microseconds, days), and records as JSON unless their type is given.

    Args:
        spark: The session; its executors write the files.
        lake: The lake with the ledger of verifications.
        tape: The tape.
        folder: Made where it is not there; it must be empty.
        form: How they are written; see `form_of`.
        workers: Whose recordings.
        cut: Up to which commit; the newest by default.

    Raises:
        InvalidRequestError: `CAP-EXISTS`, the folder has something in it; `CAP-TYPE`, the stream's
            columns are not of the record type that was given; `CAP-RETIRED`, records were deleted;
            `CAP-FRAME-LENGTH`, `CAP-VALUE`, an event cannot be written. No file is left then.
        CheckFailedError: `CAP-VIOLATION`, a row of the tape is no event, or a number is missing;
            other rules may be broken, and are in the files as on the tape. `CAP-TAPE`, an event has
            not the records that it says; no file is left then either.
    """
    cut = newest_cut(tape) if cut is None else cut
    chosen = sorted(workers)
    _require_events(verify(spark, lake, tape, workers=chosen, cut=cut), tape)
    everything = Region(Box.everything(tape.time_type))
    require_kept(lake, tape, cut, chosen, everything, "a whole recording", WHOLE)
    rows = _rows(spark, tape, cut, chosen, form)
    require_new_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = partial(recording_writer.write, folder=str(folder.absolute()), form=form)
    found = rows.mapInArrow(writer, "worker int, written string, refused string").collect()
    written = {
        row["worker"]: recording_writer.Written.from_text(row["written"])
        for row in found
        if row["written"]
    }
    for row in found:
        if row["refused"]:
            for each in written.values():
                (folder / each.file).unlink()
            raise _refused(tape, row["worker"], json.loads(row["refused"]))
    for worker in chosen:
        if worker not in written:
            # It has no event yet, and an empty recording says so.
            written[worker] = recording_writer.write_empty(str(folder.absolute()), form, worker)
    case = {**form.to_json(), "case": tape.name, "cut": cut.commit, "workers": len(chosen)}
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n", encoding="utf-8")
    emit("export.files", stream=tape.name, files=len(chosen))
    files = tuple(written[worker] for worker in chosen)
    return Exported(tape.name, cut.commit, str(folder.absolute()), files)


def _require_events(verification: Verification, tape: Tape) -> None:
    unwritten = [
        verdict
        for verdict in verification.workers
        if verdict.violation is not None and verdict.violation.rule in (Rule.SHAPE, Rule.SEQ)
    ]
    replace(verification, workers=tuple(unwritten)).require_valid(tape)


def _refused(tape: Tape, worker: int, told: Mapping[str, Any]) -> CapstanError:
    if told["error"] == "CAP-TAPE":
        time = None if told["time"] is None else Time(told["time"])
        return count_mismatch(tape, worker, told["seq"], time, told["stored"], told["promised"])
    code, message, hint = (str(told[name]) for name in ("error", "message", "hint"))
    return InvalidRequestError(code, f"worker {worker}, {message}", hint, worker=worker)


def require_new_folder(folder: Path) -> None:
    """Check that nothing is overwritten: the folder is not there, or empty.

    Raises:
        InvalidRequestError: `CAP-EXISTS`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequestError(
            "CAP-EXISTS",
            f"there is something at {folder} already",
            "name a new folder, or an empty one",
            folder=str(folder),
        )


def _rows(spark: SparkSession, tape: Tape, cut: Cut, workers: list[int], form: Form) -> DataFrame:
    """Events, each followed by its records, per worker in the recorded order.

    Columns: `worker, seq, kind` (null: a record), `time` and `updates` as integers, `records, pos,
    data`. Records that no event has come first, with a null as `seq`.
    """
    events = read_events(spark, tape, cut, workers=workers)
    records = read_records(spark, tape, cut, workers=workers)
    data = _data(payload_of(records.schema), form)
    named = events.where("kind = 'messages'").select("worker", "seq", "batch", "time")
    messages = records.join(named, ["worker", "batch", "time"], "left").select(
        "worker", "seq", "pos", data.alias("data")
    )
    numbers = events.select(
        "worker",
        "seq",
        "kind",
        F.when(F.col("time").isNotNull(), integers(F.col("time"), tape.time_type)).alias("time"),
        F.transform(
            "updates",
            lambda update: F.struct(
                integers(update.getField("time"), tape.time_type).alias("time"),
                update.getField("diff").alias("diff"),
            ),
        ).alias("updates"),
        "records",
    )
    rows = numbers.unionByName(messages, allowMissingColumns=True)
    order = [F.col("worker"), F.col("seq"), F.col("kind").isNull(), F.col("pos")]
    return rows.repartition("worker").sortWithinPartitions(*order)


def _data(payload: StructType, form: Form) -> Column:
    """The records as the form has them: typed columns, or JSON text."""
    if form.types is None:
        imported = payload.names == ["json"]
        return F.col("data.json") if imported else F.to_json("data", JSON)
    wanted = payload_type(form.types.record)
    if [field.name for field in wanted] != payload.names:
        raise InvalidRequestError(
            "CAP-TYPE",
            f"records of {form.types.record.name} are columns {[f.name for f in wanted]}, and the "
            f"stream has {payload.names}",
            "name the type of its records, or export transcripts without a type",
        )
    return F.col("data")
