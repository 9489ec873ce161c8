"""The rules that the recording of one worker must obey.

A recording is a sequence of events, numbered from 0. A worker starts out holding exactly one
*capability*, for the minimum time: `H = {minimum: 1}`, where `H` counts the capabilities held at
each time. A recording is valid when every event obeys, against `H` as it was before the event:

1.  *Progress.* The updates at one time are first added up; a batch is one atomic change, so
    order, zeros and cancelling pairs do not matter.
    a.  For each time `t` whose net count goes up, some held `s` is less or equal to `t`
        (`increment`).
    b.  After the change no count is below zero (`negative`).
2.  *Messages.* For each element `t` of their stamp, some held `s` is less or equal to `t`, also
    when there are no records (`message`). One held time is enough for several elements, and one
    capability for equal ones. Messages without elements need nothing.

The rules of the medium come on top. Each item is an event of this recording, with the elements of a
stamp in order (`shape`), and numbers have no gap or repeat (`seq`). If the payload is read too,
each event has exactly the records it counted (`content`).

An event that breaks several rules is reported under the first of `shape`, `seq`, `increment`,
`negative`, `message`. The check stops there, with holdings and counts as they were before it.

Consequences of the rules:

-   Messages may be moved earlier in the sequence, and progress later past messages. But the last
    capability at or below a message must not be dropped before it.
-   Support needs no order inside a batch: a new time that supports another must itself be supported
    by a capability held before.
-   Once `H` is empty the worker is *closed*: only events that change nothing, and messages without
    elements, can follow.
-   Every prefix is valid. A missing tail looks the same as a worker that is still open.
-   Any interleaving of `n` valid recordings is valid from `{minimum: n}`.
-   A repeated or missing batch of messages breaks no rule. Only counts and hashes reveal it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from capstan.core.times import Time, TimeType

_SHOWN = 5


class Rule(StrEnum):
    """The name of a rule, as in reports and ledgers."""

    SHAPE = "shape"
    SEQ = "seq"
    INCREMENT = "increment"
    NEGATIVE = "negative"
    MESSAGE = "message"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Violation:
    """The first event where a recording breaks a rule, at position `seq` from 0."""

    seq: int
    rule: Rule
    time: Time | None  # the first in listing order; None if the rule is not about times
    held: tuple[tuple[Time, int], ...]  # before the event: `(time, count)` in listing order
    # For `increment` the total increase at the time; for `negative` what it would fall to.
    count: int | None = None
    detail: str = ""  # for `shape`, `seq` and `content` a description

    def describe(self, time_type: TimeType) -> str:
        """One sentence with the violation and the capabilities held."""
        return f"event {self.seq}: {self._complaint(time_type)}; {self._holdings(time_type)}"

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The violation as JSON for reports."""
        return {
            "seq": self.seq,
            "rule": self.rule.value,
            "time": None if self.time is None else time_type.render(self.time),
            "held": holdings_json(self.held, time_type),
            "about": self.describe(time_type),
        }

    def _complaint(self, time_type: TimeType) -> str:
        if self.time is None:
            return f"{self.rule}: {self.detail}"
        time = time_type.render_text(self.time)
        if self.rule is Rule.INCREMENT:
            return f"{time} goes up by {self.count}, and nothing held is less or equal"
        if self.rule is Rule.NEGATIVE:
            return f"{time} falls to {self.count}"
        if self.rule is Rule.MESSAGE:
            return f"messages at {time}, and nothing held is less or equal"
        return f"{self.rule} at {time}: {self.detail}"

    def _holdings(self, time_type: TimeType) -> str:
        if not self.held:
            return "nothing was held"
        first = [f"{time_type.render_text(time)} x{count}" for time, count in self.held[:_SHOWN]]
        more = len(self.held) - len(first)
        return f"held: {', '.join(first)}" + (f" and {more} more" if more else "")


def holdings_json(held: tuple[tuple[Time, int], ...], time_type: TimeType) -> list[list[object]]:
    """Held times with their counts as JSON for reports: `[[time, count], ...]`."""
    return [[time_type.render(time), count] for time, count in held]
