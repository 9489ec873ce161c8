"""The certificate of a replay, as the runs ledger stores it.

It states what was read, from where, into what, and what is not covered. Values are those of the
stored JSON: times are rendered, and workers are labels, or ranges of numbers when there are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from capstan.core.json_object import Json

PUBLIC_KEYS = (
    "run", "stream", "cut", "workers", "peers", "records", "since", "until", "frontier",
    "complete", "target", "target_version", "audit", "published",
)  # fmt: skip
"""Keys that other programs rely on, in the order in which they are printed."""
_ATTEMPT = ("attempt", "generation")
_PUBLISHED = (*_ATTEMPT, "target_version", "audit", "approval", "seconds")


@dataclass(frozen=True, slots=True)
class NotCovered:
    """The part of a stream that a replay leaves out."""

    workers: object  # of the cut, not chosen; listed as in the certificate
    incomplete_from: Sequence[object] | None  # the frontier, if the range is not complete
    asked_until: object  # the requested end; None when there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a replay read and wrote. Before it publishes, only the facts up to `published` are set.

    With several streams, `streams` has of each `source`, `stream`, `cut`, `workers`, `left_out`,
    `records`, `times`, `fingerprint`, `frontier` and `late`. `stream` joins their names by `+` in
    that order, `cut` is that of the first, `workers` and `not_covered` are of the first whose
    workers the rows keep, `times` are added, and `frontier` is that of all streams.
    """

    format: int  # 3 with several streams, 2 with workers by number, else 1
    stream: str
    cut: int  # the commit of the tape that was pinned
    workers: object  # labels, or `count` and `numbers` when there are many
    peers: int
    replay_workers: Sequence[Json] | None  # sequences, records, frontier; None for too many
    records: int
    times: int  # distinct ones read
    fingerprint: str
    since: object  # the first time written; None from the start
    until: object  # the first time no longer written; None for no end
    frontier: Sequence[object]  # common to the chosen workers
    complete: bool  # whether the requested range was
    not_covered: NotCovered
    late: Mapping[str, int]  # rows of the range, not on tape, by reason
    transform: str | None
    pipeline: Json | None  # with sink, input range, counters and state
    code: str | None  # the hash; None for a copy
    mode: str  # how the target was changed
    follow: str | None  # the name of the followed replay
    target: str
    target_path: str
    streams: Sequence[Json] | None = None
    changes: Json | None = None  # of a merge by sequence, as `ChangeRule.to_json`
    # Of a tape of stamps, the records under no element: those that were `read`, and `left_out`.
    timeless: Json | None = None
    published: bool = False
    run: str | None = None  # None in an intent
    attempt: int | None = None
    generation: int | None = None
    target_version: int | None = None
    audit: Json | None = None
    approval: Json | None = None  # who, when and why; None when not needed
    seconds: float | None = None
    staging: str | None = None  # the path of the staged output of a run that waits
    diff: Json | None = None  # what publishing would change, for the approval

    def to_json(self) -> dict[str, object]:
        """The object as the ledger stores it: only keys that apply to the state of the run."""
        names = _DRAFT
        if self.published:
            names = ("run", *_DRAFT, *_PUBLISHED)
        elif self.run is not None:
            names = ("run", *_DRAFT, *_ATTEMPT, "audit", "staging")
            names = names if self.diff is None else (*names, "diff")
        # A certificate without these is as it was before they existed.
        names = tuple(name for name in names if name not in _OPTIONAL or getattr(self, name))
        values = {name: getattr(self, name) for name in names}
        return {**values, "not_covered": asdict(self.not_covered)}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The certificate that `to_json` wrote; missing keys, as of old formats, become None."""
        values: dict[str, Any] = {field.name: value.get(field.name) for field in fields(cls)}
        values["published"] = bool(values["published"])
        missing = values["not_covered"] or {}
        names = (field.name for field in fields(NotCovered))
        values["not_covered"] = NotCovered(**{name: missing.get(name) for name in names})
        return cls(**values)


_OPTIONAL = ("streams", "changes", "timeless")
_DRAFT = tuple(field.name for field in fields(Certificate))
_DRAFT = _DRAFT[: _DRAFT.index("published") + 1]
