"""Export: write a tape as recordings that other systems and later versions can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from capstan.core.protocol import Release, Rule
from capstan.core.times import Box, Time, TimeType
from capstan.core.times.region import Region
from capstan.core.times.time_type import order_json
from capstan.errors import CapstanError, InvalidRequestError
from capstan.interop.transfer import recording_writer
from capstan.interop.transfer.payload_columns import payload_type
from capstan.interop.transfer.recording_format import Form, Format
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import WHOLE, require_records
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Cut, Tape, newest_cut, read_events, read_records
from capstan.storage.tape.time_columns import JSON, integers
from capstan.telemetry.instrumentation import emit
from capstan.verify import Verification, verify
from capstan.verify.content_check import count_mismatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export."""

    stream: str
    cut: int
    folder: str
    files: tuple[recording_writer.WrittenFile, ...]

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        return {
            "stream": self.stream,
            "cut": self.cut,
            "folder": self.folder,
            "events": sum(file.events for file in self.files),
            "records": sum(file.records for file in self.files),
            "workers": [file.to_json() for file in self.files],
        }


def form_of(
    tape: Tape,
    form: Format,
    time_type: str | None = None,
    record_type: str | None = None,
    timely: str | None = None,
) -> Form:
    """The form of a stream's recordings: as given, else that of its import, in the tape's order."""
    start, order = list(tape.time_type.minimum), tape.time_type.order
    known: dict[str, object] = {"minimum": start if len(start) > 1 else start[0]}
    known |= {**tape.settings.fixed.get("import", {}), **order_json(order)}
    options = {"time_type": time_type, "record_type": record_type}
    known |= {name: text for name, text in options.items() if text is not None}
    made = Form.from_json({**known, "timely": release_in(tape, timely)}, form)
    # Earlier versions put pairs on tapes of products; they are exported as the bytes that came in.
    named = None if made.types is None else made.types.time.name
    if made.order != order and (named is None or named != tape.settings.pairs):
        ordered = "by the first part that differs" if order.lexicographic else "part by part"
        raise InvalidRequestError(
            "CAP-TIME-TYPE",
            f"stream {tape.name} has times of {len(start)} parts ordered {ordered}, and those of "
            f"{known['time_type']} are not",
            f"give {'a tuple' if order.lexicographic else 'a Product'} as --time-type, or leave "
            "it out",
            stream=tape.name,
        )
    return made


def release_in(tape: Tape, timely: str | None = None) -> Release:
    """The release in whose form a stream is exported: as given, else as stored, else 0.31."""
    stated = tape.settings.timely if timely is None else timely
    return Release.V031 if stated is None else Release.of(stated)


def export_recordings(
    spark: SparkSession,
    lake: Lake,
    tape: Tape,
    folder: Path,
    form: Form,
    *,
    workers: Iterable[int],
    cut: Cut | None = None,
) -> ExportResult:
    """Write the recordings of workers into a new or empty folder, one file each, and `case.json`.

    An imported stream is exported as the same bytes. For a captured stream, times are written as
    integers (microseconds, days), and records as JSON unless their type is given; see `form_of`.
    """
    cut = newest_cut(tape) if cut is None else cut
    chosen = sorted(workers)
    _require_events(verify(spark, lake, tape, workers=chosen, cut=cut))
    everything = Region(Box.everything(tape.time_type))
    require_records(lake, tape, cut, chosen, everything, "a whole recording", WHOLE)
    rows = _rows(spark, tape, cut, chosen, form)
    require_new_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = partial(recording_writer.write, folder=str(folder.absolute()), form=form)
    results = rows.mapInArrow(writer, from_arrow_schema(recording_writer.RESULTS)).collect()
    written = {
        row["worker"]: recording_writer.WrittenFile(*row[:-1])
        for row in results
        if row["refused"] is None
    }
    for row in results:
        if row["refused"]:
            for file in written.values():
                (folder / file.file).unlink()
            raise _export_error(tape, row["worker"], json.loads(row["refused"]))
    for worker in chosen:
        if worker not in written:
            # A worker without events gets an empty recording.
            written[worker] = recording_writer.write_empty(str(folder.absolute()), form, worker)
    case = {**form.to_json(), "case": tape.name, "cut": cut.commit, "workers": len(chosen)}
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n", encoding="utf-8")
    emit("export.files", stream=tape.name, files=len(chosen))
    files = tuple(written[worker] for worker in chosen)
    return ExportResult(tape.name, cut.commit, str(folder.absolute()), files)


def _require_events(verification: Verification) -> None:
    unwritten = [
        verdict
        for verdict in verification.workers
        if verdict.violation is not None and verdict.violation.rule in (Rule.SHAPE, Rule.SEQ)
    ]
    replace(verification, workers=tuple(unwritten)).raise_for_violations()


def _export_error(tape: Tape, worker: int, error: Mapping[str, Any]) -> CapstanError:
    if error["error"] == "CAP-TAPE":
        time = None if error["time"] is None else Time(error["time"])
        return count_mismatch(tape, worker, error["seq"], time, error["stored"], error["promised"])
    code, message, hint = (str(error[name]) for name in ("error", "message", "hint"))
    return InvalidRequestError(code, f"worker {worker}, {message}", hint, worker=worker)


def require_new_folder(folder: Path) -> None:
    """Check that the folder does not exist, or is empty: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequestError(
            "CAP-EXISTS",
            f"{folder} already exists and is not empty",
            "name a new folder, or an empty one",
            folder=str(folder),
        )


def integer_stamps(tape: Tape) -> Column:
    """The column `stamp` of events: the elements of messages as arrays of integers, else null."""

    def numbers(time: Column) -> Column:
        return integers(time, tape.time_type)

    single = F.array(numbers(F.col("time")))
    stamp = F.coalesce(F.transform("stamp", numbers), single) if tape.stamped else single
    return F.when(F.col("kind") == "messages", stamp).alias("stamp")


def cell_place(tape: Tape) -> Column:
    """The column `place` of events and records: by it, worker and batch, they belong together."""
    # A struct is equal to another one also where both have nulls.
    place = F.struct("time", "stamp") if tape.stamped else F.col("time")
    return place.alias("place")


def integer_times(time_type: TimeType) -> tuple[Column, Column]:
    """The columns `time` and `updates` of events, with times as arrays of integers."""
    time = F.when(F.col("time").isNotNull(), integers(F.col("time"), time_type))
    updates = F.transform(
        "updates",
        lambda update: F.struct(
            integers(update.getField("time"), time_type).alias("time"),
            update.getField("diff").alias("diff"),
        ),
    )
    return time.alias("time"), updates.alias("updates")


def _rows(spark: SparkSession, tape: Tape, cut: Cut, workers: list[int], form: Form) -> DataFrame:
    """Events, each followed by its records, per worker in the recorded order.

    Columns: `worker, seq, kind` (null for a record), `stamp` and `updates` as integers, `records,
    pos, data`. Records without an event come first, with a null `seq`.
    """
    events = read_events(spark, tape, cut, workers=workers)
    records = read_records(spark, tape, cut, workers=workers)
    data = _data(payload_of(records.schema), form)
    cell = "worker", "batch", cell_place(tape)
    cells = events.where("kind = 'messages'").select(*cell, "seq")
    messages = records.select(*cell, "pos", data.alias("data"))
    messages = messages.join(cells, ["worker", "batch", "place"], "left").drop("batch", "place")
    _, updates = integer_times(tape.time_type)
    numbers = events.select("worker", "seq", "kind", integer_stamps(tape), updates, "records")
    rows = numbers.unionByName(messages, allowMissingColumns=True)
    order = [F.col("worker"), F.col("seq"), F.col("kind").isNull(), F.col("pos")]
    return rows.repartition("worker").sortWithinPartitions(*order)


def _data(payload: StructType, form: Form) -> Column:
    """The data of records in this form: typed columns, or JSON text."""
    if form.types is None:
        is_json = payload.names == ["json"]
        return F.col("data.json") if is_json else F.to_json("data", JSON)
    expected = payload_type(form.types.record)
    if [field.name for field in expected] != payload.names:
        raise InvalidRequestError(
            "CAP-TYPE",
            f"records of {form.types.record.name} have columns {[f.name for f in expected]}, but "
            f"the stream has {payload.names}",
            "give the type of its records, or export transcripts without a type",
        )
    return F.col("data")
