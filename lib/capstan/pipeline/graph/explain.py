"""Graphs and their stages as text and as Mermaid flowcharts."""

from __future__ import annotations

from capstan.pipeline.graph.graph import Dag, Node, NodeKind
from capstan.pipeline.graph.stage_planner import Stage, StagePlan, plan_stages

_SHAPES = {
    NodeKind.SOURCE: ("([", "])"),
    NodeKind.SINK: ("[[", "]]"),
    NodeKind.VIEW: ("[(", ")]"),
    NodeKind.OPERATOR: ("[", "]"),
    NodeKind.STATELESS: ("(", ")"),
}


def explain(dag: Dag) -> str:
    """Describe the graph as deterministic text: counts, order, nodes, edges, stages."""
    names = [node.name for node in dag.nodes]
    lines = [
        f"{len(dag.nodes)} nodes, {len(dag.edges)} edges",
        f"sources: {', '.join(names[n] for n in dag.sources)}",
        f"sinks: {', '.join(names[n] for n in dag.sinks)}",
        f"order: {' '.join(names[n] for n in dag.execution_order)}",
        "",
        "nodes",
        *(f"  {_node_line(dag.nodes[number])}" for number in dag.execution_order),
        "",
        "edges",
        *(f"  {names[e.source]} -> {names[e.target]} ({e.channel})" for e in dag.edges),
    ]
    if dag.shared_stages:
        lines += ["", "shared"]
        lines += [
            f"  {names[shared]} is read by {', '.join(names[reader] for reader in readers)}"
            for shared, readers in dag.shared_stages.items()
        ]
    lines += ["", "stages"]
    for stage in plan_stages(dag).stages:
        lines += _stage_lines(stage)
    return "\n".join(lines) + "\n"


def mermaid(plan: StagePlan) -> str:
    """Render the graph as a Mermaid flowchart: a box per stage, a thick edge per shuffle."""
    lines = ["flowchart LR"]
    ids = {node.name: f"n{node.id}" for node in plan.dag.nodes}
    for stage in plan.stages:
        lines.append(f'  subgraph s{stage.number}["stage {stage.number}: {_partitioning(stage)}"]')
        for name in stage.nodes:
            node = plan.dag.node(name)
            left, right = _SHAPES[node.kind]
            lines.append(f'    {ids[name]}{left}"{_quoted(_label(node))}"{right}')
        lines.append("  end")
    stage_numbers = {name: stage.number for stage in plan.stages for name in stage.nodes}
    for edge in plan.dag.edges:
        source, target = plan.dag.nodes[edge.source].name, plan.dag.nodes[edge.target].name
        arrow = "-->" if stage_numbers[source] == stage_numbers[target] else "==>"
        lines.append(f"  {ids[source]} {arrow} {ids[target]}")
    return "\n".join(lines) + "\n"


def _node_line(node: Node) -> str:
    operator = "" if node.operator is None else f": {node.operator.describe()}"
    key = "" if node.key is None else f", by {node.key}"
    return f"{node.name} ({node.kind}{key}){operator}"


def _label(node: Node) -> str:
    return node.name if node.operator is None else f"{node.name}<br/>{node.operator.describe()}"


def _stage_lines(stage: Stage) -> list[str]:
    lines = [f"  {stage.number}: {_partitioning(stage)}: {', '.join(stage.nodes)}"]
    for entry in stage.inputs:
        columns = (
            "as they lie" if entry.columns is None else ", ".join(entry.columns) or "to one worker"
        )
        lines.append(f"     reads {entry.producer} ({columns})")
    return lines


def _partitioning(stage: Stage) -> str:
    return "rows as they come" if stage.key is None else f"by {stage.key}"


def _quoted(text: str) -> str:
    # A quote ends a label in Mermaid, and these characters have meanings of their own.
    escaped = text.replace("<br/>", "\n").replace("&", "&amp;").replace('"', "&quot;")
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br/>")
