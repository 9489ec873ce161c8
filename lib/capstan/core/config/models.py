"""Models of streams and targets in the declaration file."""

from __future__ import annotations

import re
from dataclasses import field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass

from capstan.core.config.fields import (
    CONFIG,
    Column,
    Columns,
    Declared,
    Fields,
    Instant,
    Labels,
    Length,
    PositiveLength,
    References,
    Schedule,
    SparkSettings,
    TableOrPath,
    Text,
    Uri,
    name_of,
    without_problem,
)
from capstan.core.config.row_checks import Checks
from capstan.core.config.sources import FILE_FORMATS, Source, TableName
from capstan.core.config.sql_rules import problem_with_expression

_YEAR_ONE = datetime(1, 1, 1, tzinfo=UTC)
_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_MOST_CLUSTERED = 4


SCHEMA = Path(__file__).with_name("streams.schema.json")
"""The JSON Schema of these models, by which editors complete and check `streams.yaml`."""

MAX_WORKERS = 10_000
"""The maximum number of workers of a stream: each has events of its own in every micro-batch."""


class LatePolicy(StrEnum):
    """The treatment of a record whose time is already complete."""

    DEAD_LETTER = "dead-letter"
    """Keep it, raw, in the tape's `late` table."""
    ADVANCE = "advance"
    """Send it at the least upper bound of its time and the frontier."""
    FAIL = "fail"
    """Fail the capture before anything of the micro-batch is written."""


class Watermark(StrEnum):
    """The scope of the greatest event time that moves a worker's frontier."""

    STREAM = "stream"
    WORKER = "worker"


class TimeUnit(StrEnum):
    """The unit of integers that count the time since 1970-01-01 UTC."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"

    @property
    def micros(self) -> int:
        """Its length in microseconds."""
        return {"s": 1_000_000, "ms": 1_000, "us": 1}[self]


class Mode(StrEnum):
    """The way a replay changes its target."""

    REPLACE = "replace"
    APPEND = "append"
    MERGE = "merge"


def _tagger(key: str, known: tuple[str, ...], problem: str) -> Discriminator:
    """A discriminator by `key`. Its tags are in brackets, to distinguish them from keys."""

    def tag(value: object) -> str | None:
        text = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return f"<{text}>" if text in known else None

    return Discriminator(
        tag,
        custom_error_type="choice",
        custom_error_message=problem,
        custom_error_context={"key": key},
    )


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByKey(Declared):
    """Workers `0` to `count - 1`, by the hash of key columns.

    Attributes:
        columns: The key.
        count: The number of workers, 1 to `MAX_WORKERS`.
    """

    by: Literal["key"] = field(default="key", kw_only=True)
    columns: Columns
    count: Annotated[int, Field(ge=1, le=MAX_WORKERS)]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByColumn(Declared):
    """One worker per value of a column.

    Attributes:
        column: The column; its value, as text, is the worker's label.
        labels: All possible values in the order of their workers; a record with another value
            goes to `late` as `unknown-worker`. None to open a worker for each new value, up to
            `MAX_WORKERS`.
    """

    by: Literal["column"] = field(default="column", kw_only=True)
    column: Column
    labels: Labels | None = None


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByPartition(Declared):
    """One worker per partition of the source.

    Attributes:
        column: The column with the partition. None for Kafka, where it is `topic/partition`, and
            for files and Delta tables, where it is the folder of a file.
    """

    by: Literal["partition"] = field(default="partition", kw_only=True)
    column: Column | None = None


@dataclass(frozen=True, slots=True, config=CONFIG)
class EpochTime(Declared):
    """Times with one coordinate, `epoch` BIGINT: the number of the micro-batch."""

    domain: Literal["epoch"] = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class EventTime(Declared):
    """Times with the record's own time, truncated, as coordinate `event` TIMESTAMP.

    In the bitemporal domain `epoch, event` a coordinate `epoch` BIGINT precedes it: the number of
    the micro-batch, which tells when a record became known.

    Attributes:
        domain: `event`, or `epoch, event`.
        every: Event times are truncated to multiples of this length since 1970-01-01 UTC.
        column: The column with the event time; or
        expression: An SQL expression over the source's columns. Exactly one of the two is set.
        unit: The unit if its values are integers, which count the time since 1970-01-01 UTC: `s`,
            `ms` or `us`. None for times and text.
        lateness: The distance of the watermark from the greatest event time, zero or more. The
            default is zero. In the domain `epoch, event` there is no watermark by default, and no
            record is late.
        max_ahead: The maximum distance of a record beyond the times before it; None for no bound.
        idle_after: After this time without records the clock moves the watermark. It then stays
            this long plus `lateness` behind the present. None to wait for records.
        minimum: The start of the stream in UTC; earlier records go to `late`.
        watermark: `worker` by default for workers by partition, else `stream`.
    """

    domain: Literal["event", "epoch, event"] = "event"
    every: PositiveLength
    column: Column | None = None
    expression: Annotated[Text, without_problem(problem_with_expression)] | None = None
    unit: TimeUnit | None = None
    lateness: Length | None = None
    max_ahead: PositiveLength | None = None
    idle_after: PositiveLength | None = None
    minimum: Instant = _YEAR_ONE
    watermark: Watermark | None = None

    @property
    def bitemporal(self) -> bool:
        """Whether times also have the number of the micro-batch."""
        return self.domain == "epoch, event"

    def __post_init__(self) -> None:
        if self.lateness is None and not self.bitemporal:
            object.__setattr__(self, "lateness", timedelta())

    @model_validator(mode="after")
    def _one_source(self) -> EventTime:
        if (self.column is None) == (self.expression is None):
            raise ValueError("needs either column or expression, and not both")
        if self.idle_after is not None and self.lateness is None:
            raise ValueError("has idle_after but no lateness, so there is no watermark to move")
        return self


Workers = Annotated[
    Annotated[ByKey, Tag("<key>")]
    | Annotated[ByColumn, Tag("<column>")]
    | Annotated[ByPartition, Tag("<partition>")],
    _tagger("by", ("key", "column", "partition"), "must be one of: key, column or partition"),
]
TimeDomain = Annotated[
    Annotated[EpochTime, Tag("<epoch>")]
    | Annotated[EventTime, Tag("<event>")]
    | Annotated[EventTime, Tag("<epoch, event>")],
    _tagger(
        "domain",
        ("epoch", "event", "epoch, event"),
        "must be one of: epoch, event or 'epoch, event'",
    ),
]


@dataclass(frozen=True, slots=True, config=CONFIG)
class Partitions(Declared):
    """Intervals of a stream's event times of which Airflow is told once they are complete.

    Attributes:
        every: Their length; they are counted from 1970-01-01 UTC.
        workers: Whether each is also told of each worker, once that worker has passed it.
        since: The first time that is told; that of the first record by default.
    """

    every: PositiveLength
    workers: bool = False
    since: Instant | None = None


@dataclass(frozen=True, slots=True, config=CONFIG)
class Stream(Declared):
    """A stream to capture.

    Attributes:
        name: The name used in requests, and the folder of its tape.
        description: One line for people.
        source: The source of its records.
        workers: The assignment of records to captured workers.
        time: The assignment of times to records, and the rule for completeness.
        late: The treatment of late records.
        schedule: The schedule of Airflow's captures (`@daily`, or a cron of five fields); None for
            captures by hand only.
        stalled_after: A frontier that has not moved for longer fails the capture's task.
        partitions: The intervals of which Airflow is told, by keys of the stream's asset.
        notify: Notifiers, or other callbacks, that Airflow calls for a failed task.
        spark: Spark settings of the jobs that Airflow submits for it, unless for a declared replay.
    """

    name: Annotated[str, name_of("stream")]
    source: Source
    workers: Workers
    time: TimeDomain
    late: LatePolicy = LatePolicy.DEAD_LETTER
    schedule: Schedule | None = None
    stalled_after: PositiveLength | None = None
    partitions: Partitions | None = None
    notify: References = field(default=())
    spark: SparkSettings = field(default_factory=dict, hash=False)
    description: str = ""

    @field_validator("partitions", mode="after")
    @classmethod
    def _complete(cls, given: Partitions | None, info: ValidationInfo) -> Partitions | None:
        time = info.data.get("time")
        if given is None or time is None:
            return given
        if getattr(time, "lateness", None) is None:
            raise ValueError("needs event times with a lateness, which make intervals complete")
        if given.every % time.every or given.every % timedelta(seconds=1):
            raise ValueError("needs intervals of whole seconds that are multiples of time.every")
        return given

    @field_validator("workers", mode="after")
    @classmethod
    def _partition_column(
        cls, workers: ByKey | ByColumn | ByPartition, info: ValidationInfo
    ) -> ByKey | ByColumn | ByPartition:
        source = info.data.get("source")
        if not isinstance(workers, ByPartition) or workers.column or source is None:
            return workers
        if source.format not in (*FILE_FORMATS, "kafka"):
            raise ValueError(f"needs a column, because {source.kind} has no known partitions")
        return workers

    @model_validator(mode="after")
    def _truncates(self) -> Stream:
        column = None if isinstance(self.workers, ByKey) else self.workers.column
        preset, changes = self.source.preset, self.source.changes
        of_rows = changes is not None and column in [each.name for each in changes.rows]
        if of_rows and preset is not None and preset.truncate_when is not None:
            raise ValueError(
                f"has workers by column {column}, but a truncate has none; take workers by key"
            )
        return self

    @field_validator("time", mode="after")
    @classmethod
    def _watermark(cls, time: EpochTime | EventTime, info: ValidationInfo) -> EpochTime | EventTime:
        if isinstance(time, EpochTime) or time.watermark is not None:
            return time
        # With a common watermark all records of a lagging partition would be late.
        by_partition = isinstance(info.data.get("workers"), ByPartition)
        return replace(time, watermark=Watermark.WORKER if by_partition else Watermark.STREAM)


def _few(columns: tuple[str, ...]) -> tuple[str, ...]:
    if len(columns) > _MOST_CLUSTERED:
        raise ValueError(f"has {len(columns)} columns; Delta clusters by {_MOST_CLUSTERED} at most")
    return columns


@dataclass(frozen=True, slots=True, config=CONFIG)
class Creation(Declared):
    """How a table is created by the first replay into it; ignored once the table exists.

    Attributes:
        partition_by: The columns to partition by; omit it for the column of the worker.
        cluster_by: The columns, or fields such as `_time.event`, to cluster by; at most four.
        properties: Properties of the table, such as `delta.enableChangeDataFeed: "true"`.
    """

    partition_by: Columns | None = None
    cluster_by: Annotated[Fields, AfterValidator(_few)] | None = None
    properties: dict[str, str] = field(default_factory=dict, hash=False)

    @field_validator("properties", mode="after")
    @classmethod
    def _usable(cls, properties: dict[str, str]) -> dict[str, str]:
        for key, value in properties.items():
            if not _PROPERTY.fullmatch(key):
                raise ValueError(f"{key!r} is no name of a property, such as 'delta.enableX'")
            if key.startswith("capstan."):
                raise ValueError(f"{key!r} is Capstan's own")
            if key == "delta.appendOnly" and value.lower() != "false":
                raise ValueError(f"{key}: {value} would let no run be rolled back")
        return properties

    @model_validator(mode="after")
    def _one_layout(self) -> Creation:
        if self.partition_by is not None and self.cluster_by is not None:
            raise ValueError("has partition_by and cluster_by; Delta allows only one of them")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, with fields reduced to their columns."""
        named = self.partition_by or self.cluster_by or ()
        return tuple(dict.fromkeys(name.partition(".")[0] for name in named))


@dataclass(frozen=True, slots=True, config=CONFIG)
class Target(Declared):
    """A downstream table with declared columns.

    Attributes:
        name: The name used in requests.
        path: The path of the Delta table; None for the table of the lake with this name. For a
            table by name, where it is created if the catalog does not have it.
        table: The name of a table in a catalog, such as `main.shop.orders`; None for a table by
            path.
        worker: The column with the worker: its number (`_worker`), or its label.
        time: The column with the time.
        columns: The stream's columns that the table has; None for all.
        checks: Checks for every row that a replay publishes there.
        create: The layout and the properties of the table when a replay creates it.
        asset: The URI, and name, of its asset in Airflow; None for `capstan://tables/<name>`.
        description: One line for people.
    """

    name: Annotated[str, name_of("table")]
    path: TableOrPath | None = None
    table: TableName | None = None
    worker: Column = "_worker"
    time: Column = "_time"
    columns: Columns | None = None
    checks: Checks = field(default=())
    create: Creation | None = None
    asset: Uri | None = None
    description: str = ""
