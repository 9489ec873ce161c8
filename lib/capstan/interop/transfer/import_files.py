"""Import: turn recordings of another system into the tape of a new stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.destination_tape import add_workers, open_or_create_tape
from capstan.interop.transfer.recording_format import Form, Recording
from capstan.interop.transfer.recording_reader import FileSurvey
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Tape, append_events, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[..., Iterator[pa.RecordBatch]]
_CELL = ["worker", "batch"]
_FILES = pa.schema([("worker", pa.int32()), ("path", pa.string()), ("named", pa.int32())])


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import; `unchanged` if the same files had been imported before."""

    stream: str
    surveys: tuple[FileSurvey, ...]
    form: Form
    unchanged: bool = False

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        return {
            "stream": self.stream,
            "unchanged": self.unchanged,
            "timely": {"release": str(self.form.release), "assumed": self.form.assumed},
            "events": sum(survey.events for survey in self.surveys),
            "records": sum(survey.records for survey in self.surveys),
            "valid": all(survey.violation is None for survey in self.surveys),
            "workers": [
                {
                    "worker": survey.worker,
                    "file": survey.path,
                    "events": survey.events,
                    "records": survey.records,
                    "violation": None if survey.violation is None else survey.violation.text,
                    "torn": survey.torn,
                }
                for survey in self.surveys
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
) -> ImportResult:
    """Put recordings on the tape of a new stream, in one commit.

    All files are checked before anything is written. Repeating an import changes nothing; after an
    interruption it finishes the work. With `unchecked`, recordings that break a rule are imported
    unchanged; a verification of the stream then reports them.
    """
    form.require_tape()
    files = _files(spark, recordings)
    surveys = _surveyed(files, form)
    emit("import.survey", stream=name, files=len(surveys), events=sum(s.events for s in surveys))
    _require_any(surveys)
    _require_storable(surveys)
    if not unchecked:
        _require_sound(surveys)
    settings = _settings(form, surveys)
    stamped = any(survey.stamped for survey in surveys)
    mismatch = _exists_error(name)
    tape = open_or_create_tape(spark, lake, name, form, settings, mismatch, stamped=stamped)
    if newest_cut(tape).commit >= 0:
        return ImportResult(name, surveys, form, unchanged=True)
    _write(spark, tape, files, form, surveys)
    return ImportResult(name, surveys, form)


def _files(spark: SparkSession, recordings: Sequence[Recording]) -> DataFrame:
    """One row per file, spread over the tasks: `worker INT, path STRING, named INT`."""
    rows = pa.Table.from_pylist([asdict(recording) for recording in recordings], _FILES)
    tasks = min(len(recordings), 4 * spark.sparkContext.defaultParallelism)
    return spark.createDataFrame(rows).repartition(tasks, "path")


def _read(
    files: DataFrame, form: Form, reader: Reader, schema: pa.Schema, **options: bool
) -> DataFrame:
    return files.mapInArrow(partial(reader, form=form, **options), from_arrow_schema(schema))


def _surveyed(files: DataFrame, form: Form) -> tuple[FileSurvey, ...]:
    schema = pa.schema([("survey", pa.string())])
    rows = _read(files, form, recording_reader.survey, schema).collect()
    surveys = [recording_reader.SURVEY.validate_json(row["survey"]) for row in rows]
    return tuple(sorted(surveys, key=lambda survey: survey.worker))


def _require_any(surveys: Sequence[FileSurvey]) -> None:
    """Check that there is an event to commit: the stream will not take other files later."""
    if any(survey.events for survey in surveys):
        return
    raise InvalidRequestError(
        "CAP-FILE",
        f"there is no event in {surveys[0].path} nor in any other of the {len(surveys)} recordings",
        "nothing was written; import the files once they hold an event",
        file=surveys[0].path,
    )


def _require_storable(surveys: Iterable[FileSurvey]) -> None:
    for survey in surveys:
        if survey.oversized is not None:
            position, number = survey.oversized
            raise InvalidRequestError(
                "CAP-BIGINT",
                f"{survey.path}, event {position}: {number} does not fit a BIGINT",
                "a tape holds numbers from -2^63 to 2^63-1; `capstan check` checks the files as "
                "they are",
                file=survey.path,
                seq=position,
                value=number,
            )


def _require_sound(surveys: Sequence[FileSurvey]) -> None:
    broken = [survey for survey in surveys if survey.violation is not None]
    if not broken:
        return
    violation = broken[0].violation
    assert violation is not None
    others = f"; so do {len(broken) - 1} more files" if len(broken) > 1 else ""
    raise CheckFailedError(
        "CAP-VIOLATION",
        f"{broken[0].path} breaks {violation.rule}: {violation.text}{others}",
        "nothing was written; --unchecked imports it unchanged, for inspection",
        file=broken[0].path,
        worker=broken[0].worker,
        seq=violation.seq,
        rule=violation.rule,
    )


def _settings(form: Form, surveys: Iterable[FileSurvey]) -> TapeSettings:
    hashes = {str(survey.worker): survey.sha256 for survey in surveys}
    content = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    # For thousands of files the tape keeps one hash instead of all.
    source = {"format": str(form.format), "files": len(hashes), "sha256": content}
    return TapeSettings({"domain": "import", "import": {**form.to_json(), **source}})


def _exists_error(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-EXISTS",
        f"stream {name} already exists and did not come from these files",
        "import them under another name",
        stream=name,
    )


def _write(
    spark: SparkSession, tape: Tape, files: DataFrame, form: Form, surveys: Sequence[FileSurvey]
) -> None:
    stamped = tape.stamped
    schema = recording_reader.record_schema(form, stamped=stamped)
    records = _read(files, form, recording_reader.records, schema, stamped=stamped)
    delta.append(records, tape.paths.records, txn=Txn(f"import:{tape.name}", 0))
    emit("import.records", stream=tape.name)
    add_workers(tape, (survey.worker for survey in surveys))
    emit("import.workers", stream=tape.name)
    note = {"stream": tape.name, "import": str(form.format)}
    schema = recording_reader.event_schema(form.time_type, stamped=stamped)
    events = _read(files, form, recording_reader.events, schema, stamped=stamped)
    stored = delta.load(spark, tape.paths.records)
    version = append_events(tape, counted_events(events, stored, 0), 0, note)
    emit("import.events", stream=tape.name)
    _require_all(tape, version, surveys)


def counted_events(events: DataFrame, stored: DataFrame, commit: int) -> DataFrame:
    """Events, batches by worker, with counts and hashes of their `stored` rows; in no order."""
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
        *(name for name in events.columns if name == "stamp"),
    )


def _require_all(tape: Tape, version: int, surveys: Iterable[FileSurvey]) -> None:
    """Check that the stored rows match the survey: files may change while they are read."""
    events, records = index.added_counts(tape, version)
    promised = {survey.worker: survey.events for survey in surveys if survey.events}
    if dict(events) != promised or records != sum(survey.records for survey in surveys):
        raise SystemFailureError(
            "CAP-FEED",
            f"stream {tape.name}: the files had {sum(promised.values())} events, but "
            f"{events.total()} events and {records} records were stored",
            "the files changed during the import; import them again under another name",
            stream=tape.name,
        )
