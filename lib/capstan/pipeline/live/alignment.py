"""Who has come to a barrier, and after whom nothing comes any more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from capstan.pipeline.keyed.messages import AbsBarrier


@dataclass(slots=True)
class Alignment:
    """How far the inputs of an exchange are.

    Attributes:
        own: The barrier that came on this worker's own input, or None.
        peers: The peers that have sent theirs.
        suspended: The peers after which nothing comes.
        ended: Whether this worker's own input was suspended.
    """

    own: AbsBarrier | None = None
    peers: set[int] = field(default_factory=set)
    suspended: set[int] = field(default_factory=set)
    ended: bool = False

    def take(self, peers: Collection[int]) -> AbsBarrier | None:
        """The barrier, once it has come from everybody but peers that have suspended."""
        if self.own is None or not self.peers | self.suspended >= {*peers}:
            return None
        barrier, self.own = self.own, None
        self.peers.clear()
        return barrier

    def over(self, peers: Collection[int]) -> bool:
        """Whether nothing comes any more, from anybody."""
        return self.ended and self.suspended >= {*peers}
