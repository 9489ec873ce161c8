"""Cuts a graph where the key changes, into stages that each run on many workers.

Within a stage rows stay with the worker that they came to. So rows that a stateful operator needs
together have to come to the stage by its key: between stages lies a shuffle. A stage's sub-graph
runs in an executor of its own, on every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.graph import Dag, Edge, Node, NodeId, NodeKind, NodeRef
from capstan.pipeline.graph.operator import Key


@dataclass(frozen=True, slots=True)
class StageInput:
    """What a stage reads.

    Attributes:
        producer: The node of an earlier stage that puts it out.
        columns: Its columns by which rows come to their worker: none means that all come to one;
            None that they stay where they are.
        source: The name of the source that stands for it in the stage's sub-graph.
        readers: The nodes that read it, each with the port.
    """

    producer: str
    columns: tuple[str, ...] | None
    source: str
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a graph that runs without a shuffle.

    Attributes:
        number: From 0; a stage reads only stages with a lower number.
        key: What its rows come by; None where they stay as they came.
        nodes: The names of its nodes, in order of execution.
        inputs: What it reads of other stages.
        outputs: Those of its nodes that other stages read.
        sinks: Those of its nodes whose outputs are results of the whole.
        dag: Its nodes, with a source for each of `inputs`. What `outputs` put out is collected at
            sinks with the names in `exits`.
        exits: For each of `outputs` the name of the sink in `dag` that collects it.
    """

    number: int
    key: Key | None
    nodes: tuple[str, ...]
    inputs: tuple[StageInput, ...]
    outputs: tuple[str, ...]
    sinks: tuple[str, ...]
    dag: Dag
    exits: Mapping[str, str]

    def lying(self) -> Mapping[str, Key]:
        """By stateful node the columns by which its rows lie on the stage's workers.

        These are the columns of its key, or some of them where rows are together by fewer already.
        """
        by = {entry.source: entry.columns for entry in self.inputs}
        found: dict[str, Key] = {}
        for number in self.dag.execution_order:
            node, inputs = self.dag.nodes[number], self.dag.inputs(number)
            if not inputs:
                continue
            coming = {by.get(self.dag.nodes[edge.source].name) for edge in inputs}
            columns = next(iter(coming)) if len(coming) == 1 else None
            if node.key is not None:
                found[node.name] = Key((columns,)) if columns and len(inputs) == 1 else node.key
                columns = found[node.name].on(0)
            by[node.name] = _kept(self.dag, node, columns)
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a graph.

    Attributes:
        dag: The graph, or the part of it that the chosen sinks depend on.
        stages: In an order in which each comes after all that it reads.
    """

    dag: Dag
    stages: tuple[Stage, ...]

    def stage_of(self, node: NodeRef) -> Stage:
        """The stage that a node is in.

        Raises:
            NodeNotFound: There is no such node.
        """
        name = self.dag.node(node).name
        return next(stage for stage in self.stages if name in stage.nodes)


def plan_stages(dag: Dag, sinks: Iterable[NodeRef] | None = None) -> Plan:
    """The stages of a graph.

    Each source is a stage of its own with what follows it, up to the first operator with state. A
    stateful operator stays in the stage of its input where rows that it needs together are
    together already: by the same key columns, or by some of them, that have kept their values.
    Otherwise it begins a stage, or joins another one at the same depth with the same key. So two
    operators over one key, and a join of their results by it, cost one shuffle.

    Args:
        dag: The graph.
        sinks: Only what these depend on; all when not given.

    Raises:
        NodeNotFound: There is no such name or id.
    """
    dag = dag if sinks is None else dag.restricted_to(sinks)
    placed = _Placement(dag)
    for number in dag.execution_order:
        placed.place(dag.nodes[number])
    groups: dict[_Place, list[NodeId]] = {}
    for number in dag.execution_order:
        groups.setdefault(placed.places[number], []).append(number)
    ranked = sorted(groups.values(), key=lambda group: placed.places[group[0]].depth)
    stages = [_stage(dag, n, group, placed) for n, group in enumerate(ranked)]
    return Plan(dag, tuple(stages))


@dataclass(frozen=True, slots=True)
class _Place:
    """What nodes of one stage have in common.

    Attributes:
        depth: How many shuffles lie before it at most.
        key: What rows come by.
        origin: Tells stages apart that have no key: the first node in them.
    """

    depth: int
    key: Key | None
    origin: NodeId | None


@dataclass(slots=True)
class _Placement:
    """Where each node is, and by which columns its output lies.

    Attributes:
        dag: The graph.
        places: The place of each node.
        by: For each node the columns such that rows with equal values are on one worker: none of
            them when all rows are, None when nothing is known.
    """

    dag: Dag
    places: dict[NodeId, _Place] = field(default_factory=dict)
    by: dict[NodeId, tuple[str, ...] | None] = field(default_factory=dict)

    def place(self, node: Node) -> None:
        """Place a node whose inputs are placed."""
        inputs = self.dag.inputs(node.id)
        if not inputs:
            self.places[node.id] = _Place(0, None, node.id)
            self.by[node.id] = None
            return
        depths = {self.places[edge.source] for edge in inputs}
        below = 1 + max(place.depth for place in depths)
        if node.key is not None and not self._together(node.key, inputs):
            self.places[node.id] = _Place(below, node.key, None)
            self.by[node.id] = self._out(node, node.key.on(0))
            return
        if len(depths) == 1:
            (self.places[node.id],) = depths
        else:
            self.places[node.id] = _Place(below, None, node.id)
        found = {self.by[edge.source] for edge in inputs}
        same = len(depths) == 1 and len(found) == 1
        self.by[node.id] = self._out(node, next(iter(found))) if same else None

    def _together(self, key: Key, inputs: tuple[Edge, ...]) -> bool:
        """Whether rows that are equal in the key are on one worker as they come."""
        lying = [self.by[edge.source] for edge in inputs]
        if any(columns is None for columns in lying):
            return False
        if len({self.places[edge.source] for edge in inputs}) > 1:
            return False
        if key.is_global:
            return all(columns == () for columns in lying)
        if len(inputs) == 1:
            # All rows on one worker would be together too, but would stay there for no reason.
            (columns,) = lying
            return bool(columns) and set(columns or ()) <= set(key.on(0))
        return all(columns == key.on(port) for port, columns in enumerate(lying))

    def _out(self, node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _kept(self.dag, node, columns)


def _kept(dag: Dag, node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The columns by which what a node puts out lies, when its rows lie by `columns`."""
    if columns is None or node.operator is None:
        return columns
    schemas = [dag.nodes[edge.source].schema for edge in dag.inputs(node.id)]
    return columns if set(columns) <= node.operator.preserves(schemas) else None


def _stage(dag: Dag, number: int, group: list[NodeId], placed: _Placement) -> Stage:
    here = set(group)
    place = placed.places[group[0]]
    inputs = _inputs(dag, group, place.key)
    outputs = tuple(
        dag.nodes[n].name for n in group if any(e.target not in here for e in dag.outputs(n))
    )
    sinks = tuple(dag.nodes[n].name for n in group if not dag.outputs(n))
    taken = {dag.nodes[n].name for n in group} | {entry.source for entry in inputs}
    exits = {name: _free(f"{name}.out", taken) for name in outputs}
    names = tuple(dag.nodes[n].name for n in group)
    sub = _sub_dag(dag, group, inputs, exits)
    return Stage(number, place.key, names, inputs, outputs, sinks, sub, exits)


def _inputs(dag: Dag, group: list[NodeId], key: Key | None) -> tuple[StageInput, ...]:
    here = set(group)
    found: dict[tuple[NodeId, tuple[str, ...] | None], list[tuple[str, int]]] = {}
    for number in group:
        for edge in dag.inputs(number):
            if edge.source not in here:
                columns = None if key is None else key_of(dag.nodes[number], key, edge.target_port)
                reader = (dag.nodes[number].name, edge.target_port)
                found.setdefault((edge.source, columns), []).append(reader)
    taken = {dag.nodes[number].name for number in group}
    made = []
    for (source, columns), readers in found.items():
        producer = dag.nodes[source].name
        name = _free(producer, taken)
        taken.add(name)
        made.append(StageInput(producer, columns, name, tuple(readers)))
    return tuple(made)


def key_of(node: Node, key: Key, port: int) -> tuple[str, ...]:
    """The columns by which rows come to a node that begins a stage with this key."""
    return (node.key or key).on(port)


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    return found


def _sub_dag(
    dag: Dag, group: list[NodeId], inputs: tuple[StageInput, ...], exits: Mapping[str, str]
) -> Dag:
    builder = DagBuilder()
    for entry in inputs:
        builder.source(entry.source, _declared(dag.node(entry.producer).schema))
    for number in group:
        _again(builder, dag.nodes[number])
    feeding = {(reader, port): i.source for i in inputs for reader, port in i.readers}
    for number in group:
        name = dag.nodes[number].name
        for edge in dag.inputs(number):
            upstream = feeding.get((name, edge.target_port), dag.nodes[edge.source].name)
            builder.connect(upstream, name)
    for producer, name in exits.items():
        builder.sink_for(producer, name)
    return builder.build()


def _again(builder: DagBuilder, node: Node) -> None:
    schema = _declared(node.schema)
    if node.kind is NodeKind.SOURCE:
        builder.source(node.name, schema)
    elif node.kind is NodeKind.SINK:
        builder.sink(node.name, schema)
    elif node.kind is NodeKind.OPERATOR:
        builder.operator(node.name, node.operator, schema=schema, key=node.key)
    elif node.kind is NodeKind.STATELESS:
        builder.stateless_operator(node.name, node.operator, schema=schema)
    else:
        builder.materialized_view(node.name, node.operator, schema=schema, key=node.key)


def _declared(schema: pa.Schema) -> pa.Schema | None:
    return schema if schema.names else None
