"""Side outputs and node metrics of a pipeline's run, written to their tables in the lake."""

from __future__ import annotations

from capstan.instrumentation import emit
from capstan.pipeline import NodeKind
from capstan.pipeline.spark.stage_frames import PipelineRun
from capstan.replay.execution.job import Job
from capstan.replay.planning.computation import PipelineComputation
from capstan.storage.ledger.side_outputs import write_metrics, write_side_outputs


def record_side_outputs(job: Job, computation: PipelineComputation, played: PipelineRun) -> None:
    """Write the side outputs of a run, if it has any, and the counters of its nodes.

    Both name run and attempt. After a kill, the next attempt writes the rows again under its own
    number, and the certificate names the attempt that has published.
    """
    pipeline, sink = computation.pipeline, computation.sink.node
    nodes = pipeline.plan([sink]).dag.nodes
    # The changes of a view are not counted, so they are written even when no other row is.
    if played.put_aside or any(node.kind is NodeKind.VIEW for node in nodes):
        about = {"stream": job.plan.tape.name, "target": job.plan.target, "sink": sink}
        write_side_outputs(
            job.spark, job.lake, pipeline.name, job.run, job.attempt, played.aside, about
        )
        emit("replay.aside", run=job.run.name, rows=sum(played.put_aside.values()))
    metrics = [node.to_json() for node in played.nodes]
    write_metrics(job.lake, job.run, job.attempt, pipeline.name, metrics)
    emit("replay.metrics", run=job.run.name, nodes=len(metrics))
