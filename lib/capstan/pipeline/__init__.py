"""Pipelines: graphs of operators, like those of a streaming job, that replay a tape.

This package exports everything that a pipeline is built with, except the operators: see
`capstan.pipeline.operators`.
"""

from __future__ import annotations

from capstan.pipeline.definition import Pipeline, SideTable, Sink
from capstan.pipeline.engine.barriers import Aligned, BarrierAligner, CheckpointBarrier
from capstan.pipeline.engine.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.engine.metrics import DagExecutorMetrics, OperatorNodeMetrics
from capstan.pipeline.engine.watermarks import WatermarkTracker
from capstan.pipeline.graph.builder import DagBuilder
from capstan.pipeline.graph.changelog import Change, Changelog
from capstan.pipeline.graph.events import END, TIME, WEIGHT, Event, OutputKey, OutputKind, Timer
from capstan.pipeline.graph.explain import explain, mermaid
from capstan.pipeline.graph.graph import (
    MAX_FAN_OUT,
    ChannelKind,
    Dag,
    Edge,
    Node,
    NodeId,
    NodeKind,
    NodeRef,
)
from capstan.pipeline.graph.operator import (
    GLOBAL,
    Key,
    Operator,
    OperatorContext,
    OperatorSpec,
    OperatorState,
    Stateless,
    check_version,
)
from capstan.pipeline.graph.stage_planner import Stage, StageInput, StagePlan, plan_stages
from capstan.pipeline.input_range import Reach, reach_of
from capstan.pipeline.keyed.keyed_aggregate import KeyedAggregate
from capstan.pipeline.keyed.keyed_logic import KeyedLogic
from capstan.pipeline.keyed.stateful_functions import LogicOutput as LogicOutput
from capstan.pipeline.keyed.stateful_functions import StatefulLogic, stateful_map, ttl_map
from capstan.pipeline.lookup import Lookup
from capstan.pipeline.registry import Pipelines, pipeline, pipelines

__all__ = [
    "END",
    "GLOBAL",
    "MAX_FAN_OUT",
    "TIME",
    "WEIGHT",
    "Aligned",
    "BarrierAligner",
    "Change",
    "Changelog",
    "ChannelKind",
    "CheckpointBarrier",
    "Dag",
    "DagBuilder",
    "DagCheckpoint",
    "DagExecutor",
    "DagExecutorMetrics",
    "Edge",
    "Event",
    "Key",
    "KeyedAggregate",
    "KeyedLogic",
    "LogicOutput",
    "Lookup",
    "Node",
    "NodeCheckpoint",
    "NodeId",
    "NodeKind",
    "NodeRef",
    "Operator",
    "OperatorContext",
    "OperatorNodeMetrics",
    "OperatorSpec",
    "OperatorState",
    "OutputKey",
    "OutputKind",
    "Pipeline",
    "Pipelines",
    "Reach",
    "SideTable",
    "Sink",
    "Stage",
    "StageInput",
    "StagePlan",
    "StatefulLogic",
    "Stateless",
    "Timer",
    "WatermarkTracker",
    "check_version",
    "explain",
    "mermaid",
    "pipeline",
    "pipelines",
    "plan_stages",
    "reach_of",
    "stateful_map",
    "ttl_map",
]
