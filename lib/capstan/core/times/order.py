"""The order of times, which follows from how their type is made.

| type | `a` is less or equal to `b` |
| --- | --- |
| `Product<A, B>` | when each part of `a` is less or equal to that of `b` |
| a pair `(A, B)` | when the first part that differs is less, as in a dictionary; or none differs |

A capture's own times are products. A tape has products, or pairs of numbers and of such pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from capstan.core.times.time import less_equal

Comparison = Callable[[tuple[int, ...], tuple[int, ...]], bool]


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """An order of times: of products, or `lexicographic`, of pairs.

    Each of `parts` is a number of coordinates and their order; without parts every coordinate is
    one. Tuples compare in an order that extends all of these: see `times.time`.

    >>> PRODUCT.less_equal((0, 5), (1, 0)), PAIR.less_equal((0, 5), (1, 0))
    (False, True)
    """

    lexicographic: bool
    parts: tuple[tuple[int, TimeOrder], ...] = ()

    @classmethod
    def of(cls, parts: Iterable[tuple[int, TimeOrder]], *, lexicographic: bool) -> TimeOrder:
        """The order of a product or pair of these parts; parts of its own kind are flattened."""
        flat: list[tuple[int, TimeOrder]] = []
        for width, part in parts:
            if width == 1:
                flat.append((1, PRODUCT))
            elif part.lexicographic is lexicographic:
                flat.extend(part.parts or [(1, PRODUCT)] * width)
            else:
                flat.append((width, part))
        if all(width == 1 for width, _ in flat):
            # One coordinate has one order.
            return PAIR if lexicographic and len(flat) > 1 else PRODUCT
        return flat[0][1] if len(flat) == 1 else cls(lexicographic, tuple(flat))

    @property
    def comparison(self) -> Comparison:
        """`less_equal` as a plain function, the fastest that there is."""
        return self.less_equal if self.lexicographic or self.parts else less_equal

    def is_total(self, width: int) -> bool:
        """Whether of any two times of `width` coordinates one is less or equal to the other."""
        if width == 1:
            return True
        return self.lexicographic and all(part.is_total(wide) for wide, part in self.parts)

    def less_equal(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Whether `a` is at or before `b`."""
        if not self.parts:
            return a <= b if self.lexicographic else less_equal(a, b)
        start = 0
        for width, part in self.parts:
            mine, other = a[start : start + width], b[start : start + width]
            start += width
            if self.lexicographic and mine != other:
                return part.less_equal(mine, other)
            if not self.lexicographic and not part.less_equal(mine, other):
                return False
        return True


PRODUCT: Final = TimeOrder(lexicographic=False)
"""Coordinate by coordinate."""

PAIR: Final = TimeOrder(lexicographic=True)
"""The first coordinate that differs decides: total."""
