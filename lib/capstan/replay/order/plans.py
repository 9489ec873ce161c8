"""Dependence of a query's output on row order: the plan is analysed from the bottom up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from capstan.replay.order.needs import needed
from capstan.replay.order.rules import Cause, Grade, Rules, columns_of, worst
from capstan.replay.order.tree import FLOATS, Expression, Node
from capstan.replay.order.windows import over_window, whole_order

Key = frozenset[int]

_LIMITS = ("GlobalLimit", "LocalLimit", "Tail", "Offset")
# Steps that keep rows and columns unchanged.
_SAME = frozenset({
    "SubqueryAlias", "View", "Sort", "Repartition", "RepartitionByExpression",
    "RebalancePartitions", "ResolvedHint", "CollectMetrics", "EventTimeWatermark", "LocalLimit",
})  # fmt: skip
_OWN_CODE = frozenset({
    "FlatMapGroupsInPandas", "FlatMapGroupsInArrow", "FlatMapCoGroupsInPandas",
    "FlatMapCoGroupsInArrow",
})  # fmt: skip
_CUT = "rows are cut off by a limit, and their order is not whole"
_ONE = "one of the rows that have a key in common is kept"


@dataclass(frozen=True, slots=True)
class Depends:
    """The parts of a query's output that depend on row order.

    Attributes:
        columns: The causes by name of a dependent column.
        rows: The causes for which the set of rows depends on it.
    """

    columns: Mapping[str, Cause] = field(default_factory=dict)
    rows: tuple[Cause, ...] = ()


def examine(plan: Node) -> Depends:
    """Find the parts of a query's output that depend on row order."""
    walk = _Walk()
    walk.query(plan)
    causes = {column.name: walk.rules.of(column) for column in plan.output}
    return Depends(
        {name: c for name, c in causes.items() if c is not None}, tuple(dict.fromkeys(walk.rows))
    )


class _Walk:
    """The state of the analysis: causes by column, and keys that identify rows."""

    def __init__(self) -> None:
        self.rules = Rules(self.query)
        self.rows: list[Cause] = []
        self._needs: dict[int, Key] = {}
        self._shared: dict[int, tuple[Expression, ...]] = {}

    def query(self, plan: Node) -> Cause | None:
        """Analyse a plan; returns the cause of its first column, the value of a subquery."""
        self._needs.update(needed(plan))
        self._follow(plan)
        return worst(map(self.rules.of, plan.output[:1]))

    def _follow(self, node: Node) -> list[Key]:
        """Analyse a step and its columns; returns the keys that identify its rows."""
        keys = [self._follow(child) for child in node.children]
        below = keys[0] if keys else []
        step = getattr(self, f"_{node.kind.lower()}", None)
        if step is not None:
            return step(node, keys)  # type: ignore[no-any-return]
        if node.kind in _LIMITS and node.kind != "LocalLimit":
            return self._limit(node, below)
        if node.kind in _OWN_CODE:
            why = "is a float of a function of its own over groups of rows"
            for column in node.output:
                if column.type in FLOATS and column.id is not None:
                    text = f"{column.name} of {node.kind}"
                    self.rules.columns[column.id] = Cause(Grade.CLOSE, text, why, "use DECIMAL")
            return []
        if node.kind not in _SAME:
            self._use(node.expressions, f"{node.kind} goes by it")
        return below if len(keys) == 1 and set(node.ids) == set(node.children[0].ids) else []

    def _use(self, expressions: Iterable[Expression], how: str) -> None:
        """Record expressions that determine which rows there are."""
        cause = worst(map(self.rules.of, expressions))
        if cause is not None:
            self.rows.append(cause.used(how))

    def _project(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._define(node.expressions)
        return _renamed(keys[0], node.expressions)

    def _define(self, expressions: Iterable[Expression]) -> None:
        for expression in expressions:
            if expression.kind == "Alias":
                self._name(expression, self.rules.of(expression))

    def _aggregate(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        by, results = node.expressions[: node.groups], node.expressions[node.groups :]
        self._use(by, "rows are grouped by it")
        self._define(results)
        key: set[int] = set()
        for group in by:
            columns = [e.id for e in results if _value(e) == group and e.id is not None]
            if not columns:
                return []
            key.update(columns[:1])
        return [frozenset(key)]

    def _filter(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.expressions, "rows are chosen by it")
        return keys[0]

    def _join(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.expressions, "rows are joined by it")
        output = frozenset(node.ids)
        both = [left | right for left in keys[0] for right in keys[1]]
        # A join that only selects rows of its left side keeps their keys.
        left = [] if output > frozenset(node.children[0].ids) else keys[0]
        return [key for key in (*both, *left) if key <= output]

    def _window(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        below = node.children[0]
        kept = self._needs[id(node)] & frozenset(below.ids)

        def undecided(covered: Key, taken: Key) -> tuple[str, ...]:
            return _undecided(below, covered, kept | taken, keys[0])

        for column in node.expressions:
            if column.kind == "Alias" and column.id is not None:
                self._name(column, over_window(self.rules, column.children[0], undecided))
        return keys[0]

    def _limit(self, node: Node, keys: list[Key]) -> list[Key]:
        below = node.children[0]
        while below.kind in (*_LIMITS, "SubqueryAlias", "Project"):
            below = below.children[0]
        covered: Key = frozenset()
        if below.kind == "Sort":
            order = [sort_order.children[0] for sort_order in below.expressions]
            self._use(order, "rows are cut off in the order of it")
            covered = columns_of(order)
        missing = _undecided(node, covered, self._needs[id(node)], keys)
        if missing:
            self.rows.append(Cause(Grade.FREE, "LIMIT", _CUT, whole_order(missing)))
        return keys

    def _sample(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        why = "rows are drawn by chance from each file and partition"
        self.rows.append(Cause(Grade.FREE, "TABLESAMPLE", why, "choose rows by a hash of a key"))
        return keys[0]

    def _distinct(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.output, "equal rows are taken for one")
        return [frozenset(node.ids)]

    def _except(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use((*node.output, *node.children[1].output), "rows are compared by it")
        return keys[0]

    _intersect = _except

    def _deduplicate(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.expressions, "equal rows are taken for one")
        by = frozenset(e.id for e in node.expressions if e.id is not None)
        kept = self._needs[id(node)]
        if not _is_total(by, kept, keys[0]):
            for column in node.output:
                if column.id is not None and column.id not in by:
                    cause = Cause(Grade.FREE, f"dropDuplicates, {column.name}", _ONE, _NUMBER)
                    self.rules.columns[column.id] = cause
        return [by]

    def _union(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        for position, column in enumerate(node.output):
            causes = (self.rules.of(child.output[position]) for child in node.children)
            self._name(column, worst(causes))
        return []

    def _expand(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        width = len(node.output)
        for position, column in enumerate(node.output):
            cause = worst(map(self.rules.of, node.expressions[position::width]))
            self._name(column, cause)
        return []

    def _generate(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        generator = node.expressions[0]
        cause = worst(map(self.rules.of, generator.children))
        if cause is not None and (generator.kind, cause.grade) != ("Explode", Grade.SHUFFLED):
            for column in node.expressions[1:]:
                self._name(column, cause.used(f"{generator.kind.lower()} makes rows of it"))
        return []

    def _withcte(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        return keys[-1]

    def _cterelationdef(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        if node.ref is not None:
            self._shared[node.ref] = node.children[0].output
        return []

    def _cterelationref(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        for column, origin in zip(node.output, self._shared.get(node.ref or 0, ()), strict=False):
            self._name(column, self.rules.of(origin))
        return []

    def _name(self, column: Expression, cause: Cause | None) -> None:
        if column.id is not None and cause is not None:
            self.rules.columns[column.id] = cause


_NUMBER = "number the rows of each key by row_number() in a whole order, and keep the first"


def _is_total(covered: Key, kept: Key, keys: Iterable[Key]) -> bool:
    """Whether columns identify rows, or rows equal in them are equal in all kept columns."""
    return kept <= covered or any(key <= covered for key in keys)


def _undecided(node: Node, covered: Key, kept: Key, keys: Iterable[Key]) -> tuple[str, ...]:
    """The names of a step's kept columns in which rows equal in the covered ones may differ."""
    if _is_total(covered, kept, keys):
        return ()
    return tuple(c.name for c in node.output if c.id in kept and c.id not in covered)


def _value(one: Expression) -> Expression:
    return one.children[0] if one.kind == "Alias" else one


def _renamed(keys: Iterable[Key], given: Iterable[Expression]) -> list[Key]:
    """Keys in terms of their new column names; a key that loses a column is dropped."""
    names: dict[int, int] = {}
    for column in given:
        value = _value(column)
        if value.kind == "AttributeReference" and value.id is not None and column.id is not None:
            names.setdefault(value.id, column.id)
    return [frozenset(names[c] for c in key) for key in keys if key <= names.keys()]
