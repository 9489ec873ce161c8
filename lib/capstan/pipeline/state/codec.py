"""States as bytes that say how they were written, exact or not at all.

A codec has a name that goes into every snapshot with the version of the state's form, so that
bytes are never read by something that did not write them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Protocol

from capstan.pipeline.state.errors import NoCodec


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state as bytes.

    Attributes:
        codec: The name of the codec that wrote them.
        version: Of the form of the state, as its logic counts it.
        data: The bytes.
    """

    codec: str
    version: int
    data: bytes


class Codec(Protocol):
    """Writes values as bytes and reads them back."""

    @property
    def name(self) -> str:
        """Its stable name, which goes into snapshots."""

    def encode(self, value: object) -> bytes:
        """The value as bytes.

        Raises:
            ValueError: It could not be read back as it is.
        """

    def decode(self, data: bytes) -> object:
        """The value that `encode` wrote.

        Raises:
            ValueError: The bytes are not one.
        """


class PlainCodec:
    """Plain Python values as JSON text, each read back with its own type.

    Takes None, booleans, integers of any size, floats, text, bytes, decimals, dates, datetimes,
    and tuples, lists, dictionaries and sets of these; nothing else, and no subclasses of them. Of
    a time zone a datetime keeps its offset.
    """

    __slots__ = ()
    name = "plain"

    def encode(self, value: object) -> bytes:
        """The value as bytes.

        Raises:
            ValueError: Naming a type that it does not take.
        """
        text = json.dumps(_tagged(value), ensure_ascii=False, separators=(",", ":"))
        return text.encode()

    def decode(self, data: bytes) -> object:
        """The value that `encode` wrote.

        Raises:
            ValueError: The bytes are not one.
        """
        try:
            return _untagged(json.loads(data))
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            message = f"not a plain value: {data[:40]!r}"
            raise ValueError(message) from error


PLAIN: Final = PlainCodec()
_AS_THEY_ARE: Final = (type(None), bool, int, str)


def _ordered(values: object) -> list[object]:
    assert isinstance(values, set | frozenset)
    return sorted((_tagged(value) for value in values), key=json.dumps)


_TAGS: Final[Mapping[type, tuple[str, Callable[..., object]]]] = {
    float: ("f", float.hex),
    bytes: ("b", lambda value: base64.b64encode(value).decode()),
    tuple: ("t", lambda value: [_tagged(each) for each in value]),
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
    "t": lambda values: tuple(_untagged(each) for each in values),
    "d": lambda pairs: {_untagged(key): _untagged(value) for key, value in pairs},
    "s": lambda values: {_untagged(each) for each in values},
    "z": lambda values: frozenset(_untagged(each) for each in values),
    "n": Decimal,
    "i": lambda pair: datetime.fromisoformat(pair[0]).replace(fold=pair[1]),
    "y": date.fromisoformat,
}


def _tagged(value: object) -> object:
    # Exactly these types: a subclass would come back as something else.
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, list) and kind is list:
        return [_tagged(each) for each in value]
    if kind not in _TAGS:
        message = f"a {kind.__name__} is not a plain value"
        raise ValueError(message)
    tag, write = _TAGS[kind]
    return {tag: write(value)}


def _untagged(value: object) -> object:
    if isinstance(value, list):
        return [_untagged(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((tag, written),) = value.items()
    return _READ[tag](written)


_CODECS: dict[str, Codec] = {PLAIN.name: PLAIN}


def register_codec(codec: Codec) -> None:
    """Make a codec known by its name.

    Raises:
        ValueError: Another one has that name.
    """
    if _CODECS.setdefault(codec.name, codec) is not codec:
        message = f"another codec is named {codec.name}"
        raise ValueError(message)


def codecs() -> Mapping[str, Codec]:
    """The codecs that are known, by name."""
    return MappingProxyType(_CODECS)


def codec_named(name: str) -> Codec:
    """The codec of that name.

    Raises:
        NoCodec: There is none.
    """
    found = _CODECS.get(name)
    if found is None:
        known = ", ".join(sorted(_CODECS))
        raise NoCodec.create(f"no codec {name!r} among: {known}", codec=name)
    return found
