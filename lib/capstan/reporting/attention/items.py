"""The list of what needs a person, and its entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from capstan.core.json_object import Json
from capstan.errors import CheckFailedError
from capstan.reporting.formatting import number

KINDS = {
    "waiting": "a run waits for a decision",
    "failed": "a run failed, and its range was not published since",
    "dead": "a run was cut off, and its range was not published since",
    "violation": "a recording breaks the rules",
    "unreadable": "a tape or a table cannot be read",
    "stalled": "a frontier does not move",
    "gap": "complete intervals of a declared replay are not written",
    "changed": "intervals of a declared replay were changed by others",
    "stale": "intervals of a declared replay were written by older code",
}
"""What can need a person, in the order of the list."""

SEARCHES = {"waiting": "audited", "failed": "failed", "dead": "stopped"}
"""The states by which the list of runs finds those of a kind."""

UNCOMPARED = "nobody has looked whether later ones have published the same"

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """One thing that needs a person, and what to do about it."""

    kind: str  # one of `KINDS`
    subject: str  # `run`, `stream` or `replay`
    name: str  # of the subject
    stream: str  # of several, their names joined by `+`
    text: str  # in a sentence
    since: datetime | None = None  # None when that is not recorded
    first: str | None = None  # the first time of its intervals; None without any
    replay: str = ""  # the declared replay that it concerns; empty for none
    target: str = ""  # the path of the table, or its declared name; empty for a stream
    number: int = 1  # of its intervals or workers
    command: str = ""  # what mends it, for a shell; empty when a person has to look first
    form: str = ""  # the query that prefills the form of a replay; empty for none

    @property
    def key(self) -> str:
        """A text by which it is the same at each look."""
        return f"{self.kind} {self.subject} {self.name}"

    @property
    def page(self) -> str:
        """The path of its subject's page, below the address of the pages."""
        return f"/{self.subject}s/{self.name}"

    @property
    def line(self) -> str:
        """Kind, subject and sentence on one line."""
        return f"{self.kind}: {self.subject} {self.name}: {self.text}"

    def to_json(self) -> Json:
        """The entry as a JSON object."""
        return {
            "kind": self.kind,
            "subject": self.subject,
            "name": self.name,
            "stream": self.stream,
            "replay": self.replay or None,
            "target": self.target or None,
            "since": None if self.since is None else f"{self.since:%Y-%m-%dT%H:%M:%SZ}",
            "first": self.first,
            "number": self.number,
            "text": self.text,
            "command": self.command or None,
            "page": self.page,
            "form": f"/fill?{self.form}" if self.form else None,
        }


@dataclass(frozen=True, slots=True)
class AttentionList:
    """What needs a person: of each kind the first entries, and how many there are."""

    items: tuple[AttentionItem, ...]  # in the order of `KINDS`
    counts: Mapping[tuple[str, str], int]  # of all entries, by kind and stream
    older: int = 0  # of the runs counted: too old to be looked at, and never among `items`

    @property
    def total(self) -> int:
        """The number of all entries."""
        return sum(self.counts.values())

    @property
    def kinds(self) -> Mapping[str, int]:
        """The number of all entries by kind, of those that there are."""
        by_kind: Counter[str] = Counter()
        for (kind, _), count in self.counts.items():
            by_kind[kind] += count
        return {kind: by_kind[kind] for kind in KINDS if by_kind[kind]}

    @property
    def left(self) -> Mapping[str, int]:
        """How many entries of each kind are not among `items`, of those that there are."""
        listed = Counter(item.kind for item in self.items)
        left = {kind: count - listed[kind] for kind, count in self.kinds.items()}
        return {kind: count for kind, count in left.items() if count}

    @property
    def more(self) -> str:
        """How many entries are not among `items`, in words; empty for none."""
        parts = ", ".join(f"{number(count)} {kind}" for kind, count in self.left.items())
        older = f"; of the oldest {number(self.older)} runs, {UNCOMPARED}" if self.older else ""
        return f"and {number(sum(self.left.values()))} more: {parts}{older}" if parts else ""

    @property
    def error(self) -> CheckFailedError | None:
        """The error of a list with entries; None for an empty one."""
        return needs_attention(self.items, self.total, self.older) if self.total else None

    def to_json(self) -> dict[str, object]:
        """The list as a JSON object."""
        return {
            "attention": [item.to_json() for item in self.items],
            "kinds": dict(self.kinds),
            "total": self.total,
            "older": self.older,
        }

    def first(self, most: int) -> AttentionList:
        """The same list with at most so many entries of each kind."""
        seen: Counter[str] = Counter()
        kept: list[AttentionItem] = []
        for item in self.items:
            seen[item.kind] += 1
            if seen[item.kind] <= most:
                kept.append(item)
        return replace(self, items=tuple(kept))


def needs_attention(items: Iterable[AttentionItem], total: int, older: int = 0) -> CheckFailedError:
    """The error that names some entries, of which there are `total`.

    Of these, `older` are runs that are only counted.
    """
    listed = list(items)
    lines = [item.line for item in listed[:_NAMED]]
    more = total - len(lines) - older
    if more:
        lines.append(f"and {number(more)} more")
    if older:
        lines.append(f"and the oldest {number(older)} runs, {UNCOMPARED}")
    return CheckFailedError(
        "CAP-ATTENTION",
        f"{number(total)} {'thing needs' if total == 1 else 'things need'} a person: "
        + "; ".join(lines).removeprefix("and "),
        "see `capstan status`, or the page Capstan in Airflow, for what to do about each",
        attention=[item.to_json() for item in listed],
    )
