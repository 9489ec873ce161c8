"""Pipelines on Spark: what a streaming job was, replayed from a tape, stage by stage."""

from __future__ import annotations

from capstan.pipeline.definition import Pipeline, SideTable, Sink
from capstan.pipeline.reach import Reach, reach_of
from capstan.pipeline.registry import Pipelines, pipeline, pipelines

__all__ = [
    "Pipeline",
    "Pipelines",
    "Reach",
    "SideTable",
    "Sink",
    "pipeline",
    "pipelines",
    "reach_of",
]
