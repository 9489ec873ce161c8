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

from capstan.storage.idempotent_write import Txn

DIGITS = range(8, 33, 4)
"""How many digits of an identity a name may have."""


@dataclass(frozen=True, slots=True)
class RunId:
    """One publish of an identity.

    Attributes:
        identity: Hash of what is replayed, how, and into what.
        generation: Counts the publishes of the identity, from 1; of a followed replay, its runs.
        target: The target's short name, for people.
        digits: How many digits of the identity are in the run's name: more than the first few where
            a run of another identity has these already.
    """

    identity: str
    generation: int
    target: str
    digits: int = DIGITS[0]

    @classmethod
    def named(cls, name: str, identity: str, generation: int, target: str) -> RunId:
        """A run that has a name already, with as many digits as are in that.

        Args:
            name: The name.
            identity: The run's identity.
            generation: Its generation.
            target: The target's path.
        """
        digits = len(stem_of(name).rpartition("-")[2])
        digits = digits if digits in DIGITS else DIGITS[0]
        return cls(identity, generation, short_name(target), digits)

    @property
    def stem(self) -> str:
        """What the names of all runs of the identity begin with."""
        return f"{self.target}-{self.identity[: self.digits]}"

    @property
    def name(self) -> str:
        """The run's name: `march_departures-3f2a9c1b-1`."""
        return f"{self.stem}-{self.generation}"

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
    return stem_of(run) == stem_of(other)


def stem_of(run: str) -> str:
    """What a run's name has in common with those of the other runs of its identity."""
    return run.rpartition("-")[0]
