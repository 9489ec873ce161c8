"""Codecs of states: exact and self-describing.

A codec has a name. Every snapshot stores it with the version of the state's format, so that only
the codec that wrote bytes reads them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Protocol

from capstan.pipeline.state.errors import NoCodec


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded state, with the name of its codec and the version that its logic defines."""

    codec: str
    version: int
    data: bytes


class Codec(Protocol):
    """Encodes values as bytes and decodes them."""

    @property
    def name(self) -> str:
        """Stable name, stored in snapshots."""

    def encode(self, value: object) -> bytes:
        """Encode a value, if it would be decoded exactly."""

    def decode(self, data: bytes) -> object:
        """Decode a value that `encode` wrote."""


class PlainCodec:
    """Encodes plain Python values as JSON text, and decodes each with its own type.

    Supports None, booleans, integers of any size, floats, text, bytes, decimals, dates, datetimes,
    and tuples, lists, dictionaries and sets of these, but no subclasses of them. A datetime keeps
    the offset of its time zone.
    """

    __slots__ = ()
    name = "plain"

    def encode(self, value: object) -> bytes:
        """Encode a value."""
        text = json.dumps(_tagged(value), ensure_ascii=False, separators=(",", ":"))
        return text.encode()

    def decode(self, data: bytes) -> object:
        """Decode a value that `encode` wrote."""
        try:
            return _untagged(json.loads(data))
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"not a plain value: {data[:40]!r}") from error


PLAIN: Final = PlainCodec()
_JSON_TYPES: Final = (type(None), bool, int, str)


def _ordered(values: object) -> list[object]:
    assert isinstance(values, set | frozenset)
    return sorted((_tagged(value) for value in values), key=json.dumps)


_TAGS: Final[Mapping[type, tuple[str, Callable[..., object]]]] = {
    float: ("f", float.hex),
    bytes: ("b", lambda value: base64.b64encode(value).decode()),
    tuple: ("t", lambda value: [_tagged(item) for item in value]),
    dict: ("d", lambda value: [[_tagged(k), _tagged(v)] for k, v in value.items()]),
    set: ("s", _ordered),
    frozenset: ("z", _ordered),
    Decimal: ("n", str),
    datetime: ("i", lambda value: [value.isoformat(), value.fold]),
    date: ("y", date.isoformat),
}
_READ: Final[Mapping[str, Callable[..., object]]] = {
    "f": float.fromhex,
    "b": lambda text: base64.b64decode(text, validate=True),
    "t": lambda values: tuple(_untagged(item) for item in values),
    "d": lambda pairs: {_untagged(key): _untagged(value) for key, value in pairs},
    "s": lambda values: {_untagged(item) for item in values},
    "z": lambda values: frozenset(_untagged(item) for item in values),
    "n": Decimal,
    "i": lambda pair: datetime.fromisoformat(pair[0]).replace(fold=pair[1]),
    "y": date.fromisoformat,
}


def _tagged(value: object) -> object:
    # Exactly these types: a subclass would be decoded as its base.
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if isinstance(value, list) and kind is list:
        return [_tagged(item) for item in value]
    if kind not in _TAGS:
        raise ValueError(f"a {kind.__name__} is not a plain value")
    tag, write = _TAGS[kind]
    return {tag: write(value)}


def _untagged(value: object) -> object:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, written),) = value.items()
    return _READ[tag](written)


_CODECS: dict[str, Codec] = {PLAIN.name: PLAIN}


def register_codec(codec: Codec) -> None:
    """Register a codec under its name."""
    if _CODECS.setdefault(codec.name, codec) is not codec:
        raise ValueError(f"another codec has the name {codec.name}")


def codec_named(name: str) -> Codec:
    """Return the codec with this name."""
    codec = _CODECS.get(name)
    if codec is None:
        known = ", ".join(sorted(_CODECS))
        raise NoCodec.create(f"no codec {name!r}; the codecs are: {known}", codec=name)
    return codec
