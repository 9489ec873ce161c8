"""What of functions over a window depends on the order of rows."""

from __future__ import annotations

from collections.abc import Callable

from capstan.replay.order import functions as known
from capstan.replay.order.rules import Cause, Grade, Rules, columns_of, text_of, worst
from capstan.replay.order.tree import Expression

_WHOLE = "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_WHY = "goes by the place of a row, and rows that are equal in the order may stand either way"

Undecided = Callable[[frozenset[int], frozenset[int]], tuple[str, ...]]
"""The names of the columns, of the second ones and all that is kept, in which rows that are equal
in the first ones may differ."""


def whole_order(undecided: tuple[str, ...]) -> str:
    """The remedy for an order that does not tell rows apart in these columns."""
    return f"add to ORDER BY what rows that are equal in it may differ in: {', '.join(undecided)}"


def over_window(rules: Rules, one: Expression, undecided: Undecided) -> Cause | None:
    """What of a function over a window depends on the order of rows; None where nothing does.

    Args:
        rules: Those of other expressions.
        one: The function and its window.
        undecided: What the order of rows leaves open.
    """
    function, spec = one.children[:2]
    order = [each.children[0] for each in spec.children if each.kind == "SortOrder"]
    frame = next((e.sql for e in spec.children if e.kind == "SpecifiedWindowFrame"), "")
    parts = [e for e in spec.children if e.kind not in ("SortOrder", "SpecifiedWindowFrame")]
    placed = worst(map(rules.of, (*parts, *order)))
    if placed is not None:
        return placed.used("rows are ordered by it")
    inner = function.children[0] if function.kind == "AggregateExpression" else function
    if inner.kind in known.RANKS:
        return None
    covered = columns_of((*parts, *order))
    missing = undecided(covered, inner.columns)
    if inner.kind in known.PLACES and order:
        if not missing or _is_of_order(inner, covered):
            return worst(map(rules.of, inner.children))
        return Cause(Grade.FREE, text_of(one), _WHY, whole_order(missing))
    if order and frame.startswith("ROWS") and _WHOLE not in frame and missing:
        return Cause(Grade.FREE, text_of(one), _WHY, whole_order(missing))
    return rules.of(function)


def _is_of_order(inner: Expression, covered: frozenset[int]) -> bool:
    """Whether it takes a value by which rows are ordered, which equal rows have alike."""
    return inner.kind in ("First", "Last", "NthValue") and inner.columns <= covered
