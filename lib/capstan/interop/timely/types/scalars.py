"""Types without parts: integers, floats, booleans, characters, text, bytes, durations, unit."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from typing import Final

from capstan.interop.timely.types.codec import (
    CoordinateCodec,
    MisfitError,
    TypeCodec,
    TypeShape,
    end_of,
    misfit,
    read_count,
    write_count,
)

_LETTERS: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_NANOS: Final = 10**9
_DURATION: Final = struct.Struct("<QI")
# The first bytes of characters that take two, three and four bytes in UTF-8.
_LONGER: Final = (0xC0, 0xE0, 0xF0)


class _Integer(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[int, int]:
        end = end_of(data, at, self.least)
        return int.from_bytes(data[at:end], "little", signed=self.name.startswith("i")), end

    def encode(self, value: object, out: bytearray) -> None:
        if type(value) is not int:
            raise misfit(value, self.name)
        try:
            out += value.to_bytes(self.least, "little", signed=self.name.startswith("i"))
        except OverflowError as error:
            raise misfit(value, self.name) from error


class _CoordinateInteger(_Integer, CoordinateCodec):
    __slots__ = ()

    def decode_many(self, data: bytes, at: int, count: int) -> tuple[tuple[object, ...], int]:
        end = end_of(data, at, count * self.least)
        return struct.unpack_from(f"<{count}{self.letter}", data, at), end

    def encode_many(self, values: Sequence[object], out: bytearray) -> None:
        # `struct` takes True for an int; it is not a number here.
        if set(map(type, values)) <= {int}:
            try:
                out += struct.pack(f"<{len(values)}{self.letter}", *values)
            except struct.error:
                pass
            else:
                return
        # Raises for the value that is not an integer.
        for value in values:
            self.encode(value, out)


class _Bool(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[bool, int]:
        end = end_of(data, at, 1)
        if data[at] > 1:
            message = f"not a bool: byte {data[at]}"
            raise MisfitError(message)
        return bool(data[at]), end

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, bool):
            raise misfit(value, self.name)
        out.append(value)


class _Char(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[str, int]:
        end_of(data, at, 1)
        end = end_of(data, at, 1 + sum(data[at] >= first for first in _LONGER))
        return _text(data[at:end]), end

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, str) or len(value) != 1:
            raise misfit(value, self.name)
        out += _utf8(value)


class _String(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[str, int]:
        size, at = read_count(data, at)
        end = end_of(data, at, size)
        return _text(data[at:end]), end

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, str):
            raise misfit(value, self.name)
        encoded = _utf8(value)
        write_count(len(encoded), out)
        out += encoded


class _Bytes(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        size, at = read_count(data, at)
        end = end_of(data, at, size)
        return data[at:end], end

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, bytes):
            raise misfit(value, self.name)
        write_count(len(value), out)
        out += value

    def to_json(self, value: object) -> object:
        return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value

    def from_json(self, value: object) -> object:
        if not isinstance(value, str):
            raise misfit(value, self.name)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise misfit(value, self.name) from error


class _Duration(CoordinateCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[int, int]:
        end = end_of(data, at, self.least)
        seconds, nanos = _DURATION.unpack_from(data, at)
        value: int = seconds * _NANOS + nanos
        if nanos >= _NANOS or value > self.maximum:
            message = f"not a duration below 2^64 nanoseconds: {seconds} s and {nanos} ns"
            raise MisfitError(message)
        return value, end

    def encode(self, value: object, out: bytearray) -> None:
        if type(value) is not int or not 0 <= value <= self.maximum:
            raise misfit(value, self.name)
        out += _DURATION.pack(*divmod(value, _NANOS))


class _Unit(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[None, int]:
        return None, at

    def encode(self, value: object, out: bytearray) -> None:
        if value is not None:
            raise misfit(value, self.name)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason}"
        raise MisfitError(message) from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"half of a surrogate pair in a string: {error.reason}"
        raise MisfitError(message) from error


def _integer(size: int, *, signed: bool) -> TypeCodec:
    letter, bits = _LETTERS[size], 8 * size
    return _CoordinateInteger(
        name=f"{'i' if signed else 'u'}{bits}",
        least=size,
        shape=TypeShape.INTEGER,
        letter=letter if signed else letter.upper(),
        minimum=-(1 << (bits - 1)) if signed else 0,
        maximum=(1 << (bits - signed)) - 1,
    )


BYTES: Final[TypeCodec] = _Bytes("bytes", 8, TypeShape.BYTES, plain=False)
"""A sequence of bytes, laid out as `Vec<u8>` in a frame; base64 in JSON."""

UNIT: Final[TypeCodec] = _Unit("()", 0, TypeShape.NONE)
"""The type of one value, without bytes; None in a program, null in JSON."""

SCALARS: Final[tuple[TypeCodec, ...]] = (
    *(_integer(size, signed=signed) for size in _LETTERS for signed in (False, True)),
    _Integer("u128", 16, TypeShape.INTEGER),
    _Integer("i128", 16, TypeShape.INTEGER),
    _Bool("bool", 1, TypeShape.BOOL),
    _Char("char", 1, TypeShape.TEXT),
    _String("string", 8, TypeShape.TEXT),
    BYTES,
    # At most 2^64-1 nanoseconds, 584 years: the range of a time's coordinate.
    _Duration("duration_nanos", _DURATION.size, TypeShape.INTEGER),
    UNIT,
)
"""The types without parts, except floats."""


_NAN: Final = "NaN"
_INFINITIES: Final = {"Infinity": math.inf, "-Infinity": -math.inf}
_NAN_BITS: Final = struct.pack(">d", math.nan).hex()


class _Float(TypeCodec):
    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[float, int]:
        end = end_of(data, at, self.least)
        value: float = struct.unpack_from(self._format, data, at)[0]
        if math.isnan(value) and self._packed(value) != data[at:end]:
            message = f"a signalling NaN of {self.name}, which Python cannot keep"
            raise MisfitError(message)
        return value, end

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, float):
            raise misfit(value, self.name)
        out += self._packed(value)

    def to_json(self, value: object) -> object:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        bits = struct.pack(">d", value).hex()
        return _NAN if bits == _NAN_BITS else f"{_NAN}:{bits}"

    def from_json(self, value: object) -> object:
        number = value
        if isinstance(value, str):
            number = self._named(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = self._whole(value)
        if not isinstance(number, float):
            raise misfit(value, self.name)
        self._packed(number)
        return number

    @property
    def _format(self) -> str:
        return "<d" if self.least == 8 else "<f"

    def _packed(self, value: float) -> bytes:
        try:
            packed = struct.pack(self._format, value)
        except OverflowError as error:
            raise misfit(value, self.name) from error
        (back,) = struct.unpack(self._format, packed)
        if struct.pack("<d", back) != struct.pack("<d", value):
            raise misfit(value, self.name)
        return packed

    def _whole(self, value: int) -> float:
        try:
            number = float(value)
        except OverflowError as error:
            raise misfit(value, self.name) from error
        if number != value:
            raise misfit(value, self.name)
        return number

    def _named(self, text: str) -> float:
        if text == _NAN:
            return math.nan
        if text in _INFINITIES:
            return _INFINITIES[text]
        prefix, _, bits = text.partition(":")
        try:
            (value,) = struct.unpack(">d", bytes.fromhex(bits))
        except (ValueError, struct.error) as error:
            raise misfit(text, self.name) from error
        if prefix != _NAN or not math.isnan(value):
            raise misfit(text, self.name)
        return float(value)


FLOATS: Final[tuple[TypeCodec, ...]] = (
    # A 32-bit NaN may not survive, so each value is checked: no letter.
    _Float("f32", 4, TypeShape.FLOAT, plain=False),
    _Float("f64", 8, TypeShape.FLOAT, letter="d", plain=False),
)
"""`f32` and `f64`."""
