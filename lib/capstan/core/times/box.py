"""Ranges of times: half-open in each coordinate, or of pairs half-open as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from capstan.core.times.antichain import Antichain
from capstan.core.times.coordinate import shown
from capstan.core.times.moment_text import BLANKS
from capstan.core.times.order import PRODUCT, TimeOrder
from capstan.core.times.time import Time
from capstan.core.times.time_type import TimeType
from capstan.errors import InvalidRequestError

Bound = tuple[int | None, ...]
BoundJson = int | str | None | list[int | str | None]


@dataclass(frozen=True, slots=True)
class Box:
    """The times `t` with `since_i <= t_i < until_i` for each coordinate `i`; None is unbounded.

    In the `order` of pairs, the times with `since <= t < until`; a bound may be of the first
    coordinates alone, and is then before all times that begin with them.

    >>> Box((1, 5), (3, None), PAIR).contains((2, 0))
    True
    """

    since: Bound
    until: Bound
    order: TimeOrder = field(default=PRODUCT, repr=False)

    def __post_init__(self) -> None:
        if len(self.since) != len(self.until):
            message = f"since has {len(self.since)} coordinates, until {len(self.until)}"
            raise ValueError(message)

    @classmethod
    def everything(cls, time_type: TimeType) -> Box:
        """The box of all times."""
        unbounded = (None,) * len(time_type.coordinates)
        return cls(unbounded, unbounded, time_type.order)

    @property
    def is_empty(self) -> bool:
        """Whether no time is inside."""
        if self.order.lexicographic:
            until = given(self.until)
            return bool(until) and given(self.since) >= until
        return any(
            low is not None and high is not None and low >= high
            for low, high in zip(self.since, self.until, strict=True)
        )

    def is_empty_from(self, minimum: Time) -> bool:
        """Whether no time is inside where times start at `minimum`."""
        box = self.intersect(replace(self, since=minimum))
        if self.order.lexicographic:
            since = given(box.since)
            box = replace(box, since=(*since, *minimum[len(since) :]))
        return box.is_empty

    def contains(self, time: tuple[int, ...]) -> bool:
        """Whether `time` is inside."""
        if self.order.lexicographic:
            until = given(self.until)
            return given(self.since) <= time and (not until or time < until)
        return all(
            (low is None or low <= value) and (high is None or value < high)
            for low, value, high in zip(self.since, time, self.until, strict=True)
        )

    def intersect(self, other: Box) -> Box:
        """The times inside both, which have one order; may be empty."""
        if self.order.lexicographic:
            ends = [until for until in (self.until, other.until) if given(until)]
            since = max(self.since, other.since, key=given)
            return replace(self, since=since, until=min(ends, key=given, default=self.until))
        return Box(
            tuple(_tighter(max, a, b) for a, b in zip(self.since, other.since, strict=True)),
            tuple(_tighter(min, a, b) for a, b in zip(self.until, other.until, strict=True)),
        )

    def overlaps(self, other: Box) -> bool:
        """Whether some time is inside both; of two orders, whether one may be."""
        order = self.order if self.order.lexicographic else other.order
        return not self.hull(order).intersect(other.hull(order)).is_empty

    def hull(self, order: TimeOrder) -> Box:
        """A box in an order that has all of these times."""
        if order == self.order:
            return self
        until = given(self.until)
        if self.order.lexicographic:
            end = (until[0] + (len(until) > 1),) if until else ()
            return Box(_padded(given(self.since)[:1], self), _padded(end, self), order)
        # The last of these times has the greatest value of each bounded coordinate.
        ends = (*(value - 1 for value in until[:-1]), *until[-1:])
        return Box(_padded(given(self.since), self), _padded(ends, self), order)

    def is_complete(self, frontier: Antichain) -> bool:
        """Whether no further record can arrive at any time inside.

        This holds when every element of the frontier is beyond `until` in some coordinate, and for
        an empty box. A box without any `until` is complete only when the stream has ended.
        """
        if self.order.lexicographic:
            end = given(self.until)
            return self.is_empty or all(bool(end) and element >= end for element in frontier)
        return self.is_empty or all(
            any(
                high is not None and value >= high
                for value, high in zip(element, self.until, strict=True)
            )
            for element in frontier
        )

    @staticmethod
    def bound_of_text(time_type: TimeType, text: str | None) -> Bound:
        """Parse a bound given on the command line; None is unbounded.

        The text is `name=value`, several separated by commas, the others unbounded; or a JSON list
        with null for unbounded; or a bare value for the only coordinate or for `event`.
        """
        if text is None:
            return (None,) * len(time_type.coordinates)
        bound = _bound(time_type, text.strip(BLANKS))
        if time_type.order.lexicographic and any(v is not None for v in bound[len(given(bound)) :]):
            raise InvalidRequestError(
                "CAP-TIME",
                f"a bound of pairs begins with {time_type.names[0]}, unlike {shown(text)}",
                "times are ordered by the first coordinate that differs: name the first ones",
                value=shown(text),
            )
        if time_type.order.lexicographic:
            # (3, 0) and (3,) begin at the same place: one bound for it.
            least, width = time_type.minimum, len(given(bound))
            while width > 1 and bound[width - 1] == least[width - 1]:
                width -= 1
            bound = (*bound[:width], *(None,) * (len(bound) - width))
        return bound

    def to_json(self, time_type: TimeType) -> dict[str, BoundJson]:
        """The bounds as JSON, each written like a time, with null for unbounded."""
        return {"since": _render(time_type, self.since), "until": _render(time_type, self.until)}


def given(bound: Bound) -> tuple[int, ...]:
    """The first coordinates of a bound, up to one that is not bounded."""
    values: list[int] = []
    for value in bound:
        if value is None:
            break
        values.append(value)
    return tuple(values)


def _padded(values: tuple[int | None, ...], box: Box) -> Bound:
    return (*values, *(None,) * (len(box.since) - len(values)))


def _bound(time_type: TimeType, text: str) -> Bound:
    if len(time_type.coordinates) == 1 and "=" not in text:
        return tuple(time_type.parse_text(text))
    if text.startswith("["):
        return _listed(time_type, _json(time_type, text))
    if "=" not in text and "event" not in time_type.names:
        raise _not_a_bound(time_type, text)
    named = text if "=" in text else f"event={text}"
    parts = [part.partition("=") for part in named.split(",")]
    values = {name.strip(BLANKS): value.strip(BLANKS) for name, _, value in parts}
    if len(values) < len(parts):
        raise _not_a_bound(time_type, text)
    parsed = {
        name: time_type.coordinates[time_type.index(name)].parse_text(value)
        for name, value in values.items()
    }
    return tuple(parsed.get(name) for name in time_type.names)


def _tighter(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def _json(time_type: TimeType, text: str) -> object:
    try:
        return json.loads(text)
    # RecursionError: text nested deeper than the parser follows.
    except (ValueError, RecursionError) as error:
        raise _not_a_bound(time_type, text) from error


def _not_a_bound(time_type: TimeType, value: object) -> InvalidRequestError:
    example = ", ".join(f"{name}=..." for name in time_type.names)
    return InvalidRequestError(
        "CAP-TIME",
        f"not a bound of times of {', '.join(time_type.names)}: {shown(value)}",
        f"name coordinates ({example}), or give a list with null for unbounded",
        value=shown(value),
    )


def _render(time_type: TimeType, bound: Bound) -> BoundJson:
    values = [
        None if value is None else coordinate.render(value)
        for coordinate, value in zip(time_type.coordinates, bound, strict=True)
    ]
    return values[0] if len(values) == 1 else values


def _listed(time_type: TimeType, values: object) -> Bound:
    coordinates = time_type.coordinates
    if not isinstance(values, list) or len(values) != len(coordinates):
        raise _not_a_bound(time_type, values)
    return tuple(
        None if value is None else coordinate.parse_written(value)
        for coordinate, value in zip(coordinates, values, strict=True)
    )
