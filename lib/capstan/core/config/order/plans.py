"""What of a query's output depends on the order of rows: its plan is followed from below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from capstan.core.config.order.needs import needed
from capstan.core.config.order.rules import Cause, Grade, Rules, columns_of, worst
from capstan.core.config.order.tree import FLOATS, Expression, Node
from capstan.core.config.order.windows import ORDER, over_window

Key = frozenset[int]

_LIMITS = ("GlobalLimit", "LocalLimit", "Tail", "Offset")
# Steps that keep rows and their columns as they are.
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
    """What of a query's output depends on the order of rows.

    Attributes:
        columns: Columns that do, by name.
        rows: Why it depends on it which rows there are.
    """

    columns: Mapping[str, Cause] = field(default_factory=dict)
    rows: tuple[Cause, ...] = ()


def examine(plan: Node) -> Depends:
    """What of a query's output depends on the order of rows."""
    walk = _Walk()
    walk.query(plan)
    causes = {column.name: walk.rules.of(column) for column in plan.output}
    return Depends(
        {name: c for name, c in causes.items() if c is not None}, tuple(dict.fromkeys(walk.rows))
    )


class _Walk:
    """A plan as it is followed: what its columns do, and the keys that tell its rows apart."""

    def __init__(self) -> None:
        self.rules = Rules(self.query)
        self.rows: list[Cause] = []
        self._needs: dict[int, Key] = {}
        self._shared: dict[int, tuple[Expression, ...]] = {}

    def query(self, plan: Node) -> Cause | None:
        """Follow a plan; what its first column does, which is the value of a subquery."""
        self._needs.update(needed(plan))
        self._follow(plan)
        return worst(map(self.rules.of, plan.output[:1]))

    def _follow(self, node: Node) -> list[Key]:
        """Follow a step: its columns are known then. Gives keys that tell its rows apart."""
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
        """Note expressions by which rows are chosen."""
        cause = worst(map(self.rules.of, expressions))
        if cause is not None:
            self.rows.append(cause.used(how))

    def _project(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._define(node.expressions)
        return _renamed(keys[0], node.expressions)

    def _define(self, expressions: Iterable[Expression]) -> None:
        for each in expressions:
            if each.kind == "Alias":
                self._name(each, self.rules.of(each))

    def _aggregate(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        by, given = node.expressions[: node.groups], node.expressions[node.groups :]
        self._use(by, "rows are grouped by it")
        self._define(given)
        found: set[int] = set()
        for group in by:
            named = [each.id for each in given if _value(each) == group and each.id is not None]
            if not named:
                return []
            found.update(named[:1])
        return [frozenset(found)]

    def _filter(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.expressions, "rows are chosen by it")
        return keys[0]

    def _join(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        self._use(node.expressions, "rows are joined by it")
        there = frozenset(node.ids)
        both = [left | right for left in keys[0] for right in keys[1]]
        # A join that only chooses among the rows of its left side keeps their keys.
        left = [] if there > frozenset(node.children[0].ids) else keys[0]
        return [key for key in (*both, *left) if key <= there]

    def _window(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        kept = self._needs[id(node)] & frozenset(node.children[0].ids)

        def total(covered: Key, taken: Key) -> bool:
            return _is_total(covered, kept | taken, keys[0])

        for each in node.expressions:
            if each.kind == "Alias" and each.id is not None:
                self._name(each, over_window(self.rules, each.children[0], total))
        return keys[0]

    def _limit(self, node: Node, keys: list[Key]) -> list[Key]:
        below = node.children[0]
        while below.kind in (*_LIMITS, "SubqueryAlias", "Project"):
            below = below.children[0]
        covered: Key = frozenset()
        if below.kind == "Sort":
            order = [each.children[0] for each in below.expressions]
            self._use(order, "rows are cut off in the order of it")
            covered = columns_of(order)
        kept = self._needs[id(node)]
        if not _is_total(covered, kept, keys):
            self.rows.append(Cause(Grade.FREE, "LIMIT", _CUT, ORDER))
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
        by = frozenset(each.id for each in node.expressions if each.id is not None)
        kept = self._needs[id(node)]
        if not _is_total(by, kept, keys[0]):
            for column in node.output:
                if column.id is not None and column.id not in by:
                    cause = Cause(Grade.FREE, f"dropDuplicates, {column.name}", _ONE, _NUMBER)
                    self.rules.columns[column.id] = cause
        return [by]

    def _union(self, node: Node, keys: Sequence[list[Key]]) -> list[Key]:
        for position, column in enumerate(node.output):
            each = (self.rules.of(child.output[position]) for child in node.children)
            self._name(column, worst(each))
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
    """Whether columns tell rows apart, or those that they do not are alike in all that is kept."""
    return kept <= covered or any(key <= covered for key in keys)


def _value(one: Expression) -> Expression:
    return one.children[0] if one.kind == "Alias" else one


def _renamed(keys: Iterable[Key], given: Iterable[Expression]) -> list[Key]:
    """Keys by the names that their columns have from here on; those that lose one are none."""
    names: dict[int, int] = {}
    for each in given:
        value = _value(each)
        if value.kind == "AttributeReference" and value.id is not None and each.id is not None:
            names.setdefault(value.id, each.id)
    return [frozenset(names[c] for c in key) for key in keys if key <= names.keys()]
