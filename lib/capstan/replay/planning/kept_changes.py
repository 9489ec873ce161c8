"""The changes that runs keep beside a table that merges by sequence, and which of them count.

The rows of such a table are a function of the set of changes in effect, and of nothing else. So
neither the order of the replays nor how they were cut matters, and a rollback leaves a run out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capstan.storage.ledger.claims import Scope


@dataclass(frozen=True, slots=True)
class KeptChanges:
    """The changes of one published run."""

    name: str
    run: str
    scope: Scope  # The workers and times that it replayed; None for all workers.
    code: tuple[str | None, ...]  # The code of its computation, and `ChangeRule.flags`.

    def contains(self, other: KeptChanges) -> bool:
        """Whether this run replayed all workers and times of another one."""
        return self.scope.contains(other.scope)

    def meets(self, other: KeptChanges) -> bool:
        """Whether both runs may have replayed the same records."""
        return self.scope.overlaps(other.scope)


def in_effect(published: Sequence[KeptChanges]) -> tuple[KeptChanges, ...]:
    """The changes, in order of publication, whose range no later run has replayed as a whole."""
    counting: list[KeptChanges] = []
    for changes in published:
        counting = [earlier for earlier in counting if not changes.contains(earlier)]
        counting.append(changes)
    return tuple(counting)


def partly_replaced(changes: KeptChanges, counting: Iterable[KeptChanges]) -> KeptChanges | None:
    """Changes of other code that a new run would replace only in part; None when there are none."""
    # Of equal sequences, neither the old nor the new code's change could be told to be the later
    # one.
    others = (other for other in counting if other.code != changes.code)
    return next((o for o in others if o.meets(changes) and not changes.contains(o)), None)
