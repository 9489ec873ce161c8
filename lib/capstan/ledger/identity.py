"""Identities: what makes two replays the same, and the transaction ids that follow from it.

Delta remembers only the highest `txnVersion` of a `txnAppId` and skips a lower one in silence. So
each publish of an identity has an app id of its own (its *generation*), within which the version
rises with the attempts: 2k for the fence of attempt k, 2k + 1 for its publish or rollback.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from capstan.tape.transaction import Txn


@dataclass(frozen=True, slots=True)
class RunId:
    """One publish of an identity.

    Attributes:
        identity: Hash of what is replayed, how, and into what.
        generation: Counts the publishes of the identity, from 1; of a followed replay, its runs.
        target: The target's short name, for people.
    """

    identity: str
    generation: int
    target: str

    @property
    def name(self) -> str:
        """The run's name: `march_departures-3f2a9c1b-1`."""
        return f"{self.target}-{self.identity[:8]}-{self.generation}"

    @property
    def app(self) -> str:
        """The transaction app id of the run's writes to its target."""
        return f"replay:{self.identity}:{self.generation}"

    def fence(self, attempt: int) -> Txn:
        """The transaction by which an attempt shuts out all earlier ones."""
        return Txn(self.app, 2 * attempt)

    def change(self, attempt: int) -> Txn:
        """The transaction by which an attempt publishes, or takes back what the run published."""
        return Txn(self.app, 2 * attempt + 1)

    def aside(self, attempt: int) -> Txn:
        """The transaction by which an attempt keeps what its pipeline has put aside."""
        return Txn(f"aside:{self.identity}:{self.generation}", attempt)


def identity_of(parts: Mapping[str, object]) -> str:
    """The hash of a replay's parts, as 32 hex digits; equal parts give equal hashes."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def short_name(target: str) -> str:
    """A target's name for people: the last part of its path, in the letters of a name."""
    last = target.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^a-z0-9_]+", "_", last.lower()).strip("_")[:40] or "table"


def are_of_one(run: str, other: str) -> bool:
    """Whether two names are those of runs of one identity, of any generation."""
    return run.rpartition("-")[0] == other.rpartition("-")[0]
