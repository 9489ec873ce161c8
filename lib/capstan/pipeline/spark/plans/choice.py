"""The choice of who computes a node: Spark, up to the first operator that only the engine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.stage_planner import StagePlan, plan_stages
from capstan.pipeline.graph.validation import DeclaredNode
from capstan.pipeline.operators import (
    Deduplicate,
    Filter,
    IntervalJoin,
    Project,
    SessionWindow,
    TopN,
    Window,
    WindowJoin,
)
from capstan.pipeline.spark.plans.first_row_plans import DeduplicatePlan, TopNPlan
from capstan.pipeline.spark.plans.join_plans import IntervalJoinPlan, WindowJoinPlan
from capstan.pipeline.spark.plans.operator_plan import OperatorPlan
from capstan.pipeline.spark.plans.stateless_plans import FilterPlan, ProjectPlan
from capstan.pipeline.spark.plans.window_plans import SessionPlan, WindowPlan

_PLANS: Mapping[type, type[OperatorPlan[Any]]] = {
    Deduplicate: DeduplicatePlan,
    Filter: FilterPlan,
    IntervalJoin: IntervalJoinPlan,
    Project: ProjectPlan,
    SessionWindow: SessionPlan,
    TopN: TopNPlan,
    Window: WindowPlan,
    WindowJoin: WindowJoinPlan,
}

_NOT_ONE = "it is code, or an operator that only the engine has"


@dataclass(frozen=True, slots=True)
class Choice:
    """Who computes the nodes of a graph.

    Attributes:
        plans: The nodes that Spark computes, in order; None for those that forward their inputs.
        reasons: The nodes that the engine computes, each with the reason.
    """

    plans: Mapping[str, OperatorPlan[Any] | None]
    reasons: Mapping[str, str]


def choose(dag: Dag, last: int | None) -> Choice:
    """Let Spark compute all nodes up to the first ones that only the engine has.

    Args:
        dag: The graph.
        last: The watermark after the last row; None to let the engine compute all operators.
    """
    plans: dict[str, OperatorPlan[Any] | None] = {}
    reasons: dict[str, str] = {}
    for number in dag.execution_order:
        node = dag.nodes[number]
        upstream = [dag.nodes[edge.source] for edge in dag.inputs(number)]
        behind = [each.name for each in upstream if each.name not in plans]
        plan = _plan(node, upstream, last)
        if behind:
            reasons[node.name] = f"it reads {behind[0]}"
        elif isinstance(plan, str):
            reasons[node.name] = plan
        else:
            plans[node.name] = plan
    return Choice(plans, reasons)


def span_of(dag: Dag, choice: Choice) -> int | None:
    """How far before the time of an output the records can lie on which it depends.

    None without a limit, or when one cannot be known of an operator that only the engine has.
    """
    spans: dict[int, int] = {}
    for number in dag.execution_order:
        node = dag.nodes[number]
        plan = choice.plans.get(node.name)
        own = plan.span if plan is not None else 0 if node.key is None else None
        if own is None:
            return None
        spans[number] = own + max((spans[edge.source] for edge in dag.inputs(number)), default=0)
    return max(spans.values())


def rest_of(plan: StagePlan, choice: Choice) -> StagePlan:
    """The stages of the engine, in which what it reads of Spark's nodes is a source."""
    dag, builder = plan.dag, DagBuilder()
    own = [node for node in dag.nodes if node.name in choice.reasons]
    read = {edge.source for node in own for edge in dag.inputs(node.id)}
    if len(own) == len(dag.nodes) - len(dag.sources):
        return plan
    if not own:
        return StagePlan(dag, ())
    for node in dag.nodes:
        if node in own:
            declared = DeclaredNode(node.name, node.kind, node.operator, node.schema, node.key)
            builder.declare(declared)
        elif node.id in read:
            builder.source(node.name, node.schema)
    for node in own:
        for edge in dag.inputs(node.id):
            builder.connect(dag.nodes[edge.source].name, node.name)
    return plan_stages(builder.build())


def _plan(node: Node, upstream: Sequence[Node], last: int | None) -> OperatorPlan[Any] | str | None:
    """The plan of a node whose inputs Spark computes; None if it forwards them; else a reason."""
    if last is None and upstream:
        return "the engine computes all operators of this run"
    if node.operator is None:
        return None
    kind = _PLANS.get(type(node.operator))
    if kind is None:
        return _NOT_ONE
    assert last is not None
    plan = kind(
        node.name, node.operator, tuple(each.schema for each in upstream), node.schema, last
    )
    return plan.problem or plan
