"""Time types: the coordinates of a time, and their text format.

Inside, every coordinate is an integer:

| kind | integer | written |
| --- | --- | --- |
| `bigint` | as it is, 64 bits signed | JSON integer |
| `date` | days since 1970-01-01 | `2013-03-01` |
| `timestamp` | microseconds since 1970-01-01T00:00:00Z | `2013-03-01T00:00:00.000000Z` |

Dates and timestamps are of the proleptic Gregorian calendar, years 1 to 9999. A time of one
coordinate is written as the bare value, of several as a list, the outermost first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from capstan.core.times.coordinate import Coordinate, Kind, shown
from capstan.core.times.moment_text import BLANKS
from capstan.core.times.order import PAIR, PRODUCT, TimeOrder
from capstan.core.times.time import Time
from capstan.errors import InvalidRequestError

_LEXICOGRAPHIC: Final = "lexicographic"

TimeJson = int | str | list[int | str]


@dataclass(frozen=True, slots=True)
class TimeType:
    """The coordinates of a stream's times: at least one, outermost first, with different names."""

    coordinates: tuple[Coordinate, ...]
    order: TimeOrder = PRODUCT

    def __post_init__(self) -> None:
        if not self.coordinates or len(set(self.names)) < len(self.coordinates):
            raise InvalidRequestError(
                "CAP-TIME-TYPE",
                f"a time needs coordinates with different names, not {list(self.names)}",
                "name at least one coordinate, and each name once",
                names=list(self.names),
            )

    @classmethod
    def of(cls, **kinds: Kind) -> TimeType:
        """The time type with these coordinates, in order, each with its default minimum."""
        return cls(tuple(Coordinate.of(name, kind) for name, kind in kinds.items()))

    @property
    def minimum(self) -> Time:
        """The time that is less or equal to all others of this type."""
        return Time(coordinate.minimum for coordinate in self.coordinates)

    @property
    def is_total(self) -> bool:
        """Whether all times are in one row: of one coordinate, or ordered as pairs."""
        return self.order.is_total(len(self.coordinates))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, outermost first."""
        return tuple(coordinate.name for coordinate in self.coordinates)

    @property
    def leading(self) -> int:
        """The coordinate that tells how far a stream is: of pairs the first, otherwise the last."""
        return 0 if self.order.lexicographic else len(self.coordinates) - 1

    def index(self, name: str) -> int:
        """The position of the coordinate `name`."""
        if name not in self.names:
            raise InvalidRequestError(
                "CAP-TIME",
                f"no coordinate {shown(name)} in times of {', '.join(self.names)}",
                f"use one of: {', '.join(self.names)}",
                value=name,
            )
        return self.names.index(name)

    def to_json(self) -> dict[str, object]:
        """The type as plain JSON, for a table's properties; `from_json` reads it."""
        return {
            "coordinates": [
                {"name": c.name, "kind": c.kind.value, "minimum": c.render(c.minimum)}
                for c in self.coordinates
            ],
            **order_json(self.order),
        }

    @classmethod
    def from_json(cls, value: object) -> TimeType:
        """The type that `to_json` wrote; a coordinate without `minimum` has its default one."""
        listed = value.get("coordinates") if isinstance(value, Mapping) else None
        if not isinstance(listed, list):
            raise InvalidRequestError(
                "CAP-TIME-TYPE",
                f"not a time type: {shown(value)}",
                'write {"coordinates": [{"name": ..., "kind": ...}]}',
            )
        assert isinstance(value, Mapping)
        return cls(tuple(Coordinate.from_json(entry) for entry in listed), order_of(value))

    def parse(self, value: object) -> Time:
        """The time for a JSON value: of one coordinate its value or a list of it, else a list.

        Integers for `bigint`, ISO 8601 text for the others; a timestamp without an offset is UTC,
        and one without a time of day is midnight.
        """
        return self._parsed(value, Coordinate.parse)

    def _parsed(self, value: object, parse: Callable[[Coordinate, object], int]) -> Time:
        values = value if isinstance(value, list) else [value]
        several = len(self.coordinates) > 1
        if len(values) != len(self.coordinates):
            raise InvalidRequestError(
                "CAP-TIME",
                f"not a time of {', '.join(self.names)}: {shown(value)}",
                f"give a list of {len(self.coordinates)}" if several else "give one value",
                value=shown(value),
            )
        return Time(parse(c, v) for c, v in zip(self.coordinates, values, strict=True))

    def parse_text(self, text: str) -> Time:
        """Parse a time of the command line: a bare value (`2013-03-01`, `17`), or JSON."""
        text = text.strip(BLANKS)
        if not text.startswith(("[", '"')):
            if len(self.coordinates) > 1:
                return self._parsed(text, Coordinate.parse_written)
            return Time((self.coordinates[0].parse_text(text),))
        try:
            value = json.loads(text)
        # RecursionError: text nested deeper than the parser follows.
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                "CAP-TIME",
                f"not a time of {', '.join(self.names)}: {shown(text)}",
                "give the value, or for several coordinates a JSON list",
                value=shown(text),
            ) from error
        return self._parsed(value, Coordinate.parse_written)

    def render(self, time: tuple[int, ...]) -> TimeJson:
        """The JSON value of a time, which `parse` reads back."""
        values = [c.render(v) for c, v in zip(self.coordinates, time, strict=True)]
        return values[0] if len(values) == 1 else values

    def render_text(self, time: tuple[int, ...]) -> str:
        """The time as readable text, which `parse_text` reads back."""
        value = self.render(time)
        return json.dumps(value) if isinstance(value, list) else str(value)


def order_json(order: TimeOrder) -> dict[str, str]:
    """The order of times as a field of a JSON object; that of products is not stated."""
    return {"order": _LEXICOGRAPHIC} if order == PAIR else {}


def order_of(value: Mapping[str, object]) -> TimeOrder:
    """The order that a JSON object states."""
    named = value.get("order")
    if named not in (None, _LEXICOGRAPHIC):
        raise InvalidRequestError(
            "CAP-TIME-TYPE",
            f"times cannot be in the order {shown(named)}",
            f"leave the order out, or write {_LEXICOGRAPHIC}",
        )
    return PRODUCT if named is None else PAIR
