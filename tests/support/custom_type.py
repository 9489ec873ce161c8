"""A record type registered by a program: complex numbers, which Capstan does not have."""

from __future__ import annotations

import struct

from capstan.interop.timely import TypeCodec, register_type
from capstan.interop.timely.types.codec import end_of, misfit

_PARTS = struct.Struct("<dd")


class Complex(TypeCodec):
    """Two floats, laid out as in Rust's `num_complex`; `[re, im]` in JSON."""

    __slots__ = ()

    def decode(self, data: bytes, at: int) -> tuple[complex, int]:
        """The number at byte `at`."""
        end = end_of(data, at, _PARTS.size)
        return complex(*_PARTS.unpack_from(data, at)), end

    def encode(self, value: object, out: bytearray) -> None:
        """Append its bytes."""
        if not isinstance(value, complex):
            raise misfit(value, self.name)
        out += _PARTS.pack(value.real, value.imag)

    def to_json(self, value: object) -> object:
        """Both floats."""
        if not isinstance(value, complex):
            raise misfit(value, self.name)
        return [value.real, value.imag]

    def from_json(self, value: object) -> complex:
        """The number of both floats."""
        if not isinstance(value, list) or len(value) != 2:
            raise misfit(value, self.name)
        return complex(*value)


def register_complex() -> None:
    """Register the type `complex`."""
    register_type("complex", Complex("complex", _PARTS.size, plain=False))
