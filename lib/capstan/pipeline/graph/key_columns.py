"""The columns by whose values the rows of a pipeline divide: what is of one key is of it alone."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.graph import Dag, Edge, Node

Names = Mapping[str, str]
"""Columns of a sink, each with the name that it has at another node."""


def key_columns(dag: Dag, sink: str) -> dict[str, Names]:
    """The columns of a sink that a source has as well, under their names there, by source.

    Of a source, the rows of the sink with some values in them depend only on the rows with the same
    values: every operator between them keeps the values, and is keyed by these columns.
    """
    wanted: dict[str, list[Names]] = {node.name: [] for node in dag.nodes}
    wanted[sink].append({name: name for name in dag.node(sink).schema.names if name != TIME})
    sources: dict[str, Names] = {}
    for number in reversed(dag.execution_order):
        node, (first, *others) = dag.nodes[number], wanted[dag.nodes[number].name]
        names = {c: n for c, n in first.items() if all(other.get(c) == n for other in others)}
        edges = dag.inputs(number)
        if not edges:
            sources[node.name] = names
        for edge in edges:
            wanted[dag.nodes[edge.source].name].append(_before(dag, node, edge, names))
    return sources


def _before(dag: Dag, node: Node, edge: Edge, names: Names) -> Names:
    """The columns at an input of a node, of those that it keeps and that are of its key."""
    if node.operator is None:
        return names
    kept = node.operator.preserves([dag.nodes[each.source].schema for each in dag.inputs(node.id)])
    own = {column: name for column, name in names.items() if name in kept}
    if node.key is None:
        return own
    of_port = dict(zip(node.key.on(0), node.key.on(edge.target_port), strict=True))
    return {column: of_port[name] for column, name in own.items() if name in of_port}
