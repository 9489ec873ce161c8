"""Dependence of a query's columns and rows on the order of its input, by its analysed plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from capstan.replay.order.spark_plan import SUBQUERIES, Columns, Tree, columns_among, columns_read

_SUM = "adds up floats, and is rounded at each step"
_DECIMAL = "cast what is summed to DECIMAL, whose sums are exact, as in CAST({} AS DECIMAL(28, 6))"
_RATIO = "write sum({0}) / count({0}), each with the same DISTINCT, FILTER or OVER: both are exact"
_TIES = "depends on the position of a row, and rows that are equal in ORDER BY have no order"
_ALL_ROWS = "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_FLOATS = ("double", "float")
_ZEROS = ("0", "0.0", "0.0D", "CAST(0 AS DOUBLE)", "CAST(0.0 AS DOUBLE)")

_HELD = "use values of the records"
_FIRST = "takes the value of whichever row comes first"
_BY = "max_by(x, struct(y, x)) chooses by values alone; so do min and max"
_ESTIMATE = "is estimated from parts of the rows, and differs with these parts"
_CLOCK = "CurrentDate", "CurrentTime", "CurrentTimestamp", "Now", "LocalTimestamp"
_SESSION = "CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"

_LISTED = "lists values in the order of the rows", "sort_array(...) gives the elements an order"
# The whole value depends on it, and Spark does not call them nondeterministic: why, and the remedy.
_FREE = {
    "First": (_FIRST, _BY),
    "Last": ("takes the value of whichever row comes last", _BY),
    "Mode": ("takes any of equally frequent values", "write mode() WITHIN GROUP (ORDER BY x)"),
    "ListAgg": (_LISTED[0], "write listagg(x) WITHIN GROUP (ORDER BY x)"),
    "ApproximatePercentile": (_ESTIMATE, "percentile and median are exact"),
    "HistogramNumeric": (_ESTIMATE, "count by classes of the values"),
    **dict.fromkeys(_CLOCK, ("reads the clock", _HELD)),
    **dict.fromkeys(_SESSION, ("depends on the session", _HELD)),
}
# They give an array in the order of rows; of the others, the result is the same in any order.
_SHUFFLED = frozenset({"CollectList", "CollectSet"})
_SORTING = frozenset({
    "SortArray", "ArraySort", "Size", "ArrayMax", "ArrayMin", "ArrayContains", "ArrayExists",
    "ArrayForAll", "Explode",
})  # fmt: skip
# Aggregates that give one of their values; all others that give floats add them up.
_EXACT = _FREE.keys() | _SHUFFLED | {
    "Max", "Min", "MaxBy", "MinBy", "MaxMinByK", "Percentile", "PercentileDisc", "PivotFirst",
}  # fmt: skip
# Floats that are almost equal come out far apart, or are not told apart.
_ROUNDED = frozenset({"Round", "BRound", "Rint", "Signum", "Remainder", "Pmod"})
_BLIND = frozenset({"IsNull", "IsNotNull", "AtLeastNNonNulls", "Count", "Size"})
# Window functions: the same for rows that tie in ORDER BY, or of one row in whatever frame.
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
_OF_A_ROW = frozenset({"First", "Last", "NthValue", "CollectList", "ListAgg"})


class Grade(IntEnum):
    """The part of a value that depends on the order of rows."""

    LAST_DIGITS = 1
    ELEMENTS = 2  # The order of an array's elements.
    VALUE = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """The reason why a value depends on the order of rows, as SQL and text, and the remedy."""

    grade: Grade
    expression: str
    why: str
    remedy: str

    def used(self, how: str) -> Cause:
        """The cause after a use that can change the whole value."""
        if self.grade is Grade.VALUE:
            return self
        return Cause(Grade.VALUE, self.expression, f"{self.why}, and {how}", self.remedy)


def examine(plan: Tree) -> dict[str, Cause]:
    """The causes by the name of a column, and by an empty name that of the set of rows."""
    walk = _Walk()
    walk.query(plan)
    causes = {"": _worst(walk.rows), **{c.text: walk.of(c) for c in plan.all("output")}}
    return {name: cause for name, cause in causes.items() if cause is not None}


class _Walk:
    """The causes of columns by number, and those for which the set of rows depends on the order."""

    def __init__(self) -> None:
        self.columns: dict[int, Cause | None] = {}
        self.rows: list[Cause] = []

    def query(self, plan: Tree) -> Cause | None:
        """Analyse a plan; returns the cause of its first column, the value of a subquery."""
        output = plan.all("output")
        self._follow(plan, columns_among(output))
        return _worst(map(self.of, output[:1]))

    def of(self, one: Tree) -> Cause | None:
        """The cause of an expression's dependence; None without one."""
        if one.kind == "AttributeReference":
            return self.columns.get(one.id)
        if one.kind == "WindowExpression":
            return self._of_window(one)
        if one.kind == "AggregateExpression" and "WITHIN GROUP" in one.text:
            return _worst(map(self.of, one.children[0].children))
        below = _worst(map(self.of, one.children))
        if one.kind in SUBQUERIES:
            below = _worst((below, self.query(one.subquery())))
        own = _own(one)
        if own is None or below is None:
            return own if below is None else _passed(one, below)
        close = own.grade is below.grade is Grade.LAST_DIGITS
        return own if close else below.used(f"{one.text} is made of it")

    def _follow(self, step: Tree, above: Columns) -> None:
        """Analyse a step, whose columns `above` are used, after those that it reads."""
        expressions, children = step.all("expressions"), step.children
        read = columns_read(expressions)
        used = read if step.kind in ("Project", "Aggregate") else read | above
        for child in children:
            # A union renames columns. Spark has removed those of its children that are not used.
            self._follow(child, columns_among(child.all("output")) if len(children) > 1 else used)
        if step.kind == "Window":
            self._kept, self._below = above, children[0]
        if step.kind in ("Project", "Window"):
            self._define(expressions)
        elif step.kind == "Aggregate":
            groups = step.jvm.groupingExpressions().size()
            self._use(expressions[:groups])
            by = columns_among(expressions[:groups])
            if not any(key <= by for key in children[0].keys):  # Else a group is one row.
                self._define(expressions[groups:])
        elif step.kind == "Union":
            for column, *made_of in zip(*(s.all("output") for s in (step, *children)), strict=True):
                self.columns[column.id] = _worst(map(self.of, made_of))
        elif step.kind.startswith("FlatMap"):
            of_code = Cause(Grade.LAST_DIGITS, step.kind, _SUM, "use DECIMAL")  # A Python function.
            self.columns |= {c.id: of_code for c in step.all("output") if c.type in _FLOATS}
        elif step.kind not in ("Sort", "Expand", "RepartitionByExpression"):
            self._use(expressions)

    def _define(self, expressions: Iterable[Tree]) -> None:
        self.columns |= {one.id: self.of(one) for one in expressions if one.kind == "Alias"}

    def _use(self, expressions: Iterable[Tree]) -> None:
        """Record expressions that determine which rows there are."""
        cause = _worst(map(self.of, expressions))
        if cause is not None:
            self.rows.append(cause.used("rows are chosen by it"))

    def _of_window(self, one: Tree) -> Cause | None:
        function, spec = one.children
        order = [each.children[0] for each in spec.children if each.kind == "SortOrder"]
        frame = "".join(e.text for e in spec.children if e.kind == "SpecifiedWindowFrame")
        parts = [e for e in spec.children if e.kind not in ("SortOrder", "SpecifiedWindowFrame")]
        placed = _worst(map(self.of, (*parts, *order)))
        if placed is not None:
            return placed.used("rows are ordered by it")
        inner = function.children[0] if function.kind == "AggregateExpression" else function
        if inner.kind in _RANKS or not order:
            return None if order else self.of(function)
        of_a_row = inner.kind in _OF_A_ROW
        covered, read = columns_among((*parts, *order)), columns_read([inner])
        by_rows = frame.startswith("ROWS") and _ALL_ROWS not in frame
        missing = self._undecided(covered, read)
        if missing and (not read <= covered if of_a_row else by_rows):
            remedy = f"add these columns to ORDER BY: {', '.join(missing)}"
            return Cause(Grade.VALUE, one.text, _TIES, remedy)
        return _worst(map(self.of, inner.children)) if of_a_row else self.of(function)

    def _undecided(self, covered: Columns, read: Columns) -> list[str]:
        """The names of used columns in which rows that are equal in the covered ones may differ."""
        if any(key <= covered for key in self._below.keys):
            return []
        wanted = (self._kept | read) - covered
        return [column.text for column in self._below.all("output") if column.id in wanted]


def _worst(causes: Iterable[Cause | None]) -> Cause | None:
    existing = [cause for cause in causes if cause is not None]
    return max(existing, key=lambda cause: cause.grade, default=None)


def _own(one: Tree) -> Cause | None:
    """The cause that a function introduces itself."""
    if one.kind in _FREE:
        return Cause(Grade.VALUE, one.text, *_FREE[one.kind])
    if one.kind in _SHUFFLED:
        return Cause(Grade.ELEMENTS, one.text, *_LISTED)
    if not one.jvm.deterministic() and all(each.jvm.deterministic() for each in one.children):
        return Cause(Grade.VALUE, one.text, "is not deterministic", _HELD)
    if one.kind != "AggregateExpression" or one.type not in _FLOATS:
        return None
    function = one.children[0]
    if function.kind in _EXACT:
        return None
    value = (*function.children, function)[0]
    if function.kind == "Average" and value.type in ("tinyint", "smallint", "int"):
        return None  # Spark adds them up as DOUBLE, which is exact below 2^53.
    remedy = _RATIO if value.type == "bigint" else _DECIMAL
    return Cause(Grade.LAST_DIGITS, one.text, _SUM, remedy.format(value.text))


def _passed(one: Tree, below: Cause) -> Cause | None:
    """The cause of a function over a dependent value."""
    if below.grade is Grade.ELEMENTS:
        return None if one.kind in _SORTING else below
    if below.grade is Grade.VALUE:
        return below
    equal = one.kind in ("EqualTo", "EqualNullSafe")
    if one.kind in _BLIND or (equal and any(each.text in _ZEROS for each in one.children)):
        return None  # Compared with zero, as by `nullif` before a division.
    if "double" in one.type and one.kind not in _ROUNDED:
        return below
    return below.used(f"{one.text} is made of it")
