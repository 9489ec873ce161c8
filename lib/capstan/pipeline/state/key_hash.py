"""Stable hash of a key, the same here and in Spark SQL.

It is the first content hash of a record, computed over the key columns: XXH64 with seed 42, chained
over the INT 1 and then, for each column that is not null, over the INT of its ordinal and its
canonical value. In SQL, for key columns `a BIGINT` and `b STRING` without nulls:

    xxhash64(1, 0, a, 1, b)

Canonical values: integers, booleans and dates as BIGINT (8 bytes, little-endian), timestamps as
their microseconds, strings as UTF-8, binary unchanged, decimals as the shortest big-endian two's
complement of their unscaled digits. Nothing depends on a process, a machine or a release.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.state.errors import NoHash

Words = npt.NDArray[np.uint64]

_SEED: Final = 42
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_MASK: Final = 2**64 - 1


def key_hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return the stable hashes (int64) of the keys in some columns, row by row."""
    rows = len(columns[0]) if columns else 0
    seeds = _hash_words(np.ones(rows, np.uint32), np.full(rows, _SEED, np.uint64))
    for ordinal, column in enumerate(columns):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        valid = whole.is_valid().to_numpy(zero_copy_only=False)
        numbered = _hash_words(np.full(rows, ordinal, np.uint32), seeds)
        hashed = _hash_column(whole, numbered)
        seeds = np.where(valid, hashed, seeds)
    return pa.array(seeds.view(np.int64))


def owners_of(hashes: pa.Array, peers: int) -> pa.Array:
    """Return which of `peers` workers (int64) owns the keys with these hashes (int64).

    In Spark SQL that is `pmod(hash, peers)`. Follows Malstrom's `index_select`, whose hash changes
    with releases.
    """
    return pa.array(hashes.to_numpy(zero_copy_only=False) % peers)


def _digits(value: Decimal) -> bytes:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    number = -number if sign else number
    # The sign needs one bit beside the magnitude; -128 needs no more bits than -127.
    size = ((number + 1 if number < 0 else number).bit_length() + 8) // 8
    return number.to_bytes(size, "big", signed=True)


def _hash_column(column: pa.Array, seeds: Words) -> Words:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _hash_words(_longs(column), seeds)
    if pa.types.is_date32(kind):
        return _hash_words(_longs(pc.cast(column, pa.int32())), seeds)
    if pa.types.is_timestamp(kind):
        micros = pc.cast(column, pa.timestamp("us", kind.tz))
        return _hash_words(_longs(pc.cast(micros, pa.int64())), seeds)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _hash_bytes(pc.cast(column, pa.large_binary()), seeds)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hash_bytes(pc.cast(column, pa.large_binary()), seeds)
    if pa.types.is_decimal(kind):
        digits = [None if v is None else _digits(v) for v in column.to_pylist()]
        return _hash_bytes(pa.array(digits, pa.large_binary()), seeds)
    raise NoHash.create(f"a key of type {kind} has no stable hash", type=str(kind))


def _longs(column: pa.Array) -> Words:
    try:
        longs = pc.fill_null(pc.cast(column, pa.int64()), 0)
    except pa.ArrowInvalid as error:
        raise NoHash.create(
            f"a key does not fit 64 bits: {error}", type=str(column.type)
        ) from error
    values: npt.NDArray[np.int64] = longs.to_numpy(zero_copy_only=False)
    return values.view(np.uint64)


def _hash_bytes(column: pa.Array, seeds: Words) -> Words:
    """XXH64 of byte strings; those of one length are hashed together."""
    column = pc.fill_null(column, b"")
    _, bounds, data = column.buffers()
    offsets = np.frombuffer(bounds, np.int64)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    hashed = np.empty(len(column), np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        indexes = offsets[rows][:, None] + np.arange(length)[None, :]
        hashed[rows] = _hash_rows(content[indexes], seeds[rows])
    return hashed


def _hash_words(words: npt.NDArray[np.unsignedinteger], seeds: Words) -> Words:
    """XXH64 of each number; numbers have 4 or 8 bytes."""
    size = words.dtype.itemsize
    hashed = seeds + np.uint64((_P5 + size) & _MASK)
    if size == 8:
        return _avalanched(_eight(hashed, words.astype(np.uint64)))
    return _avalanched(_four(hashed, words.astype(np.uint64)))


def _hash_rows(rows: npt.NDArray[np.uint8], seeds: Words) -> Words:
    """XXH64 of each row of a matrix of bytes."""
    length = rows.shape[1]
    if length >= 32:
        hashed, at = _stripes(rows, seeds)
    else:
        hashed, at = seeds + np.uint64(_P5), 0
    hashed = hashed + np.uint64(length)
    while at + 8 <= length:
        hashed = _eight(hashed, _words(rows, at, "<u8"))
        at += 8
    if at + 4 <= length:
        hashed = _four(hashed, _words(rows, at, "<u4"))
        at += 4
    for position in range(at, length):
        byte = rows[:, position].astype(np.uint64)
        hashed = _rotated(hashed ^ (byte * np.uint64(_P5)), 11) * np.uint64(_P1)
    return _avalanched(hashed)


def _stripes(rows: npt.NDArray[np.uint8], seeds: Words) -> tuple[Words, int]:
    starts = (_P1 + _P2, _P2, 0, -_P1)
    lanes = [seeds + np.uint64(start & _MASK) for start in starts]
    whole = rows.shape[1] // 32 * 32
    for at in range(0, whole, 32):
        for number in range(4):
            words = _words(rows, at + 8 * number, "<u8")
            lanes[number] = _round(lanes[number], words)
    turned = [_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
    hashed = turned[0] + turned[1] + turned[2] + turned[3]
    for lane in lanes:
        merged = hashed ^ _round(np.zeros_like(hashed), lane)
        hashed = merged * np.uint64(_P1) + np.uint64(_P4)
    return hashed, whole


def _words(rows: npt.NDArray[np.uint8], at: int, kind: str) -> Words:
    size = np.dtype(kind).itemsize
    words = np.ascontiguousarray(rows[:, at : at + size])
    return words.view(kind)[:, 0].astype(np.uint64)


def _round(lane: Words, word: Words) -> Words:
    return _rotated(lane + word * np.uint64(_P2), 31) * np.uint64(_P1)


def _eight(hashed: Words, word: Words) -> Words:
    mixed = hashed ^ _round(np.zeros_like(hashed), word)
    return _rotated(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)


def _four(hashed: Words, word: Words) -> Words:
    mixed = hashed ^ (word * np.uint64(_P1))
    return _rotated(mixed, 23) * np.uint64(_P2) + np.uint64(_P3)


def _rotated(value: Words, by: int) -> Words:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _avalanched(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(33))) * np.uint64(_P2)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(_P3)
    return value ^ (value >> np.uint64(32))
