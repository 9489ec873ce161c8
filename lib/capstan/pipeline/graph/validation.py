"""What `build` checks, and what it works out: order, schemas, keys."""

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
class Declared:
    """A node as it was declared.

    Attributes:
        name: Its name.
        kind: What it was declared as.
        operator: What it does, or None.
        schema: The columns that it puts out, or None where they follow from its inputs.
        key: What its state is kept by, where its operator does not say so itself.
    """

    name: str
    kind: NodeKind
    operator: OperatorSpec | None = None
    schema: pa.Schema | None = None
    key: Key | None = None


Pairs = Sequence[tuple[str, str]]


def check_edges(nodes: Mapping[str, Declared], pairs: Pairs) -> None:
    """Refuse edges that name unknown nodes, go the wrong way, or come twice; too many readers.

    Raises:
        NodeNotFound, WrongWay, DuplicateEdge, FanOutLimitExceeded: See there.
    """
    for source, target in pairs:
        for name in (source, target):
            if name not in nodes:
                message = f"an edge {source} -> {target} names {name!r}, which nobody declared"
                raise NodeNotFound.create(message, name=name)
        into, out = nodes[target].kind is NodeKind.SOURCE, nodes[source].kind is NodeKind.SINK
        if into or out:
            what = f"into the source {target}" if into else f"out of the sink {source}"
            raise WrongWay.create(f"an edge {what}", source=source, target=target)
    for (source, target), times in Counter(pairs).items():
        if times > 1:
            message = f"{source} and {target} are connected {times} times"
            raise DuplicateEdge.create(message, source=source, target=target)
    for name, count in Counter(source for source, _ in pairs).items():
        if count > MAX_FAN_OUT:
            raise FanOutLimitExceeded.create(
                f"{count} nodes read {name}, at most {MAX_FAN_OUT} may",
                name=name,
                count=count,
                limit=MAX_FAN_OUT,
            )


def ordered(nodes: Sequence[str], pairs: Pairs) -> tuple[int, ...]:
    """The positions of the nodes such that each comes after all that feed it; ties by position.

    Raises:
        CycleDetected: There is no such order.
    """
    position = {name: index for index, name in enumerate(nodes)}
    waits = Counter(target for _, target in pairs)
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in pairs:
        readers[source].append(target)
    ready = [position[name] for name in nodes if not waits[name]]
    heapify(ready)
    order: list[int] = []
    while ready:
        current = heappop(ready)
        order.append(current)
        for reader in readers[nodes[current]]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, position[reader])
    if len(order) < len(nodes):
        stuck = [name for name in nodes if waits[name]]
        message = f"data would go round in a circle at or before: {', '.join(stuck)}"
        raise CycleDetected.create(message, name=stuck[0])
    return tuple(order)


def check_connected(nodes: Mapping[str, Declared], pairs: Pairs) -> None:
    """Refuse sources that nobody reads, sinks that nobody feeds, and nodes without edges.

    Raises:
        DisconnectedNode: Naming the first of them.
    """
    read, fed = {source for source, _ in pairs}, {target for _, target in pairs}
    for name, node in nodes.items():
        if node.kind is NodeKind.SOURCE:
            problem = "nobody reads the source" if name not in read else ""
        elif node.kind is NodeKind.SINK:
            problem = "nobody feeds the sink" if name not in fed else ""
        else:
            problem = "no edge touches" if name not in read | fed else ""
        if problem:
            raise DisconnectedNode.create(f"{problem} {name}", name=name)


def resolved(number: int, declared: Declared, inputs: Sequence[Node]) -> Node:
    """The node with its key and its columns, given the nodes that feed it in order of ports.

    Raises:
        KeyNotDeclared: It has state and no key.
        SchemaMismatch: Its inputs do not fit.
    """
    key = _key(declared)
    schemas = [node.schema for node in inputs]
    if key is not None:
        _check_key(declared.name, key, inputs)
    schema = _schema(declared, inputs, schemas)
    return Node(number, declared.name, declared.kind, schema, declared.operator, key)


def why_unfit(found: pa.Schema, wanted: pa.Schema) -> str:
    """Why rows of one schema do not fit another, or nothing when they do.

    They fit when columns have the same names and types by position; a schema without columns fits
    all.
    """
    if not found.names or not wanted.names:
        return ""
    if len(found) != len(wanted):
        return f"{len(found)} columns ({', '.join(found.names)}) instead of {len(wanted)}"
    for position, (field, other) in enumerate(zip(found, wanted, strict=True)):
        if field.name != other.name or field.type != other.type:
            return (
                f"column {position} is {field.name} {field.type} "
                f"instead of {other.name} {other.type}"
            )
    return ""


def _key(declared: Declared) -> Key | None:
    own = None if declared.operator is None else declared.operator.key
    name = declared.name
    if declared.kind is NodeKind.STATELESS and (own or declared.key) is not None:
        message = f"{name} is declared without state, and its operator keeps some by {own}"
        raise KeyNotDeclared.create(message, name=name)
    if own is not None and declared.key is not None and own != declared.key:
        message = f"{name} is declared with the key {declared.key}, its operator's is {own}"
        raise KeyNotDeclared.create(message, name=name)
    key = declared.key if own is None else own
    if key is None and declared.kind is NodeKind.OPERATOR:
        message = f"the stateful operator {name} declares no key"
        raise KeyNotDeclared.create(message, name=name)
    return key


def _check_key(name: str, key: Key, inputs: Sequence[Node]) -> None:
    if len(key.columns) not in (1, len(inputs)):
        message = f"{name} has {len(inputs)} inputs, its key columns are for {len(key.columns)}"
        raise SchemaMismatch.create(message, source=name, target=name, reason=message)
    types: list[list[pa.DataType]] = []
    for port, node in enumerate(inputs):
        if not node.schema.names:
            continue
        for column in key.on(port):
            reason = _why_no_key(node.schema, column)
            if reason:
                raise _mismatch(node.name, name, reason)
        types.append([node.schema.field(column).type for column in key.on(port)])
        if types[-1] != types[0]:
            reason = f"the key is of types {types[-1]} on port {port}, {types[0]} on the first"
            raise _mismatch(node.name, name, reason)


def _why_no_key(schema: pa.Schema, column: str) -> str:
    if schema.names.count(column) != 1:
        return f"no key column {column} among {', '.join(schema.names)}"
    kind = schema.field(column).type
    # Two floats can be equal without having the same bits, and hashes go by bits.
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return f"the key column {column} is of type {kind}, which cannot be hashed exactly"
    return ""


def _schema(declared: Declared, inputs: Sequence[Node], schemas: Sequence[pa.Schema]) -> pa.Schema:
    name = declared.name
    if declared.operator is not None:
        try:
            computed = declared.operator.output_schema(schemas)
        except ValueError as error:
            feeding = ", ".join(node.name for node in inputs)
            raise _mismatch(feeding, name, str(error)) from error
        reason = why_unfit(computed, declared.schema or ANY_COLUMNS)
        if reason:
            raise _mismatch(name, name, f"its operator puts out {reason}")
        return computed
    # A node without an operator passes rows on as they are, so all it knows has to fit together.
    known = [declared.schema, *schemas]
    wanted = next((s for s in known if s is not None and s.names), ANY_COLUMNS)
    for node in inputs:
        reason = why_unfit(node.schema, wanted)
        if reason:
            raise _mismatch(node.name, name, reason)
    return wanted


def _mismatch(source: str, target: str, reason: str) -> SchemaMismatch:
    message = f"{source} does not fit {target}: {reason}"
    return SchemaMismatch.create(message, source=source, target=target, reason=reason)
