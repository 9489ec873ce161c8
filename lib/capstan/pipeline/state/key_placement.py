"""Placement of keys on workers: a pure function of the key and the workers.

Both placements use the stable hash `h` of the key (`capstan.pipeline.state.key_hash`), and are the
same in Spark SQL: their `sql` is an expression over `h` and an array `ws` of workers in ascending
order.

Follows Malstrom's `index_select` and `rendezvous_select`, whose hash changes with releases.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Final, Protocol

import numpy as np
import pyarrow as pa

from capstan.pipeline.state.key_hash import hash_long, key_hash, mix, signed

_SEED: Final = 42


class Placement(Protocol):
    """Decides which of several workers owns a key."""

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key` among `workers`, which must not be empty."""


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
            _required(workers), key=lambda worker: (signed(hash_long(worker, chained)), worker)
        )

    def owners(self, hashes: pa.Array, workers: Sequence[int]) -> pa.Array:
        """Return the owners (int64) of keys with these hashes (int64)."""
        numbers = hashes.to_numpy(zero_copy_only=False)
        first, *others = sorted(_required(workers))
        best, owner = mix(numbers, first), np.full(len(numbers), first, np.int64)
        for worker in others:
            weight = mix(numbers, worker)
            better = weight >= best
            best, owner = np.where(better, weight, best), np.where(better, worker, owner)
        return pa.array(owner)


class Modulo:
    """Owner is the worker at the position of the hash modulo the number of workers.

    >>> Modulo().owner("a", [7])
    7
    """

    __slots__ = ()
    sql: ClassVar = "element_at(ws, cast(pmod(h, size(ws)) AS INT) + 1)"

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key`."""
        ordered = sorted(_required(workers))
        return ordered[key_hash(key) % len(ordered)]

    def owners(self, hashes: pa.Array, workers: Sequence[int]) -> pa.Array:
        """Return the owners (int64) of keys with these hashes (int64)."""
        ordered = np.array(sorted(_required(workers)), np.int64)
        return pa.array(ordered[hashes.to_numpy(zero_copy_only=False) % len(ordered)])


def _required(workers: Sequence[int]) -> Sequence[int]:
    if not workers:
        message = "a placement needs at least one worker"
        raise ValueError(message)
    return workers
