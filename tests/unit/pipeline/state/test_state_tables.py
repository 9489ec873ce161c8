"""Hashes and owners that must be the same in every process, release and engine."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from capstan.pipeline.state.errors import NoHash
from capstan.pipeline.state.key_hash import key_hashes
from tests.reference.key_hash import key_hash, xxh64
from tests.reference.key_placement import Modulo, Rendezvous
from tests.support.golden_hashes import GOLDEN, KEYS

# By rendezvous and modulo, among the workers 0, 1, 2 and 5.
OWNED = {
    "a": (5, 1),
    "b": (1, 0),
    0: (5, 1),
    1: (0, 1),
    -1: (0, 1),
    7: (1, 1),
    (1, "x"): (2, 1),
    None: (1, 1),
}


@pytest.mark.parametrize("row", KEYS)
def test_keys_have_the_hashes_of_content(row):
    assert key_hash(KEYS[row]) == GOLDEN[row][0]


def test_xxh64_is_the_published_one():
    published = {
        b"": 0xEF46DB3751D8E999,
        b"a": 0xD24EC4F1A98C6E5B,
        b"abc": 0x44BC2CF5AD770999,
        b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
    }
    assert {data: xxh64(data) for data in published} == published


P = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
M = 2**64 - 1


def rotated(value, by):
    return (value << by | value >> (64 - by)) & M


def lane(value, word):
    return rotated((value + word * P[1]) & M, 31) * P[0] & M


def reference(data, seed):
    """XXH64, step by step as its specification has it."""
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) // 8 * 8, 8)]
    actual, whole = (seed + P[4]) & M, len(data) // 32 * 4
    if whole:
        lanes = [seed + P[0] + P[1], seed + P[1], seed, seed - P[0]]
        for at in range(whole):
            lanes[at % 4] = lane(lanes[at % 4] & M, words[at])
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        actual = sum(rotated(item, by) for item, by in turns) & M
        for item in lanes:
            actual = ((actual ^ lane(0, item)) * P[0] + P[3]) & M
    actual = (actual + len(data)) & M
    for word in words[whole:]:
        actual = (rotated(actual ^ lane(0, word), 27) * P[0] + P[3]) & M
    rest = data[len(words) * 8 :]
    if len(rest) >= 4:
        four, rest = int.from_bytes(rest[:4], "little"), rest[4:]
        actual = (rotated(actual ^ (four * P[0] & M), 23) * P[1] + P[2]) & M
    for byte in rest:
        actual = rotated(actual ^ (byte * P[4] & M), 11) * P[0] & M
    actual = (actual ^ actual >> 33) * P[1] & M
    actual = (actual ^ actual >> 29) * P[2] & M
    return actual ^ actual >> 32


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
def test_xxh64_of_any_length_is_what_its_specification_says(seed):
    data = bytes(n * 37 % 251 for n in range(140))
    for length in range(len(data)):
        part = data[:length]
        assert xxh64(part, seed) == reference(part, seed), length


@pytest.mark.parametrize(
    ("number", "shortest"),
    [(-129, "ff7f"), (-128, "80"), (-1, "ff"), (0, "00"), (127, "7f"), (128, "0080")],
)
def test_decimals_are_hashed_by_their_shortest_bytes(number, shortest):
    seed = 42
    for part in (b"\1\0\0\0", b"\0\0\0\0", bytes.fromhex(shortest)):
        seed = reference(part, seed)
    assert key_hash((Decimal(number),)) % 2**64 == seed


def test_columns_have_the_hashes_of_their_values():
    texts = ["", "a", None, "x" * 31, "x" * 64, None, "y" * 100, "abc"]
    numbers = [0, None, -1, 2**63 - 1, None, None, 7, 1]
    columns = [pa.array(texts).slice(1), pa.chunked_array([numbers[1:4], numbers[4:]])]
    expected = [key_hash(key) for key in zip(texts[1:], numbers[1:], strict=True)]
    assert key_hashes(columns).to_pylist() == expected
    large = pa.array([b"a", b"bb", b"ccc"], pa.large_binary())
    assert key_hashes([large.slice(1)]).to_pylist() == [key_hash(b"bb"), key_hash(b"ccc")]


def test_python_equal_keys_hash_by_type():
    assert key_hash((1,)) != key_hash((Decimal(1),))
    with pytest.raises(NoHash):
        key_hash((1.0,))


def test_a_key_of_one_column_is_its_value():
    assert key_hash(("a",)) == key_hash("a")
    assert key_hash(1) == key_hash((True,))


def test_owners_are_what_they_were():
    workers = [0, 1, 2, 5]
    actual = {
        key: (Rendezvous().owner(key, workers), Modulo().owner(key, workers)) for key in OWNED
    }
    assert actual == OWNED


@pytest.mark.parametrize("placement", [Rendezvous(), Modulo()], ids=lambda p: type(p).__name__)
def test_keys_spread_evenly(placement):
    hashes = key_hashes([pa.array([f"key {n}" for n in range(8000)])])
    counts = Counter(placement.owners(hashes, range(8)).to_pylist())
    assert set(counts) == set(range(8))
    # Five standard deviations.
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_a_removed_worker_moves_only_its_keys():
    hashes = key_hashes([pa.array(range(6000))])
    before = Rendezvous().owners(hashes, [0, 1, 2]).to_pylist()
    after = Rendezvous().owners(hashes, [0, 1]).to_pylist()
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert {one for one, _ in moved} == {2}
    assert len(moved) == before.count(2)


@pytest.mark.parametrize("placement", [Rendezvous(), Modulo()], ids=lambda p: type(p).__name__)
def test_no_workers_own_nothing(placement):
    with pytest.raises(ValueError, match="at least one worker"):
        placement.owner("a", [])
    with pytest.raises(ValueError, match="at least one worker"):
        placement.owners(key_hashes([pa.array(["a"])]), [])


@pytest.mark.parametrize(
    "key",
    [1.5, 2**63, (1, object()), Decimal("NaN")],
    ids=["float", "beyond BIGINT", "object", "not a number"],
)
def test_a_key_without_a_canonical_value_is_refused(key):
    with pytest.raises(NoHash):
        key_hash(key)


@pytest.mark.parametrize(
    "column",
    [pa.array([1.5]), pa.array([2**63], pa.uint64()), pa.array([[1]])],
    ids=lambda column: str(column.type),
)
def test_a_column_without_canonical_values_is_refused(column):
    with pytest.raises(NoHash):
        key_hashes([column])
