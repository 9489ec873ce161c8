"""Streams, targets and replays, as they are declared."""

from __future__ import annotations

from dataclasses import field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
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
    Bound,
    Column,
    Columns,
    Declared,
    Instant,
    Labels,
    Length,
    PositiveLength,
    References,
    Schedule,
    TableOrPath,
    Text,
    name_of,
)
from capstan.core.config.row_checks import Checks
from capstan.core.config.sql_rules import problem_with_expression

_YEAR_ONE = datetime(1, 1, 1, tzinfo=UTC)
_FILES = ("parquet", "csv", "json", "orc", "text", "avro", "delta")


MOST_WORKERS = 10_000
"""How many workers a stream can have: each has events of its own in every micro-batch."""


class LatePolicy(StrEnum):
    """What becomes of a record whose time is complete already."""

    DEAD_LETTER = "dead-letter"
    """Kept, raw, in the tape's `late` table."""
    ADVANCE = "advance"
    """Sent at the least upper bound of its time and the frontier."""
    FAIL = "fail"
    """The capture fails before anything of the micro-batch is written."""


class Watermark(StrEnum):
    """Whose greatest event time moves a worker's frontier."""

    STREAM = "stream"
    WORKER = "worker"


class Mode(StrEnum):
    """How a replay changes its target."""

    REPLACE = "replace"
    APPEND = "append"
    MERGE = "merge"


def _expression(text: str) -> str:
    problem = problem_with_expression(text)
    if problem:
        raise ValueError(problem)
    return text


def _tagger(key: str, known: tuple[str, ...], problem: str) -> Discriminator:
    """A discriminator by `key`. Its tags are in brackets, to be told from keys in a place."""

    def tag(value: object) -> str | None:
        said = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return f"<{said}>" if said in known else None

    return Discriminator(
        tag,
        custom_error_type="choice",
        custom_error_message=problem,
        custom_error_context={"key": key},
    )


@dataclass(frozen=True, slots=True, config=CONFIG)
class Source(Declared):
    """What a stream is read from, as Structured Streaming names it.

    Attributes:
        format: Spark's name of the source: `parquet`, `delta`, `kafka`.
        path: Folder, table or URI; None for formats that have none. `{lake}` stands for the lake.
        options: Spark's options of the source, as text.
        schema: Columns as DDL (`a BIGINT, b STRING`); None to have Spark find them.
    """

    format: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$")]
    path: Text | None = None
    options: dict[str, str] = field(default_factory=dict)
    schema: Text | None = None

    @model_validator(mode="after")
    def _has_path(self) -> Source:
        if self.format in _FILES and self.path is None:
            raise ValueError(f"needs a path, as format {self.format} is read from one")
        return self


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByKey(Declared):
    """Workers `0` to `count - 1`, by the hash of key columns.

    Attributes:
        columns: The key.
        count: How many workers, 1 to `MOST_WORKERS`.
    """

    by: Literal["key"] = field(default="key", kw_only=True)
    columns: Columns
    count: Annotated[int, Field(ge=1, le=MOST_WORKERS)]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByColumn(Declared):
    """A worker per value of a column.

    Attributes:
        column: The column; its value, as text, is the worker's label.
        labels: All values that may come, in the order of their workers; a record with another
            goes to `late` as `unknown-worker`. None: a worker is opened for each value that comes,
            up to `MOST_WORKERS`.
    """

    by: Literal["column"] = field(default="column", kw_only=True)
    column: Column
    labels: Labels | None = None


@dataclass(frozen=True, slots=True, config=CONFIG)
class ByPartition(Declared):
    """A worker per partition of the source.

    Attributes:
        column: The column that says the partition. None of Kafka, where it is `topic/partition`,
            and of files and Delta tables, where it is the folder that a file lies in.
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

    In the domain `epoch, event` (bitemporal) a coordinate `epoch` BIGINT comes before it, the
    number of the micro-batch: what was known when.

    Attributes:
        domain: `event`, or `epoch, event`.
        every: Event times are truncated to multiples of this length since 1970-01-01 UTC.
        column: The column of the event time; or
        expression: SQL over the source's columns that gives it. Exactly one of the two is set.
        lateness: How far the watermark stays behind the greatest event time seen, zero or more.
            By default zero; in the domain `epoch, event` there is no watermark without it, and
            nothing is late.
        max_ahead: How far beyond the times before it a record may be dated; None for no bound.
        idle_after: When nothing has come for so long, the clock moves the watermark: it then stays
            this long and `lateness` behind the present. None: it waits for records.
        minimum: Where the stream starts, in UTC; earlier records go to `late`.
        watermark: By default `worker` for workers by partition, `stream` for others.
    """

    domain: Literal["event", "epoch, event"] = "event"
    every: PositiveLength
    column: Column | None = None
    expression: Annotated[Text, AfterValidator(_expression)] | None = None
    lateness: Length | None = None
    max_ahead: PositiveLength | None = None
    idle_after: PositiveLength | None = None
    minimum: Instant = _YEAR_ONE
    watermark: Watermark | None = None

    @property
    def bitemporal(self) -> bool:
        """Whether times have the number of the micro-batch as well."""
        return self.domain == "epoch, event"

    def __post_init__(self) -> None:
        if self.lateness is None and not self.bitemporal:
            object.__setattr__(self, "lateness", timedelta())

    @model_validator(mode="after")
    def _one_source(self) -> EventTime:
        if (self.column is None) == (self.expression is None):
            raise ValueError("needs either column or expression, and not both")
        if self.idle_after is not None and self.lateness is None:
            raise ValueError("has idle_after without a lateness, and so no watermark to move")
        return self


Workers = Annotated[
    Annotated[ByKey, Tag("<key>")]
    | Annotated[ByColumn, Tag("<column>")]
    | Annotated[ByPartition, Tag("<partition>")],
    _tagger("by", ("key", "column", "partition"), "say one of: key, column or partition"),
]
TimeDomain = Annotated[
    Annotated[EpochTime, Tag("<epoch>")]
    | Annotated[EventTime, Tag("<event>")]
    | Annotated[EventTime, Tag("<epoch, event>")],
    _tagger(
        "domain",
        ("epoch", "event", "epoch, event"),
        "say one of: epoch, event or 'epoch, event'",
    ),
]


@dataclass(frozen=True, slots=True, config=CONFIG)
class Stream(Declared):
    """A stream to capture.

    Attributes:
        name: The name that requests give, and the folder of its tape.
        description: One line for people.
        source: Where its records come from.
        workers: Which captured worker a record belongs to.
        time: Which time a record has, and when times are complete.
        late: What becomes of late records.
        schedule: When Airflow captures it (`@daily`, or a cron of five fields); None by hand only.
    """

    name: Annotated[str, name_of("stream")]
    source: Source
    workers: Workers
    time: TimeDomain
    late: LatePolicy = LatePolicy.DEAD_LETTER
    schedule: Schedule | None = None
    stalled_after: PositiveLength | None = None
    notify: References = field(default=())
    description: str = ""

    @field_validator("workers", mode="after")
    @classmethod
    def _partition_column(
        cls, workers: ByKey | ByColumn | ByPartition, info: ValidationInfo
    ) -> ByKey | ByColumn | ByPartition:
        source = info.data.get("source")
        if not isinstance(workers, ByPartition) or workers.column or source is None:
            return workers
        if source.format not in (*_FILES, "kafka"):
            raise ValueError(f"needs a column, as partitions of {source.format} have no known one")
        return workers

    @field_validator("time", mode="after")
    @classmethod
    def _watermark(cls, time: EpochTime | EventTime, info: ValidationInfo) -> EpochTime | EventTime:
        if isinstance(time, EpochTime) or time.watermark is not None:
            return time
        # One partition that lags would otherwise find all its records late.
        own = isinstance(info.data.get("workers"), ByPartition)
        return replace(time, watermark=Watermark.WORKER if own else Watermark.STREAM)


@dataclass(frozen=True, slots=True, config=CONFIG)
class Target(Declared):
    """A downstream table whose columns are declared.

    Attributes:
        name: The name that requests give.
        path: Where the Delta table is; None for a table of the lake by its name.
        worker: The column that says the worker: its number (`_worker`), or its label.
        time: The column that says the time.
        columns: The stream's columns that the table has; None for all.
        checks: What every row must meet that a replay puts there.
        description: One line for people.
    """

    name: Annotated[str, name_of("table")]
    path: TableOrPath | None = None
    worker: Column = "_worker"
    time: Column = "_time"
    columns: Columns | None = None
    checks: Checks = field(default=())
    description: str = ""


@dataclass(frozen=True, slots=True, config=CONFIG)
class Replay(Declared):
    """A replay with a name, to be run by hand, on schedule or over intervals.

    Attributes:
        name: The name that requests give.
        stream: The stream to play.
        target: A declared target, a table of the lake, or the path or URI of a Delta table.
        workers: Labels or numbers of the captured workers, as text; None for all.
        since: First time played; None from the start. An instant, or a number for epochs.
        until: First time no longer played; None for all complete times.
        transform: The transform to apply; None to play the records as they are.
        pipeline: The pipeline to run, where there is no transform.
        sink: The sink of the pipeline whose rows the target gets; None where it has but one.
        mode: How the target is changed.
        keys: Columns that `merge` matches rows by; those of the transform or sink when empty.
        schedule: When Airflow runs it: over data intervals, or, where it follows, with what became
            complete since its last run; None by hand only.
        follow: The name of its cursor, where each of its runs plays what became complete since the
            one before; a pipeline goes on from its state then.
        checks: What every row must meet that it puts out, besides the checks of its target.
        approve: Whether a person decides, between audit and publish.
        notify: Whom Airflow tells of failures: notifiers, or other callbacks of a failed task.
        description: One line for people.
    """

    name: Annotated[str, name_of("replay")]
    stream: Text
    target: TableOrPath
    workers: Labels | None = None
    since: Bound | None = None
    until: Bound | None = None
    transform: Text | None = None
    pipeline: Text | None = None
    sink: Text | None = None
    mode: Mode = Mode.REPLACE
    keys: Columns = field(default=())
    schedule: Schedule | None = None
    follow: Annotated[str, name_of("follow")] | None = None
    checks: Checks = field(default=())
    approve: bool = False
    notify: References = field(default=())
    description: str = ""

    @model_validator(mode="after")
    def _one_computation(self) -> Replay:
        if self.transform is not None and self.pipeline is not None:
            raise ValueError("has a transform and a pipeline; choose one of them")
        if self.sink is not None and self.pipeline is None:
            raise ValueError("names a sink, and no pipeline that has it")
        if self.follow is not None and self.until is not None:
            raise ValueError("follows what becomes complete, and so has no until")
        return self
