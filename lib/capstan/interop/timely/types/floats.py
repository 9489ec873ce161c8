"""Floating-point numbers of 32 and 64 bits, never rounded.

In JSON, values that JSON has no number for are text: `"Infinity"`, `"-Infinity"`, `"NaN"`, and any
other NaN with the bits of its double: `"NaN:fff8000000000000"`.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from capstan.interop.timely.types.codec import MisfitError, TypeCodec, TypeShape, end_of, misfit

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
