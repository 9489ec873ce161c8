"""Placement of keys on workers: a pure function of the key and the workers.

It uses the stable hash `h` of the key (`capstan.pipeline.state.key_hash`), and is the same in Spark
SQL: `sql` is an expression over `h` and an array `ws` of workers in ascending order.

Follows Malstrom's `index_select`, whose hash changes with releases.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from capstan.pipeline.state.key_hash import key_hash


class Modulo:
    """Owner is the worker at the position of the hash modulo the number of workers.

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
        ordered = np.array(sorted(required(workers)), np.int64)
        return pa.array(ordered[hashes.to_numpy(zero_copy_only=False) % len(ordered)])


def required(workers: Sequence[int]) -> Sequence[int]:
    """The workers; refused when there are none."""
    if not workers:
        message = "a placement needs at least one worker"
        raise ValueError(message)
    return workers
