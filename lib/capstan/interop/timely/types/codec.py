"""Codecs: how the values of a type are written as bytes and as JSON.

The bytes are those of bincode 1.3 with its defaults, which timely's `EventWriter` uses:
little-endian, integers of fixed width, lengths and counts as u64, no names, and no tags except for
`Option`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_COUNT: Final = struct.Struct("<Q")


class TypeShape(StrEnum):
    """The shape of a type's values in a program."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOL = "bool"
    TEXT = "text"
    BYTES = "bytes"
    NONE = "none"
    TUPLE = "tuple"
    LIST = "list"
    OPTION = "option"
    OTHER = "other"


class MisfitError(ValueError):
    """Bytes or a value are not of a codec's type, and why; readers and writers add the position."""


class ShortError(MisfitError):
    """Raised by a codec when the bytes end before the value does."""


@dataclass(frozen=True, slots=True)
class TypeCodec(ABC):
    """Bytes and JSON of the values of one type.

    Derive from this class for a type of your own and register it. A codec keeps values exactly:
    `encode` turns the result of `decode` into the same bytes. It refuses any value that it cannot
    keep.

    Attributes:
        name: The type, as `codec_of` reads it.
        least: Minimum number of bytes of a value.
        shape: Shape of the values: both `list` and `tuple` are tuples, of one type or of several.
        parts: Types of the parts: exactly one for `list` and `option`.
        letter: Format character of module `struct` for exactly this type, or None.
        plain: Whether `to_json` and `from_json` are the identity, except that tuples are lists in
            JSON.
    """

    name: str
    least: int
    shape: TypeShape = TypeShape.OTHER
    parts: tuple[TypeCodec, ...] = ()
    letter: str | None = None
    plain: bool = True

    @abstractmethod
    def decode(self, data: bytes, at: int) -> tuple[object, int]:
        """The value that starts at byte `at`, and the position after it.

        Raises:
            ShortError: `data` ends before the value does.
            MisfitError: The bytes are no value of this type.
        """

    @abstractmethod
    def encode(self, value: object, out: bytearray) -> None:
        """Append the bytes of `value`; after a `MisfitError`, `out` may have grown."""

    def decode_many(self, data: bytes, at: int, count: int) -> tuple[tuple[object, ...], int]:
        """The `count` values that start at byte `at`, and the position after them."""
        if count * self.least > len(data) - at:
            message = f"{count} values of {self.name} do not fit into {len(data) - at} bytes"
            raise ShortError(message)
        values: list[object] = []
        for _ in range(count):
            value, at = self.decode(data, at)
            values.append(value)
        return tuple(values), at

    def encode_many(self, values: Sequence[object], out: bytearray) -> None:
        """Append the bytes of all `values`, one after another."""
        for value in values:
            self.encode(value, out)

    def to_json(self, value: object) -> object:
        """The JSON form of `value`, which `from_json` reads."""
        return value

    def from_json(self, value: object) -> object:
        """The value of a JSON form; `MisfitError` if it is not the form of this type."""
        self.encode(value, bytearray())
        return value

    def from_json_many(self, values: Sequence[object]) -> tuple[object, ...]:
        """The values of several JSON forms; `MisfitError` if one is not of this type."""
        if self.plain and not self.parts:
            self.encode_many(values, bytearray())
            return tuple(values)
        return tuple(self.from_json(value) for value in values)


@dataclass(frozen=True, slots=True)
class CoordinateCodec(TypeCodec):
    """Integers of exactly `least` bytes, from -2^63 to 2^64-1: they can be coordinates of times."""

    minimum: int = 0
    maximum: int = 2**64 - 1


def end_of(data: bytes, at: int, size: int) -> int:
    """The position after `size` bytes from `at`."""
    end = at + size
    if end > len(data):
        message = f"{size} bytes expected, {max(len(data) - at, 0)} available"
        raise ShortError(message)
    return end


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """The count or length at byte `at`, and the position after it."""
    end = end_of(data, at, _COUNT.size)
    return _COUNT.unpack_from(data, at)[0], end


def write_count(count: int, out: bytearray) -> None:
    """Append a count or length."""
    out += _COUNT.pack(count)


def misfit(value: object, name: str) -> MisfitError:
    """The error for a value that is not of the type `name`."""
    description = f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        description = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, int | float | str | bytes | None):
        description = ascii(value[:50] if isinstance(value, str | bytes) else value)
    return MisfitError(f"not a value of {name}: {description}")
