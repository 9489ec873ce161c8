"""Model of replays in the declaration file."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from capstan.core.config.change_rules import problem_with_changes
from capstan.core.config.fields import (
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
from capstan.core.config.row_checks import Checks
from capstan.core.config.sql_rules import problem_with_columns
from capstan.core.config.stream_names import (
    check_streams,
    joined_streams,
    keyed_streams,
    problem_with_workers,
    split_streams,
)
from capstan.errors import InvalidRequestError


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
        approve: Whether a person must approve between audit and publish.
        notify: Notifiers, or other callbacks, that Airflow calls for a failed task.
        spark: Spark settings of the runs that Airflow submits.
        description: One line for people.
        streams: The streams that a pipeline reads, at least two, by the names of its sources. A
            source can have a list of streams, which it reads as one. Exactly one of `stream` and
            `streams` is set.
        workers_of: The workers of each of several streams, by the name of its source; of a source
            with a list of streams, by source/stream. All workers of those that are left out.
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
    approve: bool = False
    notify: References = field(default=())
    spark: SparkSettings = field(default_factory=dict, hash=False)
    description: str = ""
    streams: StreamsBySource = field(default_factory=dict, hash=False)
    workers_of: LabelsBySource = field(default_factory=dict, hash=False)

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

    @model_validator(mode="after")
    def _one_or_several(self) -> Replay:
        problem = problem_with_workers(self.keyed, self.workers, self.workers_of)
        if problem is not None:
            raise ValueError(problem)
        if not self.streams:
            return self
        try:
            check_streams(self.keyed)
        except InvalidRequestError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        if self.stream != joined_streams(self.keyed):
            raise ValueError("has a stream and streams; remove one of them")
        if self.pipeline is None:
            raise ValueError("has streams but no pipeline, which reads them")
        return self

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
    def inputs(self) -> tuple[str, ...]:
        """The names of the streams that it reads."""
        return tuple(dict.fromkeys(split_streams(self.stream)))

    @model_validator(mode="after")
    def _one_computation(self) -> Replay:
        if self.transform is not None and self.pipeline is not None:
            raise ValueError("has a transform and a pipeline; remove one of them")
        if self.sink is not None and self.pipeline is None:
            raise ValueError("has a sink but no pipeline")
        if self.follow is not None and self.until is not None:
            raise ValueError("follows the completed times and cannot have an until")
        problem = problem_with_changes(self, merges=self.mode is Mode.MERGE)
        if problem is not None:
            raise ValueError(problem)
        return self


def _is_listed(names: object) -> bool:
    """Whether a value is a name, or a list of at least one."""
    listed = isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names)
    return isinstance(names, str) or bool(listed)
