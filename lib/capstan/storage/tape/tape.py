"""The tape of a stream: creation, opening, commits to its index, and pruned reads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.times import TimeType
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError, RangeLockedError, SystemFailureError
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.commits import Note
from capstan.storage.delta.data_files import columns_of, read_with
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import Lake, TapePaths, is_table
from capstan.storage.tape import schema
from capstan.storage.tape.bounds import files_of
from capstan.storage.tape.region_sql import region_sql, stamp_sql, workers_sql
from capstan.storage.tape.settings import TapeSettings


@dataclass(frozen=True, slots=True)
class Tape:
    """A stream's tables and settings."""

    name: str
    paths: TapePaths
    time_type: TimeType
    settings: TapeSettings  # as of creation or the last change
    stamped: bool = False  # whether it can have messages under several times, or under none

    @property
    def identity(self) -> str:
        """The identity that distinguishes it from other tapes of the same name."""
        return str(delta.open_table(self.paths.events).metadata().id)

    @property
    def columns(self) -> tuple[str, ...]:
        """The SQL names of the time's coordinates in `events`, `records` and `late`."""
        return tuple(f"time.{name}" for name in self.time_type.names)

    @property
    def stamp(self) -> tuple[str, ...]:
        """The column of stamps in `events` and `records`, if the tape has it."""
        return ("stamp",) if self.stamped else ()

    @property
    def step(self) -> int:
        """The unit of all times in the last coordinate; 1 for counted times and imported tapes.

        Otherwise it is the declared `every` in microseconds.
        """
        return int(self.settings.time.get("every_us", 1))

    @property
    def time_column(self) -> str | None:
        """The column that the times of records come from, if they come from one by name."""
        return self.settings.time.get("column")

    @property
    def worker_column(self) -> str | None:
        """The column whose values are the workers' labels, if there is one."""
        return self.settings.workers.get("column")

    @property
    def late_policy(self) -> str | None:
        """The late policy of its captures; None for imported tapes."""
        return self.settings.free.get("late")


@dataclass(frozen=True, slots=True)
class Cut:
    """A point in the tape's history: all events up to `commit`, with their records."""

    commit: int  # the ordinal, -1 for an empty tape
    batch: int  # the last micro-batch of those commits, -1 for none


def open_tape(
    lake: Lake,
    name: str,
    events: OpenedTable | None = None,
    *,
    stamps: bool = False,
    what: str = "this",
) -> Tape:
    """Open the tape of a stream, without a JVM.

    Only for who takes `stamps`, it may have messages under several times, or under none, and times
    that are pairs; otherwise `what` is refused.
    """
    paths = lake.stream(name)
    if events is None and not is_table(paths.events):
        lake.require()
        known = ", ".join(lake.streams()) or "none"
        raise InvalidRequestError(
            "CAP-STREAM",
            f"there is no stream {name} in {lake.root} (known: {known})",
            "capture it first, or see `capstan streams`",
            stream=name,
        )
    table = events or delta.open_table(paths.events)
    properties, version = table.metadata().configuration, _version_of(table)
    if not version.isdecimal() or not 1 <= int(version) <= schema.SETTLED_FORMAT:
        raise SystemFailureError(
            "CAP-FORMAT",
            f"stream {name} has format {version or 'unknown'}; this Capstan reads formats 1 to "
            f"{schema.SETTLED_FORMAT}",
            "use the Capstan that wrote the tape, or a newer one",
            stream=name,
        )
    time_type = TimeType.from_json(json.loads(properties["capstan.time"]))
    settings = TapeSettings.parse(properties.get("capstan.settings", "{}"))
    tape = Tape(name, paths, time_type, settings, int(version) in schema.STAMPED_FORMATS)
    if not stamps:
        require_single_times(tape, what)
    return tape


def require_single_times(tape: Tape, what: str) -> None:
    """Check that all messages of a tape have one time, no pair: all that `what` works on."""
    require_products(tape, what)
    if tape.stamped:
        raise InvalidRequestError(
            "CAP-STAMP",
            f"stream {tape.name} has messages under several times, or under none; {what} works on "
            "messages under one time each",
            "such a stream can be verified, exported, served, and copied into a table by a replay",
            stream=tape.name,
        )


_COPY = "such a stream can be verified, exported, served, re-captured, and copied by a replay"


def require_products(tape: Tape, what: str, hint: str = _COPY) -> None:
    """Check that times of a tape are ordered coordinate by coordinate, as `what` needs."""
    if tape.time_type.order.lexicographic:
        raise InvalidRequestError(
            "CAP-TIME-TYPE",
            f"stream {tape.name} has pairs as times, ordered by the first part that differs; "
            f"{what} works on times that are ordered coordinate by coordinate",
            hint,
            stream=tape.name,
        )


def require_streams(lake: Lake, names: Iterable[str]) -> None:
    """Check that these streams have a tape; unreadable tapes are ignored."""
    for name in names:
        with suppress(SystemFailureError):
            open_tape(lake, name, stamps=True)


def _version_of(events: OpenedTable) -> str:
    version = events.metadata().configuration.get("capstan.format", "")
    return str(version)


def format_of(events: str) -> int:
    """The format version of a tape, which must be readable."""
    return int(delta.open_table(events).metadata().configuration["capstan.format"])


# Files are pruned by position only. Bounds for all columns of the payload would take a tenth of a
# capture's time.
_INDEXED = {"delta.dataSkippingStatsColumns": "worker,batch,time,pos"}


def create_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    time_type: TimeType,
    payload: StructType,
    settings: TapeSettings,
    *,
    stamped: bool = False,
) -> Tape:
    """Create the tables of a tape; `events` last, so that an unfinished tape does not exist."""
    paths, pairs = lake.stream(name), time_type.order.lexicographic
    stamped, version = stamped or pairs, schema.STAMPED_FORMAT if stamped else schema.FORMAT
    append_only = {"delta.appendOnly": "true"}
    arrow_writer.create_table(paths.workers, schema.WORKERS, properties=append_only)
    records = schema.records_schema(time_type, payload, stamped=stamped)
    create_table(spark, paths.records, records, properties=_INDEXED)
    create_table(spark, paths.late, schema.late_schema(time_type, payload))
    properties = {
        **append_only,
        "capstan.format": str(schema.PAIRS_FORMAT if pairs else version),
        "capstan.stream": name,
        "capstan.time": json.dumps(time_type.to_json()),
        "capstan.settings": settings.to_text(),
    }
    events = schema.events_schema(time_type, stamped=stamped)
    arrow_writer.create_table(paths.events, events, properties=properties)
    return open_tape(lake, name, stamps=True)


def change_settings(tape: Tape, settings: TapeSettings) -> Tape:
    """Store changed settings; the caller has checked that no batch is unfinished."""
    arrow_writer.set_properties(tape.paths.events, {"capstan.settings": settings.to_text()})
    return replace(tape, settings=settings)


def stored_payload(tape: Tape) -> StructType:
    """The stream's own columns on the tape."""
    return schema.payload_of(columns_of(delta.open_table(tape.paths.records)))


def newest_roster(tape: Tape) -> int:
    """The number of the last write of workers; -1 without one."""
    last = delta.open_table(tape.paths.workers).transaction_version(f"roster:{tape.name}")
    return -1 if last is None else last


def replaced(tape: Tape, checkpoint: str) -> Txn:
    """The transaction that shuts out the writer with a checkpoint, in each table of a tape."""
    return Txn(f"replaced:{tape.name}:{checkpoint}", 0)


def shut_out(spark: SparkSession, tape: Tape, checkpoint: str) -> None:
    """Shut out the writer with a checkpoint, which may be amid a batch; idempotent."""
    # The index comes first: from then on none of its batches can count.
    paths, txn = tape.paths, replaced(tape, checkpoint)
    for path in (paths.events, paths.workers, paths.feed):
        if is_table(path):
            arrow_writer.commit_transaction(path, txn)
    for path in (paths.records, paths.late):
        empty = spark.createDataFrame([], delta.load(spark, path).schema)
        delta.append(empty, path, txn=txn)


def append_workers(
    tape: Tape, labels: Mapping[int, str], commit: int, *, number: int, unless: Txn | None = None
) -> bool:
    """Record workers in one commit, before the events that refer to them.

    False if workers were recorded under this `number` or a later one, or the writer was shut out by
    `unless`. Of two writes with one number only one succeeds.
    """
    rows = [
        {"worker": worker, "label": label, "opened_commit": commit}
        for worker, label in labels.items()
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_writer.arrow_schema(schema.WORKERS))
    txn = Txn(f"roster:{tape.name}", number)
    return arrow_writer.append(tape.paths.workers, table, txn=txn, unless=unless)


def append_events(
    tape: Tape, frame: DataFrame, commit: int, note: Note, unless: Txn | None = None
) -> int:
    """Append the events of commit `commit`, the point of no return; the version of the index."""
    # All writers of a tape number their commits under one transaction identity. Of two writes of
    # the same ordinal only one succeeds, so that cuts stay unambiguous.
    ordinal = Txn(f"tape:{tape.name}", commit)
    written = delta.append(frame, tape.paths.events, txn=ordinal, note=note, unless=unless)
    if written is None:
        raise fenced(tape, commit)
    return written.version


def append_few_events(
    tape: Tape, events: pa.Table, commit: int, note: Note, unless: Txn | None = None
) -> None:
    """Append events as `append_events` does, from Arrow and without a JVM."""
    ordinal = Txn(f"tape:{tape.name}", commit)
    if not arrow_writer.append(tape.paths.events, events, txn=ordinal, note=note, unless=unless):
        raise fenced(tape, commit)


def fenced(tape: Tape, commit: int) -> FencedError:
    """The error of a writer whose commit was written by another process."""
    return FencedError(
        "CAP-FENCED",
        f"stream {tape.name}: commit {commit} was written by another process",
        "another capture of this stream is running or has taken over; repeat the command",
        stream=tape.name,
    )


def newest_cut(tape: Tape) -> Cut:
    """The newest cut, from the file statistics of `events` alone."""
    events = delta.open_table(tape.paths.events)
    if not tape.stamped and _version_of(events) == str(schema.STAMPED_FORMAT):
        # What was opened as a tape of single times would be read as one.
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"stream {tape.name} has got its first messages under several times, or under none, "
            "while it was read",
            "repeat the command",
            stream=tape.name,
        )
    files = events.files()
    commits, batches = (delta.stat(files, f"max.{name}") for name in ("commit", "batch"))
    return Cut(max(commits, default=-1), max(batches, default=-1))


def read_events(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    *,
    workers: Collection[int] | None = None,
    after: int = -1,
) -> DataFrame:
    """The index at a cut: one row per event with the columns of `events`, in no order."""
    frame = delta.load(spark, tape.paths.events).where(f"commit <= {cut.commit}")
    if after >= 0:
        frame = frame.where(f"commit > {after}")
    if workers is not None:
        frame = frame.where(workers_sql(workers, "worker"))
    return frame


def read_records(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    *,
    workers: Collection[int] | None = None,
    region: Region | None = None,
) -> DataFrame:
    """The records on tape at a cut, with the columns of `records`, in no order."""
    # Rows of a micro-batch without an events commit are not on the tape and are left out.
    table = delta.open_table(tape.paths.records)
    chosen = files_of(table, tape.time_type, workers=workers, batch=cut.batch, region=region)
    frame = read_with(spark, tape.paths.records, table, chosen).where(f"batch <= {cut.batch}")
    if workers is not None:
        frame = frame.where(workers_sql(workers, "worker"))
    return frame if region is None else placed(frame, tape, region)


def placed(frame: DataFrame, tape: Tape, region: Region) -> DataFrame:
    """The rows of `events` or `records` in a region, with the time that they have in it."""
    if not tape.stamped or tape.time_type.is_total or region.is_everything:
        return frame.where(region_sql(tape.time_type, region, tape.columns))
    condition, time = stamp_sql(tape.time_type, region)
    return frame.where(condition).withColumn("time", F.expr(time))
