"""Import: recordings that another system made become the tape of a new stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.instrumentation import emit
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.destination_tape import enrol, form_tape
from capstan.interop.transfer.recording_format import Form, Recording
from capstan.interop.transfer.recording_reader import Survey
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.tape import Tape, append_events, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[..., Iterator[pa.RecordBatch]]
_CELL = ["worker", "batch"]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        stream: The stream.
        surveys: What is in each file, by worker.
        stood: Whether nothing had to be done: the same files were imported before.
    """

    stream: str
    surveys: tuple[Survey, ...]
    stood: bool = False

    def to_json(self) -> dict[str, object]:
        """The answer as one JSON object."""
        return {
            "stream": self.stream,
            "stood": self.stood,
            "events": sum(each.events for each in self.surveys),
            "records": sum(each.records for each in self.surveys),
            "valid": all(each.violation is None for each in self.surveys),
            "workers": [
                {
                    "worker": each.worker,
                    "file": each.path,
                    "events": each.events,
                    "records": each.records,
                    "violation": None if each.violation is None else each.violation[2],
                    "torn": each.torn,
                }
                for each in self.surveys
            ],
        }


def import_recordings(
    spark: SparkSession,
    lake: Lake,
    name: str,
    recordings: Sequence[Recording],
    form: Form,
    *,
    unchecked: bool = False,
) -> Imported:
    """Put recordings on the tape of a new stream, in one commit.

    All files are judged before anything is written. The same import again changes nothing; one
    that was cut off is finished by it.

    Args:
        spark: The session; its executors read the files.
        lake: Where the tape is made.
        name: The stream's name.
        recordings: A file per worker.
        form: How they are written.
        unchecked: Put also recordings on tape that break a rule, as they are; a verification of
            the stream then says where.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, a recording breaks a rule.
        InvalidRequestError: `CAP-BIGINT`, a number has no place on a tape; `CAP-EXISTS`, the stream
            is there already, with other recordings; `CAP-FILE`, there is no event; `CAP-TYPE`.
    """
    files = _files(spark, recordings)
    surveys = _surveyed(files, form)
    emit("import.survey", stream=name, files=len(surveys), events=sum(s.events for s in surveys))
    _require_any(surveys)
    _require_storable(surveys)
    if not unchecked:
        _require_sound(surveys)
    settings = _settings(form, surveys)
    tape = form_tape(spark, lake, name, form, settings, _other(name))
    if newest_cut(tape).commit >= 0:
        return Imported(name, surveys, stood=True)
    _write(spark, tape, files, form, surveys)
    return Imported(name, surveys)


def _files(spark: SparkSession, recordings: Sequence[Recording]) -> DataFrame:
    """A row per file, spread over the tasks: `worker INT, path STRING, named INT`."""
    rows = pa.table(
        {
            "worker": pa.array([each.worker for each in recordings], pa.int32()),
            "path": pa.array([each.path for each in recordings], pa.string()),
            "named": pa.array([each.named for each in recordings], pa.int32()),
        }
    )
    tasks = min(len(recordings), 4 * spark.sparkContext.defaultParallelism)
    return spark.createDataFrame(rows).repartition(tasks, "path")


def _read(files: DataFrame, form: Form, reader: Reader, schema: pa.Schema) -> DataFrame:
    return files.mapInArrow(partial(reader, form=form), from_arrow_schema(schema))


def _surveyed(files: DataFrame, form: Form) -> tuple[Survey, ...]:
    schema = pa.schema([("worker", pa.int32()), ("survey", pa.string())])
    rows = _read(files, form, recording_reader.survey, schema).collect()
    found = [Survey.from_text(row["survey"]) for row in rows]
    return tuple(sorted(found, key=lambda each: each.worker))


def _require_any(surveys: Sequence[Survey]) -> None:
    """Check that there is something to commit; and a stream takes no other files later on."""
    if any(each.events for each in surveys):
        return
    raise InvalidRequestError(
        "CAP-FILE",
        f"there is no event in {surveys[0].path}, nor in any other of {len(surveys)} recordings",
        "nothing was written; import them once there is one",
        file=surveys[0].path,
    )


def _require_storable(surveys: Iterable[Survey]) -> None:
    for each in surveys:
        if each.beyond is not None:
            position, number = each.beyond
            raise InvalidRequestError(
                "CAP-BIGINT",
                f"{each.path}, event {position}: no BIGINT holds {number}",
                "a tape keeps numbers from -2^63 to 2^63-1; `capstan check` judges the files as "
                "they are",
                file=each.path,
                seq=position,
                value=number,
            )


def _require_sound(surveys: Sequence[Survey]) -> None:
    broken = [each for each in surveys if each.violation is not None]
    if not broken:
        return
    violation = broken[0].violation
    assert violation is not None
    others = f"; so have {len(broken) - 1} more files" if len(broken) > 1 else ""
    raise CheckFailedError(
        "CAP-VIOLATION",
        f"{broken[0].path} breaks {violation[1]}: {violation[2]}{others}",
        "nothing was written; --unchecked puts it on tape as it is, to be looked into",
        file=broken[0].path,
        worker=broken[0].worker,
        seq=violation[0],
        rule=violation[1],
    )


def _settings(form: Form, surveys: Iterable[Survey]) -> dict[str, object]:
    hashes = {str(each.worker): each.sha256 for each in surveys}
    content = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    # Of thousands of files the tape keeps one hash, not all.
    source = {"format": str(form.format), "files": len(hashes), "sha256": content}
    return {"fixed": {"domain": "import", "import": {**form.to_json(), **source}}, "free": {}}


def _other(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-EXISTS",
        f"there is a stream {name} already, which did not come from these files",
        "import them under another name",
        stream=name,
    )


def _write(
    spark: SparkSession, tape: Tape, files: DataFrame, form: Form, surveys: Sequence[Survey]
) -> None:
    records = _read(files, form, recording_reader.records, recording_reader.record_schema(form))
    delta.append(records, tape.paths.records, txn=Txn(f"import:{tape.name}", 0))
    emit("import.records", stream=tape.name)
    enrol(tape, (each.worker for each in surveys))
    emit("import.workers", stream=tape.name)
    note = {"stream": tape.name, "import": str(form.format)}
    events = _read(
        files, form, recording_reader.events, recording_reader.event_schema(form.time_type)
    )
    stored = delta.load(spark, tape.paths.records)
    version = append_events(tape, counted_events(events, stored, 0), 0, note)
    emit("import.events", stream=tape.name)
    _require_all(tape, version, surveys)


def counted_events(events: DataFrame, stored: DataFrame, commit: int) -> DataFrame:
    """Events with counts and content hashes of the records as they are stored.

    Args:
        events: Columns as `reading.event_schema` says; each worker's batches are its own.
        stored: The rows of `records` that belong to them.
        commit: The ordinal of their commit.

    Returns:
        The columns of `events`, in no order.
    """
    h1, h2 = record_hashes(stored)
    cells = stored.groupBy(*_CELL).agg(
        F.count(F.lit(1)).alias("stored"), fingerprint(h1, h2).alias("found")
    )
    zero = F.struct(F.lit(0).cast("bigint").alias("h1"), F.lit(0).cast("bigint").alias("h2"))
    messages = F.col("kind") == "messages"
    return events.join(cells, _CELL, "left").select(
        "worker",
        "seq",
        "kind",
        "time",
        "updates",
        "batch",
        F.lit(commit).cast("bigint").alias("commit"),
        F.when(messages, F.coalesce("stored", F.lit(0))).alias("records"),
        F.when(messages, F.coalesce("found", zero)).alias("fingerprint"),
    )


def _require_all(tape: Tape, version: int, surveys: Iterable[Survey]) -> None:
    """Check that what was surveyed is what was stored: files may change while they are read."""
    events, records = index.added_counts(tape, version)
    promised = {each.worker: each.events for each in surveys if each.events}
    if dict(events) != promised or records != sum(each.records for each in surveys):
        raise SystemFailureError(
            "CAP-FEED",
            f"stream {tape.name}: the files had {sum(promised.values())} events, and "
            f"{events.total()} of {records} records were stored",
            "the files changed while they were read; import them again under another name",
            stream=tape.name,
        )
