"""One stream's tape: opening and making it, the commits of its index, its pruned reads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from capstan.core.times import TimeType
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError, SystemFailureError
from capstan.storage import arrow_writer, delta
from capstan.storage.data_files import MAX_DIRECT, columns_of, files_of, is_plain, read_few
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake, TapePaths, is_table
from capstan.storage.table_creation import create_table
from capstan.storage.tape import schema
from capstan.storage.tape.region_sql import region_sql, workers_sql

if TYPE_CHECKING:
    import deltalake
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Tape:
    """A stream's tables and what is declared of them.

    Attributes:
        name: The stream's name.
        paths: Where its tables lie.
        time_type: The coordinates of its times.
        settings: What capture wrote down when it made or last changed the tape, as JSON.
    """

    name: str
    paths: TapePaths
    time_type: TimeType
    settings: Mapping[str, object]

    @property
    def columns(self) -> tuple[str, ...]:
        """The SQL names of the time's coordinates in `events`, `records` and `late`."""
        return tuple(f"time.{name}" for name in self.time_type.names)

    @property
    def step(self) -> int:
        """Of what length the last coordinate of each time is a whole multiple: of `every`, or 1.

        In microseconds; 1 of times that are counted, or that came with a recording.
        """
        time = self._fixed("time")
        return int(str(time["every_us"])) if time else 1

    @property
    def time_column(self) -> str | None:
        """The column that the times of records were read from, where it is one by its name."""
        column = self._fixed("time").get("column")
        return None if column is None else str(column)

    @property
    def worker_column(self) -> str | None:
        """The column whose value is the worker's label, where there is one."""
        column = self._fixed("workers").get("column")
        return None if column is None else str(column)

    @property
    def late_policy(self) -> str | None:
        """What its captures do with records that come late; None of what came otherwise."""
        free = self.settings.get("free")
        policy = free.get("late") if isinstance(free, Mapping) else None
        return None if policy is None else str(policy)

    def _fixed(self, what: str) -> Mapping[str, object]:
        fixed = self.settings.get("fixed")
        found = fixed.get(what) if isinstance(fixed, Mapping) else None
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Cut:
    """A point of the tape's history: events up to `commit`, and the records that they name.

    Attributes:
        commit: The ordinal of the last commit, -1 for an empty tape.
        batch: The last micro-batch of those commits, -1 if there is none.
    """

    commit: int
    batch: int


def open_tape(lake: Lake, name: str, events: deltalake.DeltaTable | None = None) -> Tape:
    """Open the tape of stream `name`, without a JVM.

    Args:
        lake: The lake.
        name: The stream's name.
        events: The table of its index, where that is open already.

    Raises:
        InvalidRequestError: `CAP-STREAM` when there is no such stream, naming those that are there.
        SystemFailureError: `CAP-FORMAT` when the tape was written by a newer Capstan.
    """
    lake.require()
    paths = lake.stream(name)
    if events is None and not is_table(paths.events):
        known = ", ".join(lake.streams()) or "none"
        raise InvalidRequestError(
            "CAP-STREAM",
            f"there is no stream {name} in {lake.root} (there: {known})",
            "capture it first, or see `capstan streams`",
            stream=name,
        )
    properties = (events or delta.open_table(paths.events)).metadata().configuration
    version = properties.get("capstan.format", "")
    if not version.isdecimal() or not 1 <= int(version) <= schema.FORMAT:
        raise SystemFailureError(
            "CAP-FORMAT",
            f"stream {name} is in format {version or 'unknown'}, this reads 1 to {schema.FORMAT}",
            "use the Capstan that wrote it, or a newer one",
            stream=name,
        )
    time_type = TimeType.from_json(json.loads(properties["capstan.time"]))
    return Tape(name, paths, time_type, json.loads(properties.get("capstan.settings", "{}")))


def require_streams(lake: Lake, names: Iterable[str]) -> None:
    """Check that these streams are on tape; of one whose tape cannot be read nothing is said.

    Raises:
        InvalidRequestError: `CAP-STREAM`.
    """
    for name in names:
        with suppress(SystemFailureError):
            open_tape(lake, name)


def format_of(events: str) -> int:
    """The version of the format that a tape has, which can be read."""
    return int(delta.open_table(events).metadata().configuration["capstan.format"])


# Files are skipped by what says where a record belongs. To keep the least and the greatest of every
# column of the payload as well takes a tenth of a capture.
_PLACED = {"delta.dataSkippingStatsColumns": "worker,batch,time,pos"}


def create_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    time_type: TimeType,
    payload: StructType,
    settings: Mapping[str, object],
) -> Tape:
    """Make the tables of a new tape; `events` last, so that a half-made tape does not count."""
    paths = lake.stream(name)
    append_only = {"delta.appendOnly": "true"}
    arrow_writer.create_table(paths.workers, schema.WORKERS, properties=append_only)
    records = schema.records_schema(time_type, payload)
    create_table(spark, paths.records, records, properties=_PLACED)
    create_table(spark, paths.late, schema.late_schema(time_type, payload))
    properties = {
        **append_only,
        "capstan.format": str(schema.FORMAT),
        "capstan.stream": name,
        "capstan.time": json.dumps(time_type.to_json()),
        "capstan.settings": json.dumps(settings, sort_keys=True),
    }
    arrow_writer.create_table(paths.events, schema.events_schema(time_type), properties=properties)
    return open_tape(lake, name)


def change_settings(tape: Tape, settings: Mapping[str, object]) -> Tape:
    """Write down changed settings; the caller has made sure that no batch is half done."""
    text = json.dumps(settings, sort_keys=True)
    arrow_writer.set_properties(tape.paths.events, {"capstan.settings": text})
    return Tape(tape.name, tape.paths, tape.time_type, settings)


def stored_payload(tape: Tape) -> StructType:
    """The stream's own columns, as the tape has them now."""
    return schema.payload_of(columns_of(delta.open_table(tape.paths.records)))


def newest_roster(tape: Tape) -> int:
    """The number under which workers were last written down; -1 where none were."""
    last = delta.open_table(tape.paths.workers).transaction_version(f"roster:{tape.name}")
    return -1 if last is None else last


def append_workers(tape: Tape, labels: Mapping[int, str], commit: int, *, number: int) -> bool:
    """Write down workers before the events that name them, in one commit.

    Args:
        tape: The tape.
        labels: What the workers stand for, by their numbers.
        commit: The commit that opens them.
        number: The number of this writing; of two under one number one lands.

    Returns:
        False when workers were written down under this number or a later one.
    """
    rows = [
        {"worker": worker, "label": label, "opened_commit": commit}
        for worker, label in labels.items()
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_writer.arrow_schema(schema.WORKERS))
    return arrow_writer.append(tape.paths.workers, table, txn=Txn(f"roster:{tape.name}", number))


def append_events(tape: Tape, frame: DataFrame, commit: int, note: Mapping[str, object]) -> int:
    """Append `frame`, events of one commit, as ordinal `commit`: the point of no return.

    All writers of a tape number their commits under one transaction identity, so of two that
    write the same ordinal one lands, and cuts stay unambiguous.

    Returns:
        The version of the index that has them.

    Raises:
        FencedError: `CAP-FENCED` when another writer has committed this ordinal.
    """
    ordinal = Txn(f"tape:{tape.name}", commit)
    written = delta.append(frame, tape.paths.events, txn=ordinal, note=note)
    if written is None:
        raise fenced(tape, commit)
    return written.version


def append_few_events(
    tape: Tape, events: pa.Table, commit: int, note: Mapping[str, object]
) -> None:
    """The same as `append_events`, of events that are at hand: no JVM is needed."""
    ordinal = Txn(f"tape:{tape.name}", commit)
    if not arrow_writer.append(tape.paths.events, events, txn=ordinal, note=note):
        raise fenced(tape, commit)


def fenced(tape: Tape, commit: int) -> FencedError:
    """The error of a writer whose commit another process has written."""
    return FencedError(
        "CAP-FENCED",
        f"stream {tape.name}: commit {commit} was written by another process",
        "another capture of this stream is running, or has taken over; run it again",
        stream=tape.name,
    )


def newest_cut(tape: Tape) -> Cut:
    """The newest cut, from the file statistics of `events` alone."""
    actions = delta.open_table(tape.paths.events).get_add_actions(flatten=True)
    commits = delta.stat(actions, "max.commit")
    batches = delta.stat(actions, "max.batch")
    return Cut(max(commits, default=-1), max(batches, default=-1))


def read_events(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    *,
    workers: Collection[int] | None = None,
    after: int = -1,
) -> DataFrame:
    """The index at a cut: one row per event, columns of `events`, no order promised.

    Args:
        spark: The session.
        tape: The tape.
        cut: Events of its commits and earlier ones.
        workers: Only these workers; None for all.
        after: Only events of commits later than this ordinal.
    """
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
    """The records on tape at a cut: columns of `records`, no order promised.

    Rows of a micro-batch that has no events commit yet are not on the tape and are left out.
    """
    table = delta.open_table(tape.paths.records)
    chosen = files_of(table, tape.time_type, workers=workers, batch=cut.batch, region=region)
    if len(chosen) <= MAX_DIRECT and is_plain(table):
        frame = read_few(spark, tape.paths.records, table, chosen)
    else:
        frame = delta.load(spark, tape.paths.records)
    frame = frame.where(f"batch <= {cut.batch}")
    if workers is not None:
        frame = frame.where(workers_sql(workers, "worker"))
    if region is not None:
        frame = frame.where(region_sql(tape.time_type, region, tape.columns))
    return frame
