"""Stable hash of a single key in plain Python, by which those of whole columns are checked."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

import numpy as np

from capstan.pipeline.state.errors import NoHash
from capstan.pipeline.state.key_hash import (
    _MASK,
    _P1,
    _P2,
    _P3,
    _P4,
    _P5,
    _SEED,
    _digits,
    _hash_rows,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return the XXH64 of bytes, unsigned.

    >>> hex(xxh64(b""))
    '0xef46db3751d8e999'
    """
    if len(data) >= 32:
        rows = np.frombuffer(data, np.uint8).reshape(1, len(data))
        return int(_hash_rows(rows, np.array([seed & _MASK], np.uint64))[0])
    # Most keys are short, and for a single key Python's integers are faster than numpy.
    value, position = (seed + _P5 + len(data)) & _MASK, 0
    while position + 8 <= len(data):
        value = _mix_long(value, int.from_bytes(data[position : position + 8], "little"))
        position += 8
    if position + 4 <= len(data):
        value ^= (int.from_bytes(data[position : position + 4], "little") * _P1) & _MASK
        value = (_rotate(value, 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        value = (_rotate(value ^ (byte * _P5 & _MASK), 11) * _P1) & _MASK
    return _avalanche(value)


def hash_long(value: int, seed: int) -> int:
    """Return the XXH64 of 8 little-endian bytes, unsigned."""
    return _avalanche(_mix_long((seed + _P5 + 8) & _MASK, value & _MASK))


def key_hash(key: Hashable) -> int:
    """Return the stable hash of a key, signed; a tuple is a key of several columns."""
    seed = _hash_int(1, _SEED)
    for ordinal, value in enumerate(key if isinstance(key, tuple) else (key,)):
        if value is None:
            continue
        seed = _hash_int(ordinal, seed)
        number = _as_long(value)
        seed = xxh64(_as_bytes(value), seed) if number is None else hash_long(number, seed)
    return signed(seed)


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as a signed one, as in SQL."""
    return value - 2**64 if value >= 2**63 else value


def _hash_int(value: int, seed: int) -> int:
    return xxh64(value.to_bytes(4, "little"), seed)


def _as_long(value: object) -> int | None:
    if isinstance(value, bool | int):
        if not -(2**63) <= value < 2**63:
            message = f"the key {value} does not fit 64 bits"
            raise NoHash.create(message, type="int")
        return int(value)
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    return None


def _as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return _digits(value)
    kind = type(value).__name__
    raise NoHash.create(f"a key of type {kind} has no stable hash", type=kind)


def _mix_long(value: int, word: int) -> int:
    value ^= (_rotate((word * _P2) & _MASK, 31) * _P1) & _MASK
    return (_rotate(value, 27) * _P1 + _P4) & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _avalanche(value: int) -> int:
    value = ((value ^ value >> 33) * _P2) & _MASK
    value = ((value ^ value >> 29) * _P3) & _MASK
    return value ^ value >> 32
