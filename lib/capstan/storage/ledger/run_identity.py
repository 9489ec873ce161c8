"""Identities of replays, and the Delta transaction ids derived from them.

Delta stores only the highest `txnVersion` of a `txnAppId` and silently skips lower ones. Therefore
each publish of an identity (a *generation*) has a separate app id. Within it the version increases
with the attempts: 2k for the fence of attempt k, 2k + 1 for its publish or rollback.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from capstan.storage.delta.idempotent_write import Txn

DIGITS = range(8, 33, 4)
"""The possible numbers of identity digits in a run's name."""


@dataclass(frozen=True, slots=True)
class RunId:
    """One publish of an identity.

    A name has more digits of the identity if a run of another identity has the same digits.
    """

    identity: str  # hash of the replay's input, computation and target
    generation: int  # from 1; of a followed replay, of the run
    target: str  # the short name, for people
    digits: int = DIGITS[0]

    @classmethod
    def named(cls, name: str, identity: str, generation: int, target: str) -> RunId:
        """The id of an existing run, with the target and the number of digits of its name.

        A name without these parts takes its target from the path `target`.
        """
        # The table may have got another name since.
        short, _, shown = stem_of(name).rpartition("-")
        if short and len(shown) in DIGITS:
            return cls(identity, generation, short, len(shown))
        return cls(identity, generation, short_name(target))

    @property
    def stem(self) -> str:
        """The common prefix of the names of all runs of the identity."""
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
        """The transaction by which an attempt fences all earlier ones."""
        return Txn(self.app, 2 * attempt)

    def change(self, attempt: int) -> Txn:
        """The transaction by which an attempt publishes or rolls back."""
        return Txn(self.app, 2 * attempt + 1)

    def side_outputs(self, attempt: int) -> Txn:
        """The transaction by which an attempt writes its side outputs."""
        return Txn(f"aside:{self.identity}:{self.generation}", attempt)


def identity_of(**parts: object) -> str:
    """The hash of a replay's parts as 32 hex digits; equal parts have equal hashes."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def short_name(target: str) -> str:
    """A target's short name: the last part of its path, reduced to the characters of a name."""
    last = target.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^a-z0-9_]+", "_", last.lower()).strip("_")[:40] or "table"


def have_same_identity(run: str, other: str) -> bool:
    """Whether two runs have the same identity, judged by their names."""
    return stem_of(run) == stem_of(other)


def stem_of(run: str) -> str:
    """The common prefix of a run's name and the other names of its identity."""
    return run.rpartition("-")[0]
