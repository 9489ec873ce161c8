"""From what a pipeline's run has put aside and counted to its tables in the lake."""

from __future__ import annotations

from capstan.instrumentation import emit
from capstan.pipeline import NodeKind
from capstan.pipeline.spark.stage_frames import PipelineRun
from capstan.replay.execution.job import Job
from capstan.replay.planning.computation import PipelineComputation
from capstan.storage.ledger.side_outputs import write_metrics, write_side_outputs


def keep_aside(job: Job, piped: PipelineComputation, played: PipelineRun) -> None:
    """Write the rows that a run has put aside, if there are any, and the counters of its nodes.

    Both name run and attempt: a killed attempt leaves rows that its successor writes again under
    its own number, and the certificate says which of them has published.
    """
    name = piped.pipeline.name
    if played.put_aside or _tells_changes(piped):
        about = {
            "stream": job.plan.tape.name,
            "target": job.plan.target,
            "sink": piped.sink.node,
        }
        write_side_outputs(job.spark, job.lake, name, job.run, job.attempt, played.aside, about)
        emit("replay.aside", run=job.run.name, rows=sum(played.put_aside.values()))
    nodes = [each.to_json() for each in played.nodes]
    write_metrics(job.lake, job.run, job.attempt, name, nodes)
    emit("replay.metrics", run=job.run.name, nodes=len(nodes))


def _tells_changes(piped: PipelineComputation) -> bool:
    """Whether a node of what is played tells its changes, which are not counted."""
    dag = piped.pipeline.plan([piped.sink.node]).dag
    return any(node.kind is NodeKind.VIEW for node in dag.nodes)
