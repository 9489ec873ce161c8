"""Placements of keys that live jobs choose between; follows Malstrom's `rendezvous_select`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capstan.pipeline.state.key_hash import _hash_words, owners_of
from tests.reference.key_hash import hash_long, key_hash, signed

_SEED: Final = 42


class KeyPlacement(Protocol):
    """Decides which of several workers owns a key."""

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key` among `workers`, which must not be empty."""


class Modulo:
    """Owner is the worker at the position of the hash modulo the number of workers.

    A pure function of the key and the workers, and the same in Spark SQL: `sql` is an expression
    over `h`, the stable hash of the key, and an array `ws` of workers in ascending order.

    >>> Modulo().owner("a", [7])
    7
    """

    __slots__ = ()
    sql: ClassVar = "element_at(ws, cast(pmod(h, size(ws)) AS INT) + 1)"

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key`."""
        ordered = sorted(required(workers))
        return ordered[key_hash(key) % len(ordered)]

    def owners(self, hashes: pa.Array, workers: Sequence[int]) -> pa.Array:
        """Return the owners (int64) of keys with these hashes (int64)."""
        ordered = pa.array(sorted(required(workers)), pa.int64())
        return ordered.take(owners_of(hashes, len(ordered)))


class Rendezvous:
    """Owner is the worker with the greatest hash of key and worker; rescales move few keys.

    >>> Rendezvous().owner("a", [0])
    0
    """

    __slots__ = ()
    sql: ClassVar = (
        "array_max(transform(ws, w -> struct(xxhash64(h, cast(w AS BIGINT)) AS weight, w AS w))).w"
    )

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key`."""
        chained = hash_long(key_hash(key), _SEED)
        return max(
            required(workers), key=lambda worker: (signed(hash_long(worker, chained)), worker)
        )

    def owners(self, hashes: pa.Array, workers: Sequence[int]) -> pa.Array:
        """Return the owners (int64) of keys with these hashes (int64)."""
        numbers = hashes.to_numpy(zero_copy_only=False)
        first, *others = sorted(required(workers))
        best, owner = _mixed(numbers, first), np.full(len(numbers), first, np.int64)
        for worker in others:
            weight = _mixed(numbers, worker)
            better = weight >= best
            best, owner = np.where(better, weight, best), np.where(better, worker, owner)
        return pa.array(owner)


def required(workers: Sequence[int]) -> Sequence[int]:
    """The workers; refused when there are none."""
    if not workers:
        message = "a placement needs at least one worker"
        raise ValueError(message)
    return workers


def _mixed(hashes: npt.NDArray[np.int64], number: int) -> npt.NDArray[np.int64]:
    """Return for each hash the SQL `xxhash64(hash, cast(number AS BIGINT))`."""
    chained = _hash_words(hashes.view(np.uint64), np.full(len(hashes), _SEED, np.uint64))
    return _hash_words(np.full(len(hashes), number, np.uint64), chained).view(np.int64)
