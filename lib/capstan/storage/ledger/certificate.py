"""The certificate of a replay, as the runs ledger stores it.

It states what was read, from where, into what, and what is not covered. Values are those of the
stored JSON: times are rendered, and workers are labels, or ranges of numbers when there are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

Json = Mapping[str, Any]
"""A JSON object."""

PUBLIC_KEYS = (
    "run", "stream", "cut", "workers", "peers", "records", "since", "until", "frontier",
    "complete", "target", "target_version", "audit", "published",
)  # fmt: skip
"""Keys that other programs rely on, in the order in which they are printed."""
_ATTEMPT = ("attempt", "generation")
_PUBLISHED = (*_ATTEMPT, "target_version", "audit", "approval", "seconds")


@dataclass(frozen=True, slots=True)
class NotCovered:
    """The part of a stream that a replay leaves out.

    Attributes:
        workers: Workers of the cut that were not chosen, listed as in the certificate.
        incomplete_from: The frontier, when the requested range is not complete; else None.
        asked_until: The requested end of the range; None when there is none.
    """

    workers: object
    incomplete_from: Sequence[object] | None
    asked_until: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a replay read and wrote. Before it publishes, only the facts up to `published` are set.

    Attributes:
        format: The version of the format: 3 with several streams, 2 when workers are listed by
            number, else 1.
        stream: The stream; of several, their names joined by `+`, in the order of `streams`.
        cut: The commit of the tape that was pinned; of several streams, that of the first.
        workers: Labels of the chosen workers, or `count` and `numbers` when there are many; of
            several streams, those of the first whose workers the rows keep.
        replay_workers: Sequences, records and frontier of each replay worker; None for too many.
        times: The number of distinct times read; several streams are counted one by one.
        since: The first time written; None from the start.
        until: The first time no longer written; None for no end.
        frontier: The common frontier of the chosen workers of all streams.
        complete: Whether the requested range was complete.
        not_covered: The part of the stream that was left out; its workers are left
            out of the same stream as `workers` has.
        late: Late rows of the range by reason; they are not on tape.
        transform: The transform; None for none.
        pipeline: Pipeline, sink, input range, counters and state; None for none.
        code: The hash of the code; None for a copy.
        mode: How the target was changed.
        follow: The name of the followed replay; None for a single one.
        streams: Of several streams, a part each: `source`, `stream`, `cut`, `workers`, `left_out`,
            `records`, `times`, `fingerprint`, `frontier` and `late`; None for one stream.
        changes: The rule of a merge by sequence, as `ChangeRule.to_json` has it; None for others.
        run: The run; None in an intent.
        approval: Who approved it, when and why; None when no approval was needed.
        staging: The path of the staged output of a run that waits; None for others.
        diff: What publishing would change, for the approval; None for others.
    """

    format: int
    stream: str
    cut: int
    workers: object
    peers: int
    replay_workers: Sequence[Json] | None
    records: int
    times: int
    fingerprint: str
    since: object
    until: object
    frontier: Sequence[object]
    complete: bool
    not_covered: NotCovered
    late: Mapping[str, int]
    transform: str | None
    pipeline: Json | None
    code: str | None
    mode: str
    follow: str | None
    target: str
    target_path: str
    streams: Sequence[Json] | None = None
    changes: Json | None = None
    published: bool = False
    run: str | None = None
    attempt: int | None = None
    generation: int | None = None
    target_version: int | None = None
    audit: Json | None = None
    approval: Json | None = None
    seconds: float | None = None
    staging: str | None = None
    diff: Json | None = None

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


_OPTIONAL = ("streams", "changes")
_DRAFT = tuple(field.name for field in fields(Certificate))
_DRAFT = _DRAFT[: _DRAFT.index("published") + 1]
