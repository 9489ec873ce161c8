"""Snapshots of states by worker, operator and key: rescale and verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from capstan.pipeline.state.codec import Encoded
from capstan.pipeline.state.errors import Misplaced, NotKeyed, NotWhole
from tests.reference.key_placement import KeyPlacement

OperatorStates = Mapping[int, Mapping[Hashable, Encoded]]
"""States by operator and key."""

_Place = tuple[int, Hashable]


@dataclass(frozen=True, slots=True)
class Proof:
    """Verified placement of keys after a rescale that lost none.

    Attributes:
        keys: Number of keys, counted at every operator.
        moved: Number of keys that changed their worker.
        held: Number of keys on each worker.
    """

    keys: int
    moved: int
    held: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """The states of all keys at one barrier.

    Attributes:
        number: Number of the barrier.
        states: States by worker.
        epoch: The last epoch before the barrier, or None.
        placed: Operators whose keys are placed; the keys of others stay on their worker.
    """

    number: int
    states: Mapping[int, OperatorStates]
    epoch: int | None = None
    placed: frozenset[int] = frozenset()

    @property
    def workers(self) -> tuple[int, ...]:
        """Workers that took the snapshot."""
        return tuple(sorted(self.states))

    def rescaled(self, workers: Sequence[int], placement: KeyPlacement) -> KeyedSnapshot:
        """Move the states to other workers, each key to its owner.

        Raises:
            NotKeyed: An operator without placed keys has state.
            Misplaced: A key was on two workers, or not with its owner.
        """
        if set(workers) == set(self.states):
            return self
        for worker, operators in self.states.items():
            for operator, states in operators.items():
                if states and operator not in self.placed:
                    text = f"operator {operator} on worker {worker} has state, but no placed keys"
                    raise NotKeyed.create(text, operator=operator, worker=worker)
        prove(None, self.states, placement, self.workers)
        moved: dict[int, dict[int, dict[Hashable, Encoded]]] = {w: {} for w in sorted(workers)}
        for _, operator, key, state in _entries(self.states):
            owner = placement.owner(key, workers)
            moved[owner].setdefault(operator, {})[key] = state
        prove(self.states, moved, placement, workers)
        return KeyedSnapshot(self.number, moved, self.epoch, self.placed)


def prove(
    before: Mapping[int, OperatorStates] | None,
    after: Mapping[int, OperatorStates],
    placement: KeyPlacement,
    workers: Sequence[int],
) -> Proof:
    """Verify that each key is with its owner exactly once, and that no previous key is missing.

    Args:
        before: States before, or None to verify only the placement.
        after: States after.
        placement: Placement of the keys.
        workers: Workers among which keys are placed.

    Raises:
        Misplaced: Names some of the keys that are lost, new, duplicated, or with another worker.
    """
    places: dict[_Place, list[int]] = {}
    for worker, operator, key, _ in _entries(after):
        places.setdefault((operator, key), []).append(worker)
    owners = {(op, key): worker for worker, op, key, _ in _entries(before or {})}
    twice = [place for place, holders in places.items() if len(holders) > 1]
    wrong = [
        place
        for place, holders in places.items()
        if holders[0] != placement.owner(place[1], workers)
    ]
    lost = [place for place in owners if place not in places]
    new = [place for place in places if before is not None and place not in owners]
    if twice or wrong or lost or new:
        raise Misplaced.create(
            f"{len(lost)} keys are lost, {len(new)} new, {len(twice)} duplicated, "
            f"{len(wrong)} not with their owner",
            lost=_sample(lost),
            new=_sample(new),
            twice=_sample(twice),
            misplaced=_sample(wrong),
        )
    held = Counter(holders[0] for holders in places.values())
    moved = sum(places[place][0] != worker for place, worker in owners.items())
    return Proof(len(places), moved, {worker: held[worker] for worker in sorted(workers)})


def common_epoch(epochs: Mapping[tuple[int, int], int | None]) -> int | None:
    """Return the epoch that all operators had passed on at a barrier, by worker and number.

    Raises:
        NotWhole: They had passed on different epochs.
    """
    distinct = set(epochs.values())
    if len(distinct) > 1:
        reason = f"operators are at different epochs: {dict(sorted(epochs.items()))}"
        raise NotWhole.create(reason, reason=reason)
    return next(iter(distinct), None)


def _entries(states: Mapping[int, OperatorStates]) -> Iterator[tuple[int, int, Hashable, Encoded]]:
    for worker, operators in states.items():
        for operator, keys in operators.items():
            for key, state in keys.items():
                yield worker, operator, key, state


def _sample(places: Sequence[_Place]) -> list[str]:
    return [f"{key!r} of operator {operator}" for operator, key in places[:5]]
