"""Validation of declared graphs: order, schemas and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import pyarrow as pa

from capstan.pipeline.graph.errors import (
    CycleDetected,
    DisconnectedNode,
    DuplicateEdge,
    FanOutLimitExceeded,
    KeyNotDeclared,
    NodeNotFound,
    SchemaMismatch,
    WrongWay,
)
from capstan.pipeline.graph.graph import ANY_COLUMNS, MAX_FAN_OUT, Node, NodeKind
from capstan.pipeline.graph.operator import Key, OperatorSpec


@dataclass(frozen=True, slots=True)
class DeclaredNode:
    """A declared node; a schema of None follows from its inputs."""

    name: str
    kind: NodeKind
    operator: OperatorSpec | None = None
    schema: pa.Schema | None = None
    key: Key | None = None


Pairs = Sequence[tuple[str, str]]


def check_edges(nodes: Mapping[str, DeclaredNode], pairs: Pairs) -> None:
    """Refuse edges with unknown nodes, wrong directions or duplicates, and too many readers."""
    for source, target in pairs:
        for name in (source, target):
            if name not in nodes:
                message = f"edge {source} -> {target} names {name!r}, which is not declared"
                raise NodeNotFound.create(message, name=name)
        into, out = nodes[target].kind is NodeKind.SOURCE, nodes[source].kind is NodeKind.SINK
        if into or out:
            direction = f"into the source {target}" if into else f"out of the sink {source}"
            raise WrongWay.create(f"an edge {direction}", source=source, target=target)
    for (source, target), times in Counter(pairs).items():
        if times > 1:
            message = f"{source} and {target} are connected {times} times"
            raise DuplicateEdge.create(message, source=source, target=target)
    for name, count in Counter(source for source, _ in pairs).items():
        if count > MAX_FAN_OUT:
            raise FanOutLimitExceeded.create(
                f"{count} nodes read {name}; the limit is {MAX_FAN_OUT}",
                name=name,
                count=count,
                limit=MAX_FAN_OUT,
            )


def topological_order(nodes: Sequence[str], pairs: Pairs) -> tuple[int, ...]:
    """Return positions of the nodes such that each follows its inputs; ties by position."""
    position = {name: index for index, name in enumerate(nodes)}
    pending = Counter(target for _, target in pairs)
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in pairs:
        readers[source].append(target)
    ready = [position[name] for name in nodes if not pending[name]]
    heapify(ready)
    order: list[int] = []
    while ready:
        current = heappop(ready)
        order.append(current)
        for reader in readers[nodes[current]]:
            pending[reader] -= 1
            if not pending[reader]:
                heappush(ready, position[reader])
    if len(order) < len(nodes):
        stuck = [name for name in nodes if pending[name]]
        message = f"the edges form a cycle at or before: {', '.join(stuck)}"
        raise CycleDetected.create(message, name=stuck[0])
    return tuple(order)


def check_connected(nodes: Mapping[str, DeclaredNode], pairs: Pairs) -> None:
    """Refuse sources without readers, sinks without inputs, and isolated nodes."""
    read, written = {source for source, _ in pairs}, {target for _, target in pairs}
    for name, node in nodes.items():
        if node.kind is NodeKind.SOURCE:
            problem = "no node reads the source" if name not in read else ""
        elif node.kind is NodeKind.SINK:
            problem = "no node feeds the sink" if name not in written else ""
        else:
            problem = "no edge connects" if name not in read | written else ""
        if problem:
            raise DisconnectedNode.create(f"{problem} {name}", name=name)


def resolve_node(number: int, declared: DeclaredNode, inputs: Sequence[Node]) -> Node:
    """Create a node with its key and columns, given its inputs in order of ports."""
    key = _key(declared)
    schemas = [node.schema for node in inputs]
    if key is not None:
        _check_key(declared.name, key, inputs)
    schema = _schema(declared, inputs, schemas)
    return Node(number, declared.name, declared.kind, schema, declared.operator, key)


def mismatch(actual: pa.Schema, expected: pa.Schema) -> str:
    """Describe why rows of one schema do not match another; empty when they do.

    They match when columns have the same names and types by position. A schema without columns
    matches any other.
    """
    if not actual.names or not expected.names:
        return ""
    if len(actual) != len(expected):
        return f"{len(actual)} columns ({', '.join(actual.names)}) instead of {len(expected)}"
    for position, (field, other) in enumerate(zip(actual, expected, strict=True)):
        if field.name != other.name or field.type != other.type:
            return (
                f"column {position} is {field.name} {field.type} "
                f"instead of {other.name} {other.type}"
            )
    return ""


def _key(declared: DeclaredNode) -> Key | None:
    name, own = declared.name, None if declared.operator is None else declared.operator.key
    key = declared.key if own is None else own
    if declared.kind is NodeKind.STATELESS and key is not None:
        problem = f"{name} is declared stateless, but its operator has state by {own}"
    elif declared.key is not None and key != declared.key:
        problem = f"{name} has the key {declared.key}, but its operator has the key {own}"
    elif declared.kind is NodeKind.OPERATOR and key is None:
        problem = f"stateful operator {name} has no key"
    else:
        return key
    raise KeyNotDeclared.create(problem, name=name)


def _check_key(name: str, key: Key, inputs: Sequence[Node]) -> None:
    if len(key.columns) not in (1, len(inputs)):
        message = f"{name} has {len(inputs)} inputs, but key columns for {len(key.columns)}"
        raise SchemaMismatch.create(message, source=name, target=name, reason=message)
    types: list[list[pa.DataType]] = []
    for port, node in enumerate(inputs):
        if not node.schema.names:
            continue
        for column in key.on(port):
            reason = _unusable_key(node.schema, column)
            if reason:
                raise _mismatch(node.name, name, reason)
        types.append([node.schema.field(column).type for column in key.on(port)])
        if types[-1] != types[0]:
            reason = f"its key has types {types[-1]} on port {port}, but {types[0]} on the first"
            raise _mismatch(node.name, name, reason)


def _unusable_key(schema: pa.Schema, column: str) -> str:
    if schema.names.count(column) != 1:
        return f"no key column {column} among {', '.join(schema.names)}"
    kind = schema.field(column).type
    # Two equal floats can have different bits, and hashes use the bits.
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return f"key column {column} has the type {kind}, which cannot be hashed exactly"
    return ""


def _schema(
    declared: DeclaredNode, inputs: Sequence[Node], schemas: Sequence[pa.Schema]
) -> pa.Schema:
    name = declared.name
    if declared.operator is not None:
        try:
            computed = declared.operator.output_schema(schemas)
        except ValueError as error:
            upstream = ", ".join(node.name for node in inputs)
            raise _mismatch(upstream, name, str(error)) from error
        reason = mismatch(computed, declared.schema or ANY_COLUMNS)
        if reason:
            raise _mismatch(name, name, f"its operator emits {reason}")
        return computed
    # A node without an operator forwards rows, so its input and output schemas must agree.
    known = [declared.schema, *schemas]
    expected = next((s for s in known if s is not None and s.names), ANY_COLUMNS)
    for node in inputs:
        reason = mismatch(node.schema, expected)
        if reason:
            raise _mismatch(node.name, name, reason)
    return expected


def _mismatch(source: str, target: str, reason: str) -> SchemaMismatch:
    message = f"{source} does not match {target}: {reason}"
    return SchemaMismatch.create(message, source=source, target=target, reason=reason)
