"""Planner that cuts a graph into stages where the key changes.

Every stage runs on many workers, in an executor of its own. Within a stage, rows stay on their
worker. A stateful operator needs rows with equal keys together, so its stage receives them
partitioned by its key: between stages lies a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.graph import Dag, Edge, Node, NodeId, NodeRef
from capstan.pipeline.graph.operator import Key
from capstan.pipeline.graph.validation import DeclaredNode


@dataclass(frozen=True, slots=True)
class StageInput:
    """An input of a stage.

    Attributes:
        producer: Node of an earlier stage that emits the rows.
        columns: Columns that partition the rows: empty when all rows go to one worker, None when
            rows stay on their worker.
        source: Name of the source that represents it in the stage's sub-graph.
        readers: Nodes that read it, each with the port.
    """

    producer: str
    columns: tuple[str, ...] | None
    source: str
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a graph that runs without a shuffle.

    Attributes:
        number: From 0; a stage reads only stages with lower numbers.
        key: Key that partitions its rows; None when they stay on their worker.
        nodes: Names of its nodes, in order of execution.
        inputs: Inputs from other stages.
        outputs: Those of its nodes that other stages read.
        sinks: Those of its nodes whose outputs are results of the graph.
        dag: Sub-graph of its nodes, with a source for each of `inputs`. Sinks named in `exits`
            collect the rows of `outputs`.
        exits: For each of `outputs`, the sink in `dag` that collects it.
    """

    number: int
    key: Key | None
    nodes: tuple[str, ...]
    inputs: tuple[StageInput, ...]
    outputs: tuple[str, ...]
    sinks: tuple[str, ...]
    dag: Dag
    exits: Mapping[str, str]

    def partitioning(self) -> Mapping[str, Key]:
        """Return, for each stateful node, the columns that partition its rows among workers.

        These are its key columns, or some of them when fewer already bring the rows together.
        """
        partitioning = {entry.source: entry.columns for entry in self.inputs}
        keys: dict[str, Key] = {}
        for number in self.dag.execution_order:
            node, inputs = self.dag.nodes[number], self.dag.inputs(number)
            if not inputs:
                continue
            arriving = {partitioning.get(self.dag.nodes[edge.source].name) for edge in inputs}
            columns = next(iter(arriving)) if len(arriving) == 1 else None
            if node.key is not None:
                keys[node.name] = Key((columns,)) if columns and len(inputs) == 1 else node.key
                columns = keys[node.name].on(0)
            partitioning[node.name] = _preserved(self.dag, node, columns)
        return keys


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages of a graph, or of what chosen sinks depend on, in topological order."""

    dag: Dag
    stages: tuple[Stage, ...]

    def stage_of(self, node: NodeRef) -> Stage:
        """Return the stage of a node."""
        name = self.dag.node(node).name
        return next(stage for stage in self.stages if name in stage.nodes)


def plan_stages(dag: Dag, sinks: Iterable[NodeRef] | None = None) -> StagePlan:
    """Cut a graph into stages.

    Each source begins a stage, with the nodes after it up to the first stateful operator. A
    stateful operator joins the stage of its input when the rows it needs together already are: they
    are partitioned by its key columns or by some of them, with unchanged values. Otherwise it
    begins a stage, or joins a stage of the same depth and key. So two operators with one key, and a
    join of their results by that key, cost one shuffle.

    Args:
        sinks: Restrict the graph to what these depend on; by default all sinks.
    """
    dag = dag if sinks is None else dag.restricted_to(sinks)
    placement = _Placement(dag)
    for number in dag.execution_order:
        placement.place(dag.nodes[number])
    groups: dict[_Place, list[Node]] = {}
    for number in dag.execution_order:
        groups.setdefault(placement.places[number], []).append(dag.nodes[number])
    ranked = sorted(groups.items(), key=lambda group: group[0].depth)
    stages = [_stage(dag, n, nodes, place.key) for n, (place, nodes) in enumerate(ranked)]
    return StagePlan(dag, tuple(stages))


@dataclass(frozen=True, slots=True)
class _Place:
    """Identity of a stage during planning: shuffles before it, and without a key its first node."""

    depth: int
    key: Key | None
    origin: NodeId | None


@dataclass(slots=True)
class _Placement:
    """The stage of each node, and the partitioning of its output."""

    dag: Dag
    places: dict[NodeId, _Place] = field(default_factory=dict)
    # Columns that partition a node's rows: empty when one worker has all, None when unknown.
    by: dict[NodeId, tuple[str, ...] | None] = field(default_factory=dict)

    def place(self, node: Node) -> None:
        """Place a node whose inputs have been placed."""
        inputs = self.dag.inputs(node.id)
        if not inputs:
            self.places[node.id] = _Place(0, None, node.id)
            self.by[node.id] = None
            return
        sources = {self.places[edge.source] for edge in inputs}
        below = 1 + max(place.depth for place in sources)
        columns: tuple[str, ...] | None = None
        if node.key is not None and not self._is_partitioned(node.key, inputs):
            place, columns = _Place(below, node.key, None), node.key.on(0)
        elif len(sources) == 1:
            (place,) = sources
            arriving = {self.by[edge.source] for edge in inputs}
            columns = arriving.pop() if len(arriving) == 1 else None
        else:
            place = _Place(below, None, node.id)
        self.places[node.id] = place
        self.by[node.id] = _preserved(self.dag, node, columns)

    def _is_partitioned(self, key: Key, inputs: tuple[Edge, ...]) -> bool:
        """Whether rows with equal keys arrive on the same worker."""
        arriving = [self.by[edge.source] for edge in inputs]
        if any(columns is None for columns in arriving):
            return False
        if len({self.places[edge.source] for edge in inputs}) > 1:
            return False
        if key.is_global:
            return all(columns == () for columns in arriving)
        if len(inputs) == 1:
            # Rows that are all on one worker would do too, but would stay there for no reason.
            (columns,) = arriving
            return bool(columns) and set(columns or ()) <= set(key.on(0))
        return all(columns == key.on(port) for port, columns in enumerate(arriving))


def _preserved(dag: Dag, node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the columns that partition a node's output when `columns` partition its input."""
    if columns is None or node.operator is None:
        return columns
    schemas = [dag.nodes[edge.source].schema for edge in dag.inputs(node.id)]
    return columns if set(columns) <= node.operator.preserves(schemas) else None


def _stage(dag: Dag, number: int, nodes: list[Node], key: Key | None) -> Stage:
    members = {node.id for node in nodes}
    names = tuple(node.name for node in nodes)
    inputs = _inputs(dag, nodes, key)
    outputs = tuple(
        node.name for node in nodes if any(e.target not in members for e in dag.outputs(node.id))
    )
    sinks = tuple(node.name for node in nodes if not dag.outputs(node.id))
    taken = {*names, *(entry.source for entry in inputs)}
    exits = {name: _unused_name(f"{name}.out", taken) for name in outputs}
    sub_dag = _sub_dag(dag, nodes, inputs, exits)
    return Stage(number, key, names, inputs, outputs, sinks, sub_dag, exits)


def _inputs(dag: Dag, nodes: list[Node], key: Key | None) -> tuple[StageInput, ...]:
    members = {node.id for node in nodes}
    readers_of: dict[tuple[NodeId, tuple[str, ...] | None], list[tuple[str, int]]] = {}
    for node in nodes:
        for edge in dag.inputs(node.id):
            if edge.source not in members:
                columns = None if key is None else (node.key or key).on(edge.target_port)
                reader = (node.name, edge.target_port)
                readers_of.setdefault((edge.source, columns), []).append(reader)
    taken = {node.name for node in nodes}
    stage_inputs = []
    for (source, columns), readers in readers_of.items():
        producer = dag.nodes[source].name
        name = _unused_name(producer, taken)
        taken.add(name)
        stage_inputs.append(StageInput(producer, columns, name, tuple(readers)))
    return tuple(stage_inputs)


def _unused_name(name: str, taken: set[str]) -> str:
    candidates = (name, *(f"{name}.{number}" for number in range(2, len(taken) + 2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _sub_dag(
    dag: Dag, nodes: list[Node], inputs: tuple[StageInput, ...], exits: Mapping[str, str]
) -> Dag:
    builder = DagBuilder()
    for entry in inputs:
        builder.source(entry.source, dag.node(entry.producer).schema)
    for node in nodes:
        builder.declare(DeclaredNode(node.name, node.kind, node.operator, node.schema, node.key))
    source_of = {(reader, port): i.source for i in inputs for reader, port in i.readers}
    for node in nodes:
        for edge in dag.inputs(node.id):
            upstream = source_of.get((node.name, edge.target_port), dag.nodes[edge.source].name)
            builder.connect(upstream, node.name)
    for producer, name in exits.items():
        builder.sink_for(producer, name)
    return builder.build()
