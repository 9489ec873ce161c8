"""A time: integer coordinates, ordered coordinate by coordinate.

`a.less_equal(b)` when every coordinate of `a` is at most that of `b`. With one coordinate that is
a total order; with more it is a partial one, in which `(0, 1)` and `(1, 0)` are not comparable.

`a <= b`, `sorted` and `min` compare as tuples do, from the first coordinate on. That is an order
for *listing* times only. It extends the product order (`a.less_equal(b)` implies `a <= b`), never
the other way round, so no rule may be decided with it.
"""

from __future__ import annotations

from typing import Self


def less_equal(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether `a` is at or before `b` in every coordinate."""
    if len(a) == 1 == len(b):
        return a[0] <= b[0]
    # A generator inside all() costs three times as much, and this is the inner loop of everything.
    for x, y in zip(a, b, strict=True):  # noqa: SIM110
        if x > y:
            return False
    return True


class Time(tuple[int, ...]):
    """A point in time: one integer for each coordinate of its time type.

    Equal to, and hashed like, the plain tuple of its coordinates. Comparison operators are those
    of tuples, a listing order; the order of time is `less_equal`.

    >>> Time((2, 1)).less_equal(Time((1, 3))), Time((2, 1)).less_equal(Time((2, 3)))
    (False, True)
    """

    __slots__ = ()

    @classmethod
    def of(cls, *coordinates: int) -> Self:
        """The time with these coordinates, the outermost first."""
        return cls(coordinates)

    def less_equal(self, other: tuple[int, ...]) -> bool:
        """Whether this time is at or before `other` in every coordinate."""
        return less_equal(self, other)
