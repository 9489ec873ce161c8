"""Which columns of each step of a plan are used above it."""

from __future__ import annotations

from collections.abc import Iterable

from capstan.core.config.order.tree import Expression, Node

Columns = frozenset[int]


def needed(plan: Node) -> dict[int, Columns]:
    """By `id` of each step the numbers of its columns that what is above it makes something of."""
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
        return _columns(each for each in node.expressions if each.id in above)
    if node.kind == "Aggregate":
        given = [each for each in node.expressions[node.groups :] if each.id in above]
        return _columns((*node.expressions[: node.groups], *given))
    if node.kind == "Window":
        wanted = [e for e in node.expressions if e.kind != "Alias" or e.id in above]
        return (above & frozenset(child.ids)) | _columns(wanted)
    if node.kind == "Union":
        wanted_at = [at for at, column in enumerate(node.output) if column.id in above]
        return frozenset(number for at in wanted_at if (number := child.output[at].id) is not None)
    if node.kind in ("WithCTE", "CTERelationDef", "Distinct", "Except", "Intersect"):
        # All of what a common table expression has may be used.
        return frozenset(child.ids)
    return (above | _columns(node.expressions)) & frozenset(child.ids)


def _columns(expressions: Iterable[Expression]) -> Columns:
    return frozenset(number for each in expressions for number in each.columns)
