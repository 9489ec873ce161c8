"""Types made of other types: tuples, products, lists, arrays, options."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capstan.errors import InvalidRequestError
from capstan.interop.timely.types.codec import (
    MisfitError,
    TypeCodec,
    TypeShape,
    end_of,
    misfit,
    read_count,
    write_count,
)

_LONGEST_ARRAY: Final = 2**16


class _Tuple(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[object, int]:
        values: list[object] = []
        for part in self.parts:
            value, at = part.decode(data, at)
            values.append(value)
        return tuple(values), at

    def encode(self, value: object, out: bytearray) -> None:
        elements = _elements(self, value, len(self.parts))
        for part, element in zip(self.parts, elements, strict=True):
            part.encode(element, out)

    def decode_many(self, data: bytes, at: int, count: int) -> tuple[tuple[object, ...], int]:
        letters = [part.letter for part in self.parts]
        if None in letters:
            # Not super(): the slotted dataclass is a different class from the one in the source.
            return TypeCodec.decode_many(self, data, at, count)
        end = end_of(data, at, count * self.least)
        return tuple(struct.iter_unpack(f"<{''.join(map(str, letters))}", data[at:end])), end

    def to_json(self, value: object) -> object:
        elements = _elements(self, value, len(self.parts))
        return [part.to_json(item) for part, item in zip(self.parts, elements, strict=True)]

    def from_json(self, value: object) -> object:
        elements = _elements(self, value, len(self.parts))
        return tuple(part.from_json(item) for part, item in zip(self.parts, elements, strict=True))


@dataclass(frozen=True, slots=True)
class _List(TypeCodec):
    """An array of `length` values; or without it any number of values, after their count."""

    length: int | None = None

    def decode(self, data: bytes, at: int) -> tuple[object, int]:
        count, at = read_count(data, at) if self.length is None else (self.length, at)
        return self.parts[0].decode_many(data, at, count)

    def encode(self, value: object, out: bytearray) -> None:
        elements = _elements(self, value, self.length)
        if self.length is None:
            write_count(len(elements), out)
        self.parts[0].encode_many(elements, out)

    def to_json(self, value: object) -> object:
        elements = _elements(self, value, self.length)
        return [self.parts[0].to_json(element) for element in elements]

    def from_json(self, value: object) -> object:
        return self.parts[0].from_json_many(_elements(self, value, self.length))


class _Option(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[object, int]:
        end = end_of(data, at, 1)
        if data[at] > 1:
            message = f"not an option: byte {data[at]}, 0 or 1 expected"
            raise MisfitError(message)
        return self.parts[0].decode(data, end) if data[at] else (None, end)

    def encode(self, value: object, out: bytearray) -> None:
        out.append(value is not None)
        if value is not None:
            self.parts[0].encode(value, out)

    def to_json(self, value: object) -> object:
        return None if value is None else self.parts[0].to_json(value)

    def from_json(self, value: object) -> object:
        return None if value is None else self.parts[0].from_json(value)


def _elements(codec: TypeCodec, value: object, length: int | None) -> Sequence[object]:
    if not isinstance(value, tuple | list) or length not in (None, len(value)):
        raise misfit(value, codec.name)
    return value


def tuple_of(parts: Sequence[TypeCodec]) -> TypeCodec:
    """A tuple with one value of each of `parts`; a list in JSON."""
    names = [part.name for part in parts]
    return _tuple(f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})", parts)


def product_of(parts: Sequence[TypeCodec]) -> TypeCodec:
    """Timely's `Product` of an outer and an inner type; nested ones are flattened, outer first."""
    flat = [inner for part in parts for inner in (part.parts if is_product(part) else (part,))]
    return _tuple(f"Product<{','.join(part.name for part in parts)}>", flat)


def is_product(codec: TypeCodec) -> bool:
    """Whether `product_of` made the type."""
    return isinstance(codec, _Tuple) and codec.name.startswith("Product<")


def list_of(part: TypeCodec) -> TypeCodec:
    """Any number of values of `part`, such as a `Vec`; a tuple in a program, a list in JSON."""
    name = f"Vec<{_sized(part).name}>"
    return _List(name, 8, TypeShape.LIST, (part,), plain=part.plain)


def array_of(part: TypeCodec, length: int) -> TypeCodec:
    """Exactly `length` values of `part`, such as `[u8; 4]`."""
    if not 1 <= length <= _LONGEST_ARRAY or length * _sized(part).least > _LONGEST_ARRAY * 16:
        raise _refused(f"[{part.name}; {length}]", "an array has 1 to 65,536 values")
    name = f"[{part.name}; {length}]"
    return _List(
        name, length * part.least, TypeShape.LIST, (part,), plain=part.plain, length=length
    )


def option_of(part: TypeCodec) -> TypeCodec:
    """An optional `part`: a byte 1 or 0, then the value; None in a program, null in JSON."""
    if part.shape in {TypeShape.NONE, TypeShape.OPTION}:
        raise _refused(f"Option<{part.name}>", "its None would be ambiguous")
    return _Option(f"Option<{part.name}>", 1, TypeShape.OPTION, (part,), plain=part.plain)


def _tuple(name: str, parts: Sequence[TypeCodec]) -> TypeCodec:
    least = sum(part.least for part in parts)
    plain = all(part.plain for part in parts)
    return _Tuple(name, least, TypeShape.TUPLE, tuple(parts), plain=plain)


def _sized(part: TypeCodec) -> TypeCodec:
    if part.least == 0:
        raise _refused(part.name, "a list of values without bytes could claim any length")
    return part


def _refused(name: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-TYPE", f"type {name} is not supported: {reason}", "use another type",
        type=name,
    )  # fmt: skip
