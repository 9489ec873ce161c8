"""Boxes as conditions over columns of coordinates: SQL, filters of a scan, masks."""

from __future__ import annotations

from collections.abc import Callable
from operator import and_, ge, gt, le, lt, or_
from typing import Any, Final, TypeVar

from capstan.core.times.box import Box, given

Condition = TypeVar("Condition")
Joined = Callable[[Condition, Condition], Condition]

OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {">=": ge, ">": gt, "<=": le, "<": lt}
"""Python's operators by their sign."""


def box_conditions(
    box: Box,
    compared: Callable[[int, str, int], Condition],
    both: Joined[Condition] = and_,
    either: Joined[Condition] = or_,
) -> list[Condition]:
    """The conditions that together hold for the times in a box; none if nothing bounds it.

    `compared` gives that of a coordinate, a sign and a value, `both` and `either` join two.
    """
    conditions: list[Condition] = []
    if not box.order.lexicographic:
        for axis, (since, until) in enumerate(zip(box.since, box.until, strict=True)):
            if since is not None:
                conditions.append(compared(axis, ">=", since))
            if until is not None:
                conditions.append(compared(axis, "<", until))
        return conditions
    for bound, before, sign in ((given(box.since), ">", ">="), (given(box.until), "<", "<")):
        if not bound:
            continue
        last = len(bound) - 1
        condition = compared(last, sign, bound[last])
        # The first coordinate is compared alone as well: by that, files are skipped.
        for axis in reversed(range(last)):
            value = bound[axis]
            later = either(compared(axis, before, value), condition)
            condition = both(compared(axis, f"{before}=", value), later)
        conditions.append(condition)
    return conditions
