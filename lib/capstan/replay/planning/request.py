"""The request of a replay.

`Request` is the one model of it: the options of `capstan plan` and `replay`, the form of
`capstan_replay`, and the keywords of `Context.plan` and `replay` are made from its fields and their
`Help`, or are compared with them by tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field, replace
from typing import Annotated, Any

from capstan.core.config import (
    Mode,
    ProjectConfig,
    Replay,
    check_name,
    check_target,
    joined_streams,
)
from capstan.core.config.change_rules import problem_without_sequence, stored_options
from capstan.core.config.fields import SequencesOrNone
from capstan.core.config.help import Help, documented
from capstan.core.config.loading.cross_checks import preset_settings
from capstan.core.config.names import check_column
from capstan.core.config.replay_rules import cannot_follow, check_replay
from capstan.core.config.request_fields import (
    GivenFields,
    NamesBySource,
    NamesOrNone,
    NumbersByName,
    TimeText,
)
from capstan.core.config.stream_names import keyed_streams
from capstan.core.json_object import Json
from capstan.core.parallelism import check_parallelism
from capstan.errors import InvalidRequestError

INPUT, OUTPUT = "Several streams, cuts and epochs", "How the table changes"
CHANGES, HOW = "Changes in the order of a sequence", "How to run"
"""The sections of the form, after the fields that most requests have."""

_TIME = (
    "a date (2013-03-01: its midnight in UTC), a time (2013-03-01T05:00:00Z), or a number for "
    "streams whose times are epochs"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A replay as a person, a form or a schedule requests it."""

    stream: Annotated[
        str,
        Help(
            "The stream to replay",
            cli="The stream's name; or SOURCE=STREAM,... for a pipeline that reads several",
            form="The stream to replay. Empty: that of the *Declared replay*",
            metavar="STREAM",
        ),
    ]
    into: Annotated[
        str,
        Help(
            "The target: a table of the lake, a declared target, a Delta path, or a table of a "
            "catalog, such as main.shop.orders",
            absent="the target of the pipeline's sink",
            form="A table of the lake, a declared target, a Delta path, or a table of a catalog, "
            "such as main.shop.orders. Empty: that of the *Declared replay*",
            title="Target",
            metavar="TABLE",
        ),
    ]
    _: KW_ONLY
    streams: Annotated[
        Mapping[str, str],
        Help(
            "The streams by the source of the pipeline that reads them, at least two; of a source "
            "that reads several, each by source/stream",
            form="For a *Pipeline* that reads several streams: each of its sources with its "
            "stream, as in `orders=orders_eu, payments=payments`; `orders=orders_eu+orders_us` "
            "reads two as one. *Stream* does not count then. Empty: the one in *Stream*",
            section=INPUT,
        ),
    ] = field(default_factory=dict, hash=False)
    replay: Annotated[
        str | None,
        Help(
            "The declared replay that this is a run of",
            form="Run as this declared replay: its checks, approval and notifications apply. "
            "Empty fields take the declared values; times and workers may be a part of the "
            "declared ones, others must match them",
            title="Declared replay",
        ),
    ] = None
    workers: Annotated[
        NamesOrNone | None,
        Help(
            "Workers by label or number",
            absent="all",
            cli="Workers by label or number, comma-separated; put a label with a comma, or with "
            "blanks at its ends, in double quotes",
        ),
    ] = None
    workers_of: Annotated[
        NamesBySource,
        Help(
            "Workers of several streams, by the keys of `streams`",
            absent="all",
            cli="Workers of one of several streams, as SOURCE=LIST; repeat it for others",
            form="For several streams: workers of each, as `orders=EWR, JFK`. Those of streams "
            "that are left out: all",
            section=INPUT,
            metavar="SOURCE=LIST",
        ),
    ] = field(default_factory=dict, hash=False)
    since: Annotated[
        TimeText | None,
        Help(
            "First time to replay",
            absent="the start",
            cli="First time, such as 2013-03-01, 17 or epoch=3",
            form=f"First time to replay: {_TIME}",
        ),
    ] = None
    until: Annotated[
        TimeText | None,
        Help(
            "First time after the range",
            absent="all complete times",
            form=f"First time after the range: {_TIME}",
        ),
    ] = None
    known_at: Annotated[
        int | None,
        Help("Replay what was known at this epoch; for times in `epoch, event`", section=INPUT),
    ] = None
    as_of: Annotated[
        int | None,
        Help(
            "The cut: a commit of the tape",
            absent="the newest",
            cli="The cut: a commit of the tape, or SOURCE=CUT,... of several streams",
            section=INPUT,
            metavar="CUT",
        ),
    ] = None
    lookups: Annotated[
        NumbersByName,
        Help(
            "Versions of the pipeline's lookup tables, by the lookup's name",
            absent="the newest",
            cli="Versions of the pipeline's lookup tables, NAME=VERSION,...",
            form="Versions of the pipeline's lookup tables, as `prices=12, shops=3`. Of those left "
            "out: the newest",
            section=OUTPUT,
        ),
    ] = field(default_factory=dict, hash=False)
    peers: Annotated[
        int | None,
        Help(
            "Number of replay workers",
            absent="one per chosen worker, or as before if state continues",
        ),
    ] = None
    transform: Annotated[
        str | None, Help("A declared transform", absent="copy the records", section=OUTPUT)
    ] = None
    pipeline: Annotated[
        str | None,
        Help("A declared pipeline, instead of a transform", section=OUTPUT, metavar="NAME"),
    ] = None
    sink: Annotated[
        str | None, Help("The sink of a pipeline that has several", section=OUTPUT, metavar="NODE")
    ] = None
    mode: Annotated[
        Mode,
        Help(
            "How to change the target",
            form="How to change the target. Empty: as declared, or replace",
            section=OUTPUT,
        ),
    ] = Mode.REPLACE
    keys: Annotated[
        NamesOrNone,
        Help(
            "Key columns of `mode` merge",
            absent="those of the transform or sink",
            form="Key columns of merge",
            section=OUTPUT,
        ),
    ] = ()
    sequence_by: Annotated[
        SequencesOrNone,
        Help(
            "With `mode` merge: columns whose greatest value wins, in whatever order ranges are "
            "replayed; of text with its kind, as 'version as number'",
            section=CHANGES,
        ),
    ] = ()
    delete_when: Annotated[
        str | None,
        Help(
            "With `sequence_by`: a change that meets this deletes its key",
            section=CHANGES,
            metavar="SQL",
        ),
    ] = None
    truncate_when: Annotated[
        str | None,
        Help(
            "With `sequence_by`: a change that meets this removes all rows before it",
            section=CHANGES,
            metavar="SQL",
        ),
    ] = None
    unchanged: Annotated[
        str | None,
        Help(
            "With `sequence_by`: the text of a column that a change leaves as it was",
            section=CHANGES,
            metavar="TEXT",
        ),
    ] = None
    history: Annotated[
        bool, Help("With `sequence_by`: keep each version of a key", section=CHANGES)
    ] = False
    follow: Annotated[
        str | None,
        Help(
            "Replay what became complete since the last run of this name",
            form="A name: replay what became complete since the last run of that name. A pipeline "
            "continues from its state, on the number of replay workers in *Peers*",
            metavar="NAME",
        ),
    ] = None
    partial: Annotated[bool, Help("Replay the complete part of an incomplete range")] = False
    adopt: Annotated[
        bool, Help("Also replace rows of the range that no replay wrote", section=OUTPUT)
    ] = False
    hold: Annotated[bool, Help("Stop after the audit; `capstan publish` continues")] = False
    approve: Annotated[
        bool,
        Help(
            "After the audit, a person sees what would change and decides whether to publish. "
            "Always on for a table whose declared replay asks for approval"
        ),
    ] = False
    cuts: Annotated[
        NumbersByName,
        Help(
            "The cuts of several streams, by the keys of `streams`",
            absent="the newest",
            form="The cuts of several streams, as `orders=12, payments=7`. Of those left out: the "
            "newest",
            section=INPUT,
        ),
    ] = field(default_factory=dict, hash=False)
    # A former option, which stored requests and triggers have: taken, and dropped.
    direct: InitVar[bool] = False

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
        return cls(**declared.request_fields, replay=declared.name, **fields)

    @property
    def keyed(self) -> Mapping[str, str]:
        """The streams of several by key, as a declared replay has them."""
        return self.streams

    @property
    def held(self) -> bool:
        """Whether it stops after the audit."""
        return self.hold or self.approve

    def __post_init__(self, direct: bool) -> None:
        self._check_names()
        check_replay(self)
        if self.sequence_by and self.adopt:
            raise InvalidRequestError(
                "CAP-SEQUENCE",
                "a merge by sequence cannot adopt rows: it has no sequence of theirs",
                "replay into a table of its own",
            )
        self._check_cuts()
        bounds = (self.known_at, self.as_of, self.cuts or None)
        if self.follow is not None and (self.partial or any(b is not None for b in bounds)):
            raise cannot_follow()
        if self.workers is not None and not self.workers:
            raise InvalidRequestError(
                "CAP-WORKERS", "no workers are chosen", "name some, or leave the option out"
            )
        if self.peers is not None:
            check_parallelism(self.peers, "replay workers")
        if self.lookups and self.pipeline is None:
            raise InvalidRequestError(
                "CAP-LOOKUP",
                "versions of lookup tables are those of a pipeline's lookups",
                "name the pipeline, or leave them out",
            )

    def _check_names(self) -> None:
        if not self.streams:
            check_name("stream", self.stream)
        object.__setattr__(self, "into", check_target(self.into))
        for column in self.keys:
            check_column(column)
        for kind in ("follow", "replay", "pipeline"):
            name = getattr(self, kind)
            if name is not None:
                check_name(kind, name)

    def _check_cuts(self) -> None:
        problem = None
        if not self.streams:
            problem = "cuts are those of several streams" if self.cuts else None
        elif self.as_of is not None:
            problem = "--as-of of several streams names one cut"
        elif not set(self.cuts) <= set(self.streams):
            problem = f"there is no source {min(set(self.cuts) - set(self.streams))} with a cut"
        if problem is not None:
            raise InvalidRequestError(
                "CAP-STREAMS",
                problem,
                "give several streams by the sources of a pipeline, and their cuts likewise",
            )

    def to_json(self) -> dict[str, object]:
        """The object that the ledger stores: as before a field existed if it is not used."""
        value = stored_options({**asdict(self), "mode": str(self.mode), "direct": False})
        value["replay"] = value.pop("replay")
        streams, cuts = dict(value.pop("streams")), dict(value.pop("cuts"))
        lookups = dict(value.pop("lookups"))
        chosen = {key: list(names) for key, names in value.pop("workers_of").items()}
        if lookups:
            value["lookups"] = lookups
        if streams:
            value |= {"streams": streams, "cuts": cuts}
        return {**value, "workers_of": chosen} if chosen else value

    @classmethod
    def from_json(cls, value: Json) -> Request:
        """The request that `to_json` wrote."""
        fields = dict(value)
        workers, sequence = fields.pop("workers"), fields.pop("sequence_by", None)
        of_each = fields.pop("workers_of", None) or {}
        return cls(
            mode=Mode(fields.pop("mode")),
            workers=None if workers is None else tuple(workers),
            keys=tuple(fields.pop("keys") or ()),
            sequence_by=tuple(sequence or ()),
            workers_of={key: tuple(names) for key, names in of_each.items()},
            **fields,
        )


Request.__doc__ = documented(Request)


def with_preset(config: ProjectConfig, request: Request) -> Request:
    """The request with the rule of a merge by sequence that the preset of its stream has."""
    added: dict[str, Any] = preset_settings(request, config.streams)
    request = replace(request, **added) if added else request
    problem = problem_without_sequence(request)
    if problem is None:
        return request
    raise InvalidRequestError(
        "CAP-SEQUENCE", problem, "give mode merge, keys and sequence_by, or none of them"
    )


def with_stream(fields: GivenFields) -> GivenFields:
    """The fields of a request, with the text of its `streams` as `stream` if that is not given."""
    streams = fields.get("streams")
    if fields.get("stream") is not None or not streams or not isinstance(streams, Mapping):
        return fields
    try:
        keyed = keyed_streams(streams)
        return {**fields, "stream": joined_streams(keyed), "streams": keyed}
    except TypeError:
        return {**fields, "stream": "streams"}  # Not names, so that the request is refused.
