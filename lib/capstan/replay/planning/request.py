"""The request of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from capstan.core.config import (
    Mode,
    Replay,
    check_column,
    check_name,
    check_streams,
    check_target,
    joined_streams,
    keyed_streams,
    problem_with_workers,
)
from capstan.core.config.change_rules import OPTIONS, problem_with_changes, stored_options
from capstan.core.config.fields import SequencesOrNone
from capstan.core.config.request_fields import NamesBySource, NamesOrNone, TimeText
from capstan.core.parallelism import check_parallelism
from capstan.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Request:
    """A replay as a person, a form or a schedule requests it.

    Attributes:
        stream: The stream to replay; of several, the text of `joined_streams`.
        into: The target: a table of the lake, a declared target, a Delta path, or a table of a
            catalog by its name, such as `main.shop.orders`.
        workers: Labels or numbers; None for all. Of several streams, those whose workers the rows
            keep have them; see `workers_of`.
        since: The first time, as the command line writes it; None from the start.
        until: The first time that is no longer replayed; None for all complete times.
        known_at: The last epoch, for a stream with epochs: the records that were known then.
        as_of: The cut; None for the newest. Of several streams, see `cuts`.
        peers: The number of replay workers; None for one per chosen worker.
        transform: A registered transform; None for a copy of the records.
        pipeline: A registered pipeline, instead of a transform.
        sink: The sink of the pipeline; None for its only one.
        mode: How the target is changed.
        keys: Columns by which `merge` matches rows; empty for those of the transform or sink.
        sequence_by: Columns by which `merge` orders the changes of a key, each perhaps with its
            kind, as `version as number`; empty for the order in which ranges are replayed.
        delete_when: The SQL condition that a change deletes its key; None when none does.
        truncate_when: The SQL condition that a change removes all rows before it; None when none
            does.
        unchanged: The text of a column that keeps its previous value; None when all are told.
        history: Whether the target keeps each version of a key.
        follow: The name of a followed replay, which covers what became complete since its last run.
        partial: Replay the complete part of an incomplete range.
        direct: Write to the target directly, audit there, and roll back if the audit fails.
        adopt: Replace rows of the range that no replay has written.
        hold: Stop after the audit, until `capstan publish`.
        approve: Stop after the audit and show what publishing would change, for a person to decide.
        replay: The declared replay whose run this is, and whose checks apply.
        streams: The streams by the source of the pipeline that reads them, at least two; empty for
            a replay of one stream. The key of each stream of a source that reads several is the
            source, a slash, and the stream.
        cuts: The cuts of several streams by the same keys; those that are left out are the newest.
        workers_of: The workers of several streams by the same keys; of those that are left out,
            all are chosen. It excludes `workers`.
        lookups: The versions of lookup tables by the name of the pipeline's lookup; those that are
            left out are as the pipeline declares them, or the newest.
    """

    stream: str
    into: str
    workers: NamesOrNone | None = None
    since: TimeText | None = None
    until: TimeText | None = None
    known_at: int | None = None
    as_of: int | None = None
    peers: int | None = None
    transform: str | None = None
    pipeline: str | None = None
    sink: str | None = None
    mode: Mode = Mode.REPLACE
    keys: NamesOrNone = ()
    sequence_by: SequencesOrNone = ()
    delete_when: str | None = None
    truncate_when: str | None = None
    unchanged: str | None = None
    history: bool = False
    follow: str | None = None
    partial: bool = False
    direct: bool = False
    adopt: bool = False
    hold: bool = False
    approve: bool = False
    replay: str | None = None
    streams: Mapping[str, str] = field(default_factory=dict, hash=False)
    cuts: Mapping[str, int] = field(default_factory=dict, hash=False)
    workers_of: NamesBySource = field(default_factory=dict, hash=False)
    lookups: Mapping[str, int] = field(default_factory=dict, hash=False)

    @classmethod
    def of_streams(
        cls, streams: Mapping[str, str | Sequence[str]], into: str, **fields: Any
    ) -> Request:
        """The request of a replay of several streams: by source, one or a list of them."""
        keyed = keyed_streams(streams)
        return cls(joined_streams(keyed), into, streams=keyed, **fields)

    @classmethod
    def of_replay(cls, declared: Replay, **fields: Any) -> Request:
        """The request of a run of a declared replay, with other `fields` such as its times."""
        return cls(
            declared.stream,
            declared.target,
            workers=declared.workers,
            transform=declared.transform,
            pipeline=declared.pipeline,
            sink=declared.sink,
            mode=declared.mode,
            keys=declared.keys,
            sequence_by=declared.sequence_by,
            replay=declared.name,
            streams=declared.keyed,
            workers_of=declared.workers_of,
            **{name: getattr(declared, name) for name in OPTIONS},
            **fields,
        )

    @property
    def held(self) -> bool:
        """Whether it stops after the audit."""
        return self.hold or self.approve

    def __post_init__(self) -> None:
        self._check_streams()
        object.__setattr__(self, "into", check_target(self.into))
        for column in self.keys:
            check_column(column)
        self._check_changes()
        if self.follow is not None:
            check_name("follow", self.follow)
            self._check_follow()
        if self.workers is not None and not self.workers:
            raise InvalidRequestError(
                "CAP-WORKERS", "no workers are chosen", "name some, or leave the option out"
            )
        problem = problem_with_workers(self.streams, self.workers, self.workers_of)
        if problem is not None:
            raise InvalidRequestError(
                "CAP-WORKERS", problem, "name workers of each stream by the source that reads it"
            )
        if self.peers is not None:
            check_parallelism(self.peers, "replay workers")
        if self.replay is not None:
            check_name("replay", self.replay)
        self._check_computation()
        if self.direct and (self.mode is not Mode.REPLACE or self.held):
            raise InvalidRequestError(
                "CAP-DIRECT",
                "--direct goes with mode replace and publishes at once",
                "leave out --direct to stage, audit, then publish",
            )

    def _check_changes(self) -> None:
        problem = problem_with_changes(self, merges=self.mode is Mode.MERGE)
        hint = "give mode merge, keys and sequence_by, or none of them"
        if self.sequence_by and self.mode is Mode.MERGE:
            hint = (
                "name columns of the output, and conditions over them; see docs/change-streams.md"
            )
        if self.sequence_by and self.adopt:
            problem = "a merge by sequence cannot adopt rows: it has no sequence of theirs"
            hint = "replay into a table of its own"
        if problem is not None:
            raise InvalidRequestError("CAP-SEQUENCE", problem, hint)

    def _check_streams(self) -> None:
        check_streams(self.streams)
        problem = None
        if not self.streams:
            check_name("stream", self.stream)
            problem = "cuts are those of several streams" if self.cuts else None
        elif self.stream != joined_streams(self.streams):
            problem = f"a replay of several streams has no other stream, such as {self.stream}"
        elif self.as_of is not None:
            problem = "--as-of of several streams names one cut"
        elif self.pipeline is None:
            problem = "a copy or a transform reads one stream"
        elif not set(self.cuts) <= set(self.streams):
            problem = f"there is no source {min(set(self.cuts) - set(self.streams))} with a cut"
        if problem is not None:
            raise InvalidRequestError(
                "CAP-STREAMS",
                problem,
                "give several streams by the sources of a pipeline, and their cuts likewise",
            )

    def _check_computation(self) -> None:
        if self.pipeline is not None:
            check_name("pipeline", self.pipeline)
        elif self.lookups:
            raise InvalidRequestError(
                "CAP-LOOKUP",
                "versions of lookup tables are those of a pipeline's lookups",
                "name the pipeline, or leave them out",
            )
        problem = None
        if self.pipeline is not None and self.transform is not None:
            problem = "a replay has either a transform or a pipeline"
        elif self.sink is not None and self.pipeline is None:
            problem = "--sink goes with --pipeline"
        if problem is not None:
            raise InvalidRequestError("CAP-PIPELINE", problem, "leave out one of the two")

    def _check_follow(self) -> None:
        bounds = (self.until, self.known_at, self.as_of, self.cuts or None)
        if any(bound is not None for bound in bounds) or self.partial:
            raise InvalidRequestError(
                "CAP-FOLLOW",
                "--follow does not go with --until, --known-at, --as-of or --partial: a followed "
                "replay covers whatever became complete",
                "leave them out, or replay without --follow",
            )

    def to_json(self) -> dict[str, object]:
        """The object that the ledger stores; fields that are not used are left out.

        Requests without them are stored as they were before these fields existed.
        """
        value = stored_options({**asdict(self), "mode": str(self.mode)})
        streams, cuts = dict(value.pop("streams")), dict(value.pop("cuts"))
        chosen = {key: list(names) for key, names in value.pop("workers_of").items()}
        if not self.lookups:
            del value["lookups"]
        if streams:
            value |= {"streams": streams, "cuts": cuts}
        return {**value, "workers_of": chosen} if chosen else value

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Request:
        """The request that `to_json` wrote."""
        fields = dict(value)
        workers, keys = fields.pop("workers"), fields.pop("keys")
        sequence: Any = fields.pop("sequence_by", None)
        of_each: Any = fields.pop("workers_of", None)
        mode = Mode(str(fields.pop("mode")))
        return cls(
            **fields,  # type: ignore[arg-type]
            mode=mode,
            workers=tuple(workers) if isinstance(workers, list) else None,
            keys=tuple(keys) if isinstance(keys, list) else (),
            sequence_by=tuple(sequence or ()),
            workers_of={key: tuple(names) for key, names in (of_each or {}).items()},
        )


def with_stream(fields: Mapping[str, object]) -> Mapping[str, object]:
    """The fields of a request, with the text of its `streams` as `stream` if that is not given.

    A source may have a list of streams there.
    """
    streams = fields.get("streams")
    if fields.get("stream") is not None or not streams or not isinstance(streams, Mapping):
        return fields
    try:
        keyed = keyed_streams(streams)
        return {**fields, "stream": joined_streams(keyed), "streams": keyed}
    except TypeError:
        return {**fields, "stream": "streams"}  # Not names, so that the request is refused.
