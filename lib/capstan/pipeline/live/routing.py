"""Where a record goes, in each phase of a rescale. Pure.

F is the owner of a key before the rescale, G its owner after it; "here" is this worker.

| phase | rule | goes |
| --- | --- | --- |
| any | the record has a newer version than this worker, and F sent it | here |
| normal, preparing | | F |
| interrogating | 1: F is here and G is not: the key is noted | here |
| | 2: else | F |
| collecting | 1.1: G is not here, the key is noted | here |
| | 1.2: its state is being collected | it is buffered |
| | 2: G is not here, and no state is | G |
| | 3: G is here: F is here, or F sent it | here |
| | 4: G is here, else | F is asked |
| finished | 1: G is not here | G |
| | 2: G is here: F is here, F sent it, or F has upgraded | here |
| | 3: G is here, else | F is asked |
| done | | G |

Follows Malstrom's message routers, with the corrections that no record is lost or split: a newer
version is believed only of F; and only keys that F has here are noted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from capstan.pipeline.state.key_placement import Placement


class Phase(StrEnum):
    """How far a worker is with a rescale."""

    NORMAL = "normal"
    PREPARING = "preparing"
    INTERROGATING = "interrogating"
    COLLECTING = "collecting"
    FINISHED = "finished"
    DONE = "done"


@dataclass(slots=True)
class Router:
    """What a worker knows about who owns a key.

    Attributes:
        me: The worker.
        placement: How keys are placed.
        old: The workers before the rescale; when there is none, those that there are.
        new: The workers after it.
        version: Of the placement that this worker goes by.
        phase: How far it is.
        noted: Keys that have to go and have, or may have, state here, in order.
        collecting: Keys whose state is being collected.
        upgraded: The workers that have given away all that had to go.
    """

    me: int
    placement: Placement
    old: tuple[int, ...]
    new: tuple[int, ...]
    version: int = 0
    phase: Phase = Phase.NORMAL
    noted: dict[Hashable, None] = field(default_factory=dict)
    collecting: set[Hashable] = field(default_factory=set)
    upgraded: set[int] = field(default_factory=set)

    def must_move(self, key: Hashable) -> bool:
        """Whether the state of a key is here, and has to go."""
        return self.before(key) == self.me != self.after(key)

    def before(self, key: Hashable) -> int:
        """The owner of a key before the rescale."""
        return self.placement.owner(key, self.old)

    def after(self, key: Hashable) -> int:
        """The owner of a key after the rescale."""
        return self.placement.owner(key, self.new)

    def note(self, keys: Iterable[Hashable]) -> None:
        """Remember that keys have to go."""
        self.noted.update(dict.fromkeys(keys))

    def target(self, key: Hashable, sender: int, version: int | None = None) -> int | None:
        """The worker that a record goes to; None when it has to be buffered here.

        Args:
            key: Of the record.
            sender: Who sent it; this worker when it came from its own input.
            version: The one that it was sent by, where it was sent.
        """
        if version is not None and version > self.version and self.before(key) == sender:
            return self.me
        if self.phase in (Phase.NORMAL, Phase.PREPARING):
            return self.before(key)
        if self.phase is Phase.INTERROGATING:
            if self.must_move(key):
                self.noted[key] = None
            return self.before(key)
        if self.phase is Phase.COLLECTING:
            return self._collecting(key, sender)
        if self.phase is Phase.FINISHED:
            return self._finished(key, sender)
        return self.after(key)

    def _collecting(self, key: Hashable, sender: int) -> int | None:
        owner = self.after(key)
        if owner != self.me:
            if key in self.collecting:
                return None
            return self.me if key in self.noted else owner
        before = self.before(key)
        return self.me if sender == before else before

    def _finished(self, key: Hashable, sender: int) -> int:
        owner = self.after(key)
        if owner != self.me:
            return owner
        before = self.before(key)
        known = before in (self.me, sender) or before in self.upgraded
        return self.me if known else before
