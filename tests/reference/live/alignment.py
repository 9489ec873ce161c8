"""Alignment of barriers, and the ends of inputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tests.reference.live.messages import AbsBarrier


@dataclass(slots=True)
class Alignment:
    """Progress of the inputs of an exchange.

    Attributes:
        own: Barrier that arrived on the worker's own input, or None.
        peers: Peers that have sent their barrier.
        suspended: Peers that have suspended.
        ended: Whether the worker's own input has suspended.
    """

    own: AbsBarrier | None = None
    peers: set[int] = field(default_factory=set)
    suspended: set[int] = field(default_factory=set)
    ended: bool = False

    def take(self, peers: Collection[int]) -> AbsBarrier | None:
        """Return the barrier, once all peers have sent it or have suspended."""
        if self.own is None or not self.peers | self.suspended >= {*peers}:
            return None
        barrier, self.own = self.own, None
        self.peers.clear()
        return barrier

    def over(self, peers: Collection[int]) -> bool:
        """Whether all inputs have ended."""
        return self.ended and self.suspended >= {*peers}
