"""Models of replays, and of how they are backfilled, in the declaration file."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from capstan.core.config.change_rules import OPTIONS
from capstan.core.config.durations import Hours, Rate
from capstan.core.config.fields import (
    CONFIG,
    Bound,
    Columns,
    Declared,
    Labels,
    LabelsBySource,
    References,
    Schedule,
    Sequences,
    SparkSettings,
    StreamsBySource,
    TableOrPath,
    Text,
    name_of,
    without_problem,
)
from capstan.core.config.models import Mode
from capstan.core.config.replay_rules import check_replay
from capstan.core.config.row_checks import Checks
from capstan.core.config.sql_rules import problem_with_columns
from capstan.core.config.stream_names import joined_streams, keyed_streams, split_streams
from capstan.errors import InvalidRequestError

Given = TypeVar("Given")

# The fields of a run's request that have the same names here.
_SAME = ("workers", "workers_of", "transform", "pipeline", "sink", "mode", "keys", "sequence_by")
_TEXT = WithJsonSchema({"type": "string"})
# Those of a request that never say "not given" by their default.
_ALWAYS_GIVEN = frozenset({"mode", "streams"})


class Order(StrEnum):
    """The order of the runs by time."""

    OLDEST = "oldest"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True, config=CONFIG)
class BackfillPolicy(Declared):
    """The policy of a replay's backfills.

    Attributes:
        chunk: The most intervals per run; None for one run per stretch of adjacent intervals.
        order: Which intervals are run first.
        at_most: The most runs at once: of those that a backfill carries out together, and of those
            of the replay's own DAG.
        rate: The most rows that the runs of a backfill read in a time, such as
            `1000000 rows per hour`, or the most bytes that they write, such as `20 GB per hour`:
            the next run waits until the one before it has lasted so long.
        hours: The hours of the day in which runs may begin, with a time zone, such as
            `22:00-06:00 Europe/Oslo`. A run at work goes on to its end.
    """

    NAMED_BY_KEY: ClassVar[bool] = False

    chunk: Annotated[int, Field(ge=1)] | None = None
    order: Order = Order.OLDEST
    at_most: Annotated[int, Field(ge=1)] | None = None
    rate: Annotated[Rate, BeforeValidator(Rate.parse), _TEXT] | None = None
    hours: Annotated[Hours, BeforeValidator(Hours.parse), _TEXT] | None = None

    def to_json(self) -> dict[str, object]:
        """What a backfill cannot be given in its request, as it is declared."""
        texts = {"rate": self.rate, "hours": self.hours}
        shown = {name: None if text is None else str(text) for name, text in texts.items()}
        return {"at_most": self.at_most, **shown}


def _one_of_stream_and_streams(schema: dict[str, Any]) -> None:
    """State in the JSON Schema of a replay that it has either a stream or several."""
    schema["required"] = ["name", "target"]
    schema["oneOf"] = [{"required": ["stream"]}, {"required": ["streams"]}]


@dataclass(
    frozen=True,
    slots=True,
    config=ConfigDict(extra="forbid", json_schema_extra=_one_of_stream_and_streams),
)
class Replay(Declared):
    """A named replay, run by hand, on schedule or over intervals.

    Attributes:
        name: The name used in requests.
        stream: The stream to replay; or
        target: A declared target, a table of the lake, or the path or URI of a Delta table.
        workers: Labels or numbers of the captured workers, as text; None for all.
        since: The first time; None for the start. An instant, or a number for epochs.
        until: The first time after the range; None for all complete times.
        transform: The transform to apply; None to copy the records.
        pipeline: The pipeline to run instead of a transform.
        sink: The sink of the pipeline that feeds the target; None if it has only one.
        mode: The way the target is changed.
        keys: Columns that `merge` matches rows by; by default those of the transform or sink.
        sequence_by: Columns of the output by which `merge` orders the changes of a key: the
            greatest wins, in whatever order ranges are replayed. A column of text has its kind, as
            in `version as number`.
        delete_when: An SQL condition over the output: such a change deletes its key.
        truncate_when: An SQL condition over the output: such a change removes the rows of all keys
            whose sequence is before its own.
        unchanged: The text of a column that a change does not tell: it keeps its previous value.
        history: Whether the table keeps each version of a key, with `valid_from`, `valid_to` and
            `current`.
        schedule: The schedule of Airflow's runs: over data intervals, or for a followed replay
            over the times completed since the last run; None for runs by hand only.
        follow: The name of the cursor of a followed replay. Each run covers the times completed
            since the previous one; a pipeline continues from its state at that point.
        checks: Checks for every output row, in addition to those of the target.
        approve: Whether a person must approve between audit and publish; `others`: who has not
            triggered the run.
        notify: Notifiers, or other callbacks, that Airflow calls for a failed task.
        spark: Spark settings of the runs that Airflow submits.
        description: One line for people.
        streams: The streams that a pipeline reads, at least two, by the names of its sources. A
            source can have a list of streams, which it reads as one. Exactly one of `stream` and
            `streams` is set.
        workers_of: The workers of each of several streams, by the name of its source; of a source
            with a list of streams, by source/stream. All workers of those that are left out.
        backfill: How its backfills are carried out.
        partitions: Whether Airflow is told which intervals its table covers, by keys of the table's
            asset.
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
    sequence_by: Sequences = field(default=())
    delete_when: Annotated[Text, without_problem(problem_with_columns)] | None = None
    truncate_when: Annotated[Text, without_problem(problem_with_columns)] | None = None
    unchanged: str | None = None
    history: bool = False
    schedule: Schedule | None = None
    follow: Annotated[str, name_of("follow")] | None = None
    checks: Checks = field(default=())
    approve: bool | Literal["others"] = False
    notify: References = field(default=())
    spark: SparkSettings = field(default_factory=dict, hash=False)
    description: str = ""
    streams: StreamsBySource = field(default_factory=dict, hash=False)
    workers_of: LabelsBySource = field(default_factory=dict, hash=False)
    backfill: BackfillPolicy = field(default_factory=BackfillPolicy)
    partitions: bool = False

    @model_validator(mode="before")
    @classmethod
    def _joined(cls, values: object) -> object:
        given = values.kwargs if isinstance(values, ArgsKwargs) else values
        if not isinstance(given, dict) or "stream" in given or not given.get("streams"):
            return values
        streams = given["streams"]
        named = isinstance(streams, dict) and all(map(_is_listed, streams.values()))
        # The problem of what is not a mapping of names is that of `streams`.
        stream = joined_streams(keyed_streams(streams)) if named else "streams"
        given = {**given, "stream": stream}
        return ArgsKwargs(values.args, given) if isinstance(values, ArgsKwargs) else given

    @property
    def keyed(self) -> dict[str, str]:
        """The streams of several by key, as `capstan.core.config.keyed_streams` makes them."""
        return keyed_streams(self.streams)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The chosen workers; of several streams one by one, each after its source and `/`."""
        of_each = self.workers_of.items()
        return self.workers or tuple(f"{key}/{name}" for key, names in of_each for name in names)

    @property
    def request_fields(self) -> dict[str, Any]:
        """The fields of a run's request that it declares, without those of its times."""
        same = {name: getattr(self, name) for name in (*_SAME, *OPTIONS)}
        return {"stream": self.stream, "streams": self.keyed, "into": self.target, **same}

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds of its times, as a request has them."""
        return {"since": _text_of(self.since), "until": _text_of(self.until)}

    def complete(self, given: Given) -> Given:
        """The request of a run of it, with the declared values of the fields that are left out.

        If the replay follows, so does a run without times of its own; a run with times repairs a
        part. A run may have a part of the workers and of the times, which the plan checks, as a
        tape says what they are; what else is given is as declared.

        Raises:
            InvalidRequestError: `CAP-REQUEST`: A field is declared otherwise.
        """
        run: Any = given
        declared = self.request_fields
        workers = {name: declared.pop(name) for name in ("workers", "workers_of")}
        added: dict[str, Any] = {} if run.workers or run.workers_of else workers
        times = (run.since, run.until, run.known_at, run.as_of)
        declared["follow"] = run.follow and self.follow
        if self.follow is not None and all(t is None for t in times) and not run.partial:
            declared["follow"] = self.follow
        added |= {name: text for name, text in self.bounds.items() if getattr(run, name) is None}
        for one in dataclasses.fields(run):
            if one.name not in declared:
                continue
            own, value = getattr(run, one.name), declared[one.name]
            if own == one.default and one.name not in _ALWAYS_GIVEN:
                added[one.name] = value
            elif own != value:
                raise self.otherwise(one.name, value, own)
        completed: Given = dataclasses.replace(run, **added)
        return completed

    def otherwise(self, key: str, declared: object, given: object) -> InvalidRequestError:
        """The error for a run of it that is given another value than the declared one."""
        return InvalidRequestError(
            "CAP-REQUEST",
            f"replay {self.name} has {key} {_shown(declared)}, not {_shown(given)}",
            "use the declared value, or choose no declared replay",
            key=key,
        )

    @property
    def has_intervals(self) -> bool:
        """Whether its intervals are all to be written: it has a range or a schedule.

        A following replay has no intervals: it replays each time once that is complete.
        """
        bounds = (self.since, self.until, self.schedule)
        return self.follow is None and any(bound is not None for bound in bounds)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the streams that it reads."""
        return tuple(dict.fromkeys(split_streams(self.stream)))

    @model_validator(mode="after")
    def _checked(self) -> Replay:
        try:
            check_replay(self)
        except InvalidRequestError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        return self


def _text_of(bound: datetime | int | None) -> str | None:
    if isinstance(bound, datetime):
        return bound.isoformat()
    return None if bound is None else str(bound)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _is_listed(names: object) -> bool:
    """Whether a value is a name, or a list of at least one."""
    listed = isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names)
    return isinstance(names, str) or bool(listed)
