"""`explain`: a pipeline's graph and stages, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.output import facts

if TYPE_CHECKING:
    from capstan.pipeline import Dag, Pipeline, Pipelines, StagePlan
    from capstan.pipeline.spark.plans.choice import Choice


def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")],
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print only the diagram, in Mermaid syntax.")
    ] = False,
) -> int:
    """Show a pipeline's graph and its stages, which are separated by shuffles."""
    from capstan import pipeline as dag

    shell = shell_of(context)
    pipeline = known(shell.declarations().pipelines).get(name)
    plan = pipeline.plan()
    diagram = dag.mermaid(plan)
    if mermaid and not shell.output.as_json:
        shell.output.result({}, diagram.rstrip())
        return 0
    shell.output.result(
        {**described(pipeline, plan), "mermaid": diagram},
        facts(
            f"pipeline {name}",
            [
                ("about", pipeline.description),
                ("function", pipeline.function),
                ("code", pipeline.code_hash[:16]),
                ("reads back", "to the first record" if pipeline.unbounded else _back(pipeline)),
                ("reads ahead", str(pipeline.lookahead) if pipeline.lookahead else "nothing"),
                ("tables", [table.source for table in pipeline.tables]),
                ("lookups", [f"{each.name} in {each.table}" for each in pipeline.lookups]),
                ("targets", [f"{s.node} to {s.target}" for s in pipeline.sinks if s.target]),
                ("", ""),
            ],
        ),
        dag.explain(plan.dag).rstrip(),
        *_computers(plan),
    )
    return 0


def _computers(plan: StagePlan) -> list[str]:
    """Who computes the nodes, as text."""
    chosen = _chosen(plan.dag)
    lines = ["", "computed by Spark, except in a followed replay, whose state is the engine's"]
    lines.append(f"  {', '.join(chosen.plans)}")
    if chosen.reasons:
        lines.append("computed by the engine")
    return [*lines, *(f"  {name}: {reason}" for name, reason in chosen.reasons.items())]


def known(references: Mapping[str, str] | None = None) -> Pipelines:
    """The pipelines that can be named, as `module:name`: declared ones and the bundled ones."""
    from capstan.demo import pipelines as flight_pipelines
    from capstan.pipeline import pipelines

    # The import registers them.
    assert flight_pipelines is not None
    return pipelines(references=references)


def described(pipeline: Pipeline, plan: StagePlan) -> dict[str, object]:
    """A pipeline, its graph and its stages as one JSON object; durations as text."""
    graph = plan.dag
    names = [node.name for node in graph.nodes]
    chosen = _chosen(graph)
    return {
        "pipeline": pipeline.name,
        "description": pipeline.description,
        "function": pipeline.function,
        "code": pipeline.code_hash,
        "unbounded": pipeline.unbounded,
        "lookback": str(pipeline.lookback),
        "lookahead": str(pipeline.lookahead),
        "tables": {table.source: table.function for table in pipeline.tables},
        "lookups": [{**each.settings, "version": each.version} for each in pipeline.lookups],
        "sinks": {sink.node: sink.target for sink in pipeline.sinks},
        "nodes": [
            {
                "node": node.name,
                "kind": node.kind.value,
                "key": None if node.key is None else str(node.key),
                "does": None if node.operator is None else node.operator.describe(),
                "columns": {field.name: str(field.type) for field in node.schema},
            }
            for node in (graph.nodes[number] for number in graph.execution_order)
        ],
        "computed_by": {
            **dict.fromkeys(chosen.plans, "spark"),
            **{name: f"engine: {reason}" for name, reason in chosen.reasons.items()},
        },
        "edges": [[names[edge.source], names[edge.target]] for edge in graph.edges],
        "stages": [
            {
                "stage": stage.number,
                "key": None if stage.key is None else str(stage.key),
                "nodes": list(stage.nodes),
                "inputs": [
                    {"from": entry.producer, "by": entry.columns and list(entry.columns)}
                    for entry in stage.inputs
                ],
                "sinks": list(stage.sinks),
            }
            for stage in plan.stages
        ],
    }


def _chosen(dag: Dag) -> Choice:
    from capstan.pipeline import END
    from capstan.pipeline.spark.plans.choice import choose

    return choose(dag, END)


def _back(pipeline: Pipeline) -> str:
    return str(pipeline.lookback) if pipeline.lookback else "nothing"
