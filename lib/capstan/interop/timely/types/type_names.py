"""Type names, as used in `case.json` and in options.

| written | values | as JSON |
| --- | --- | --- |
| `u8` ... `u128`, `i8` ... `i128`, `usize`, `isize` | integers | numbers |
| `f32`, `f64` | floats | numbers; text if JSON has none |
| `bool`, `char`, `string` | as the name says | true and false; text |
| `bytes` | a `Vec<u8>` as bytes | base64 |
| `duration_nanos`, `Duration` | nanoseconds | numbers |
| `()` | None | null |
| `(A, B)` | tuples | lists |
| `Product<A, B>` | tuples; nested products are flattened, outermost coordinate first | lists |
| `Vec<A>`, `[A; 4]` | tuples | lists |
| `Option<A>` | a value or None | a value or null |

Blanks and case do not matter, and a path before a name is ignored. So you can give a type exactly
as Rust prints it: `alloc::vec::Vec<u64>`. Write a Rust map as `Vec<(K, V)>`, a newtype as its
contents, a struct as the tuple of its fields. Register names of your own with `register_type`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from capstan.errors import InvalidRequestError
from capstan.interop.timely.types.codec import TypeCodec
from capstan.interop.timely.types.composites import (
    array_of,
    list_of,
    option_of,
    product_of,
    tuple_of,
)
from capstan.interop.timely.types.scalars import FLOATS, SCALARS, UNIT

_TOKEN: Final = re.compile(
    r"\s*(?:(?:[A-Za-z_]\w*\s*::\s*)*(?P<name>[A-Za-z_]\w*)|(?P<number>\d{1,9})"
    r"|(?P<mark>[<>(),;\[\]]))",
    re.ASCII,
)
_LONGEST: Final = 1000
_DEEPEST: Final = 32
_END: Final = ""
_ALIASES: Final = {
    "usize": "u64", "isize": "i64", "str": "string", "text": "string", "boolean": "bool",
    "duration": "duration_nanos",
}  # fmt: skip
_HINT: Final = (
    "write for example u64, string, (u64, string), Product<u64,u64>, Vec<u8>, Option<i64>, [u8; 4]"
)

_registered: dict[str, TypeCodec] = {}


def codec_of(text: str) -> TypeCodec:
    """The codec of a type; `CAP-TYPE` if unknown, with the character at which reading failed.

    >>> codec_of("Product< u64, (string) >").name
    'Product<u64,string>'
    """
    if len(text) > _LONGEST:
        raise _unknown(f"{text[:40]}...", f"more than {_LONGEST} characters")
    return _Reader(text).whole()


def register_type(name: str, codec: TypeCodec | str) -> None:
    """Register a name with `codec_of`, for the lifetime of the process.

    Args:
        name: Letters, digits and underscores, starting with a letter; in any case.
        codec: A codec, or the name of a known type.

    Raises:
        InvalidRequestError: `CAP-TYPE`, the name is malformed or stands for another type.
    """
    resolved = codec_of(codec) if isinstance(codec, str) else codec
    key = name.lower()
    reserved = key in _SIMPLE or key in _ALIASES or key in _GENERIC
    if reserved or not re.fullmatch(r"[a-z]\w*", key, re.ASCII):
        raise _unknown(name, "use a new name of letters, digits and underscores")
    if _registered.setdefault(key, resolved) != resolved:
        raise _unknown(name, "another type is registered under it")


class _Reader:
    """Reads the text of one type from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._depth = 0

    def whole(self) -> TypeCodec:
        codec = self._type()
        if self._lookahead != _END:
            self._refuse("something follows the type")
        return codec

    @property
    def _lookahead(self) -> str:
        return self._tokens[0][0]

    def _next(self) -> str:
        return self._tokens.pop(0)[0] if len(self._tokens) > 1 else _END

    def _expect(self, mark: str) -> None:
        if self._lookahead != mark:
            self._refuse(f"{mark} expected")
        self._next()

    def _type(self) -> TypeCodec:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"nested deeper than {_DEEPEST}")
        codec = self._one()
        self._depth -= 1
        return codec

    def _one(self) -> TypeCodec:
        if self._lookahead == "(":
            return self._parenthesis()
        if self._lookahead == "[":
            return self._array()
        name = self._lookahead.lower()
        known = _SIMPLE.get(_ALIASES.get(name, name)) or _registered.get(name)
        if known is None and name not in _GENERIC:
            self._refuse("not a known type")
        self._next()
        return self._generic(name) if known is None else known

    def _parenthesis(self) -> TypeCodec:
        self._expect("(")
        parts: list[TypeCodec] = []
        comma = True
        while self._lookahead != ")":
            if not comma:
                self._refuse(", or ) expected")
            parts.append(self._type())
            comma = self._lookahead == ","
            if comma:
                self._next()
        self._expect(")")
        if not parts:
            return UNIT
        # As in Rust: (A) is A, and (A,) a tuple of it.
        return parts[0] if len(parts) == 1 and not comma else tuple_of(parts)

    def _array(self) -> TypeCodec:
        self._expect("[")
        part = self._type()
        self._expect(";")
        if not self._lookahead.isdigit():
            self._refuse("a length is expected")
        length = int(self._next())
        self._expect("]")
        return array_of(part, length)

    def _generic(self, name: str) -> TypeCodec:
        least, most, make = _GENERIC[name]
        self._expect("<")
        parts = [self._type()]
        while self._lookahead == ",":
            self._next()
            parts.append(self._type())
        if not least <= len(parts) <= most:
            self._refuse(f"{name} of {len(parts)} types")
        self._expect(">")
        return make(parts)

    def _refuse(self, reason: str) -> NoReturn:
        token, at = self._tokens[0]
        place = f"at {token!r}, character {at + 1}" if token else "at its end"
        raise _unknown(self._text, f"{place}: {reason}")


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise _unknown(text, f"at character {at + 1}: {stripped[at : at + 10]!r}")
        group = match.lastgroup or "mark"
        yield match[group], match.start(group)
        at = match.end()
    yield _END, at


def _unknown(text: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-TYPE", f"not a type: {text!r}, {reason}", _HINT, type=text[:_LONGEST]
    )


_SIMPLE: Final = {codec.name: codec for codec in (*SCALARS, *FLOATS)} | {"unit": UNIT}
# By name: the minimum and maximum number of types between the brackets, and the constructor.
_GENERIC: Final[dict[str, tuple[int, int, Callable[[list[TypeCodec]], TypeCodec]]]] = {
    "product": (2, 2, product_of),
    "tuple": (1, _LONGEST, tuple_of),
    "vec": (1, 1, lambda parts: list_of(parts[0])),
    "option": (1, 1, lambda parts: option_of(parts[0])),
}
