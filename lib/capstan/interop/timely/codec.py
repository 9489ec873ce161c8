"""What a type of a recording's times or records has to know: its bytes, and its JSON.

The bytes are those of bincode 1.3 with its defaults, which timely's `EventWriter` uses:
little-endian, integers of fixed width, lengths and counts as u64, no names and no tags but those
of `Option`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_COUNT: Final = struct.Struct("<Q")


class Shape(StrEnum):
    """What the values of a type are in a program."""

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
    """Raised by a codec when bytes or a value are not of its type; the text says why.

    Readers and writers of events turn it into an error that also says where.
    """


class ShortError(MisfitError):
    """Raised by a codec when the bytes end before the value does."""


@dataclass(frozen=True, slots=True)
class Codec(ABC):
    """How the values of one type lie in a frame, and how they are written as JSON.

    A codec that a program registers for a type of its own derives from this. It keeps values
    exactly: what `decode` makes of bytes, `encode` turns into the same bytes; what it cannot keep
    it refuses.

    Attributes:
        name: The type, as `codec_of` reads it.
        least: The fewest bytes that a value takes.
        shape: What its values are: `list` and `tuple` are both tuples, of one type or of several.
        parts: The types that it is made of: one for `list` and `option`.
        letter: The letter of module `struct` that stands for exactly this type, or None.
        plain: Whether `to_json` and `from_json` change nothing, but that JSON has lists where
            there are tuples.
    """

    name: str
    least: int
    shape: Shape = Shape.OTHER
    parts: tuple[Codec, ...] = ()
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
        """Appends the bytes of `value`; where it raises, `out` may have been appended to.

        Raises:
            MisfitError: `value` is not of this type.
        """

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
        """Appends the bytes of all `values`, one after another."""
        for value in values:
            self.encode(value, out)

    def to_json(self, value: object) -> object:
        """The JSON value that `from_json` reads as `value`."""
        return value

    def from_json(self, value: object) -> object:
        """The value that a JSON value stands for.

        Raises:
            MisfitError: It stands for none of this type.
        """
        self.encode(value, bytearray())
        return value

    def from_json_many(self, values: Sequence[object]) -> tuple[object, ...]:
        """The values that some JSON values stand for.

        Raises:
            MisfitError: One stands for none of this type.
        """
        if self.plain and not self.parts:
            self.encode_many(values, bytearray())
            return tuple(values)
        return tuple(self.from_json(value) for value in values)


@dataclass(frozen=True, slots=True)
class CoordinateCodec(Codec):
    """A type whose values are integers from -2^63 to 2^64-1, so that a time can have it.

    All of them take `least` bytes.

    Attributes:
        minimum: The value that is less or equal to all others.
        maximum: The value that all others are less or equal to.
    """

    minimum: int = 0
    maximum: int = 2**64 - 1


def taken(data: bytes, at: int, size: int) -> int:
    """The position after `size` bytes from `at`.

    Raises:
        ShortError: There are fewer.
    """
    end = at + size
    if end > len(data):
        message = f"{size} bytes were due and {max(len(data) - at, 0)} are there"
        raise ShortError(message)
    return end


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """The count or length at byte `at`, and the position after it."""
    end = taken(data, at, _COUNT.size)
    return _COUNT.unpack_from(data, at)[0], end


def write_count(count: int, out: bytearray) -> None:
    """Appends a count or length."""
    out += _COUNT.pack(count)


def misfit(value: object, name: str) -> MisfitError:
    """The error for a value that is not of the type `name`."""
    shown = f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        shown = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, int | float | str | bytes | None):
        shown = ascii(value[:50] if isinstance(value, str | bytes) else value)
    return MisfitError(f"not a value of {name}: {shown}")
