"""The columns of each step of a plan that later steps use."""

from __future__ import annotations

from collections.abc import Iterable

from capstan.replay.order.tree import Expression, Node

Columns = frozenset[int]


def needed(plan: Node) -> dict[int, Columns]:
    """The used column numbers of each step, by the step's `id`."""
    found: dict[int, Columns] = {}
    _descend(plan, frozenset(plan.ids), found)
    return found


def _descend(node: Node, above: Columns, found: dict[int, Columns]) -> None:
    found[id(node)] = above & frozenset(node.ids) if node.output else above
    for position, child in enumerate(node.children):
        _descend(child, _of_child(node, position, above), found)


def _of_child(node: Node, position: int, above: Columns) -> Columns:
    child = node.children[position]
    if node.kind == "Project":
        return _columns(e for e in node.expressions if e.id in above)
    if node.kind == "Aggregate":
        results = [e for e in node.expressions[node.groups :] if e.id in above]
        return _columns((*node.expressions[: node.groups], *results))
    if node.kind == "Window":
        used = [e for e in node.expressions if e.kind != "Alias" or e.id in above]
        return (above & frozenset(child.ids)) | _columns(used)
    if node.kind == "Union":
        positions = [at for at, column in enumerate(node.output) if column.id in above]
        return frozenset(n for at in positions if (n := child.output[at].id) is not None)
    if node.kind in ("WithCTE", "CTERelationDef", "Distinct", "Except", "Intersect"):
        # All columns of a common table expression may be used.
        return frozenset(child.ids)
    return (above | _columns(node.expressions)) & frozenset(child.ids)


def _columns(expressions: Iterable[Expression]) -> Columns:
    return frozenset(number for expression in expressions for number in expression.columns)
