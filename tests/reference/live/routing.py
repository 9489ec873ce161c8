"""Routing of records in each phase of a rescale. Pure.

F is the owner of a key before the rescale, G its owner after it; "here" is this worker.

| phase | rule | destination |
| --- | --- | --- |
| any | the record has a newer version than this worker, and F sent it | here |
| normal, preparing | | F |
| interrogating | 1: F is here and G is not: the key is noted | here |
|  | 2: otherwise | F |
| collecting | 1.1: G is not here, the key is noted | here |
|  | 1.2: its state is being collected | buffered here |
|  | 2: G is not here, and neither is its state | G |
| | 3: G is here: F is here, or F sent it | here |
|  | 3: G is here, otherwise | F |
| finished | 1: G is not here | G |
| | 2: G is here: F is here, F sent it, or F has upgraded | here |
|  | 3: G is here, otherwise | F |
| done | | G |

Follows Malstrom's message routers, corrected so that no record is lost or split: a newer version is
trusted only from F, and only keys whose F is here are noted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.reference.key_placement import KeyPlacement


class Phase(StrEnum):
    """Phase of a worker in a rescale."""

    NORMAL = "normal"
    PREPARING = "preparing"
    INTERROGATING = "interrogating"
    COLLECTING = "collecting"
    FINISHED = "finished"
    DONE = "done"


@dataclass(slots=True)
class Router:
    """A worker's knowledge of the owners of keys.

    Attributes:
        me: The worker.
        placement: Placement of keys.
        old: Workers before the rescale, or the current ones without a rescale.
        new: Workers after the rescale.
        version: Version of the placement that this worker uses.
        phase: Phase of this worker.
        noted: Keys that must move and have, or may have, state here, in order.
        collecting: Keys whose state is being collected.
        upgraded: Workers that have sent away all keys that must move.
    """

    me: int
    placement: KeyPlacement
    old: tuple[int, ...]
    new: tuple[int, ...]
    version: int = 0
    phase: Phase = Phase.NORMAL
    noted: dict[Hashable, None] = field(default_factory=dict)
    collecting: set[Hashable] = field(default_factory=set)
    upgraded: set[int] = field(default_factory=set)

    def must_move(self, key: Hashable) -> bool:
        """Whether the state of a key is here and must move."""
        return self.before(key) == self.me != self.after(key)

    def before(self, key: Hashable) -> int:
        """Return the owner of a key before the rescale."""
        return self.placement.owner(key, self.old)

    def after(self, key: Hashable) -> int:
        """Return the owner of a key after the rescale."""
        return self.placement.owner(key, self.new)

    def note(self, keys: Iterable[Hashable]) -> None:
        """Remember keys that must move."""
        self.noted.update(dict.fromkeys(keys))

    def target(self, key: Hashable, sender: int, version: int | None = None) -> int | None:
        """Return the destination of a record; None when it must be buffered here.

        Args:
            key: Key of the record.
            sender: Sender of the record; this worker for its own input.
            version: Placement version of the sender, for a sent record.
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
