"""States by worker, operator and key as values: rescaled, proved, and as rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from capstan.pipeline.state.codec import PLAIN, Encoded
from capstan.pipeline.state.errors import Misplaced, NoHash, NotKeyed, NotWhole, SnapshotCorrupt
from capstan.pipeline.state.key_hash import key_hash
from capstan.pipeline.state.key_placement import Placement

OperatorStates = Mapping[int, Mapping[Hashable, Encoded]]
"""By operator and key a state."""

_Place = tuple[int, Hashable]

ROWS: Final = pa.schema(
    [
        pa.field("worker", pa.int64(), nullable=False),
        pa.field("operator", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("hash", pa.int64(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("state", pa.binary(), nullable=False),
    ]
)
"""The columns of `KeyedSnapshot.rows`; `key` is written by the codec `plain`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Where keys are after a rescale, and that none was lost on the way.

    Attributes:
        keys: How many there are, counted at every operator.
        moved: How many of them are on another worker than before.
        held: How many there are on each worker.
    """

    keys: int
    moved: int
    held: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """The states of all keys at one barrier.

    Attributes:
        number: Of the barrier.
        states: By worker.
        epoch: The last epoch before the barrier, or None.
        placed: The operators whose keys have an owner; others keep to their worker.
    """

    number: int
    states: Mapping[int, OperatorStates]
    epoch: int | None = None
    placed: frozenset[int] = frozenset()

    @property
    def workers(self) -> tuple[int, ...]:
        """Those that took it."""
        return tuple(sorted(self.states))

    def rescaled(self, workers: Sequence[int], placement: Placement) -> KeyedSnapshot:
        """The same states on other workers, each key with its owner.

        Raises:
            NotKeyed: An operator whose keys have no owner has state.
            Misplaced: A key was on two workers, or not with its owner.
        """
        if set(workers) == set(self.states):
            return self
        for worker, operators in self.states.items():
            for operator, states in operators.items():
                if states and operator not in self.placed:
                    text = f"operator {operator} on worker {worker} has keys without an owner"
                    raise NotKeyed.create(text, operator=operator, worker=worker)
        prove(None, self.states, placement, self.workers)
        dealt: dict[int, dict[int, dict[Hashable, Encoded]]] = {w: {} for w in sorted(workers)}
        for _, operator, key, state in _each(self.states):
            owner = placement.owner(key, workers)
            dealt[owner].setdefault(operator, {})[key] = state
        prove(self.states, dealt, placement, workers)
        return KeyedSnapshot(self.number, dealt, self.epoch, self.placed)

    def rows(self) -> pa.Table:
        """The states as rows with the columns `ROWS`.

        Raises:
            ValueError: A key is not a plain value.
        """
        found = list(_each(self.states))
        columns = [
            [worker for worker, _, _, _ in found],
            [operator for _, operator, _, _ in found],
            [PLAIN.encode(key) for _, _, key, _ in found],
            [key_hash(key) for _, _, key, _ in found],
            [state.codec for _, _, _, state in found],
            [state.version for _, _, _, state in found],
            [state.data for _, _, _, state in found],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=ROWS)

    @classmethod
    def of_rows(
        cls,
        number: int,
        rows: pa.Table,
        workers: Sequence[int],
        epoch: int | None = None,
        placed: frozenset[int] = frozenset(),
    ) -> KeyedSnapshot:
        """The snapshot whose `rows` these are.

        Args:
            number: Of the barrier.
            rows: With the columns `ROWS`.
            workers: Those that took it, also such as have no row.
            epoch: The last epoch before the barrier, or None.
            placed: The operators whose keys have an owner.

        Raises:
            SnapshotCorrupt: A row is not one of a snapshot, or is there twice.
        """
        states: dict[int, dict[int, dict[Hashable, Encoded]]] = {w: {} for w in workers}
        for row in rows.to_pylist():
            key = _key_of(row["key"], row["hash"])
            here = states.get(row["worker"])
            if here is None:
                reason = f"rows of worker {row['worker']}, which took no part"
                raise SnapshotCorrupt.create(reason, reason=reason)
            states_of = here.setdefault(row["operator"], {})
            if key in states_of:
                reason = f"two states of key {key!r} at operator {row['operator']}"
                raise SnapshotCorrupt.create(reason, reason=reason)
            states_of[key] = Encoded(row["codec"], row["version"], row["state"])
        return cls(number, states, epoch, placed)


def prove(
    before: Mapping[int, OperatorStates] | None,
    after: Mapping[int, OperatorStates],
    placement: Placement,
    workers: Sequence[int],
) -> Proof:
    """Prove that every key is once, with its owner, and that none of those before is missing.

    Args:
        before: The states before, or None where only places are to be proved.
        after: The states after.
        placement: Who owns a key.
        workers: Among whom.

    Raises:
        Misplaced: Naming some of the keys that are lost, new, there twice, or with another worker.
    """
    places: dict[_Place, list[int]] = {}
    for worker, operator, key, _ in _each(after):
        places.setdefault((operator, key), []).append(worker)
    was = {(op, key): worker for worker, op, key, _ in _each(before or {})}
    twice = [place for place, found in places.items() if len(found) > 1]
    wrong = [
        place for place, found in places.items() if found[0] != placement.owner(place[1], workers)
    ]
    lost = [place for place in was if place not in places]
    new = [place for place in places if before is not None and place not in was]
    if twice or wrong or lost or new:
        raise Misplaced.create(
            f"{len(lost)} keys are lost, {len(new)} new, {len(twice)} there twice, "
            f"{len(wrong)} not with their owner",
            lost=_some(lost),
            new=_some(new),
            twice=_some(twice),
            misplaced=_some(wrong),
        )
    held = Counter(found[0] for found in places.values())
    moved = sum(places[place][0] != worker for place, worker in was.items())
    return Proof(len(places), moved, {worker: held[worker] for worker in sorted(workers)})


def common_epoch(epochs: Mapping[tuple[int, int], int | None]) -> int | None:
    """The epoch that all operators, by worker and number, had passed on at a barrier.

    Raises:
        NotWhole: They had passed on different ones.
    """
    found = set(epochs.values())
    if len(found) > 1:
        reason = f"operators are at different epochs: {dict(sorted(epochs.items()))}"
        raise NotWhole.create(reason, reason=reason)
    return next(iter(found), None)


def _each(
    states: Mapping[int, OperatorStates],
) -> Iterator[tuple[int, int, Hashable, Encoded]]:
    for worker, operators in states.items():
        for operator, keys in operators.items():
            for key, state in keys.items():
                yield worker, operator, key, state


def _key_of(data: bytes, hashed: int) -> Hashable:
    try:
        key = PLAIN.decode(data)
        found = key_hash(key)
    except (ValueError, TypeError, NoHash) as error:
        raise SnapshotCorrupt.create(f"not a key: {data!r}", reason=str(error)) from error
    if found == hashed:
        return key
    reason = f"the key {key!r} does not have the hash {hashed}"
    raise SnapshotCorrupt.create(reason, reason=reason)


def _some(places: Sequence[_Place]) -> list[str]:
    return [f"{key!r} of operator {operator}" for operator, key in places[:5]]
