"""Pipelines: graphs of operators, run event by event in order of time. No Spark, no Airflow."""

from __future__ import annotations

from capstan.dag.barriers import Aligned, BarrierAligner, CheckpointBarrier
from capstan.dag.builder import DagBuilder, FanOut
from capstan.dag.changelog import Change, Changelog
from capstan.dag.channels import MulticastBuffer
from capstan.dag.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.dag.coordinator import CheckpointCoordinator, CheckpointResult
from capstan.dag.event import END, TIME, WEIGHT, Event, OutputKey, OutputKind, Timer
from capstan.dag.executor import DagExecutor
from capstan.dag.explain import explain, mermaid
from capstan.dag.graph import MAX_FAN_OUT, ChannelKind, Dag, Edge, Node, NodeId, NodeKind, NodeRef
from capstan.dag.metrics import DagExecutorMetrics, OperatorNodeMetrics
from capstan.dag.operator import (
    GLOBAL,
    Context,
    Key,
    Operator,
    OperatorSpec,
    OperatorState,
    Stateless,
    check_version,
)
from capstan.dag.recording import Recorded, SinkRecorder, watermark_of
from capstan.dag.replaying import IntoExecutors, SinkCapture
from capstan.dag.stages import Plan, Stage, StageInput, plan_stages
from capstan.dag.views import View, from_views
from capstan.dag.watermarks import WatermarkTracker

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
    "CheckpointCoordinator",
    "CheckpointResult",
    "Context",
    "Dag",
    "DagBuilder",
    "DagCheckpoint",
    "DagExecutor",
    "DagExecutorMetrics",
    "Edge",
    "Event",
    "FanOut",
    "IntoExecutors",
    "Key",
    "MulticastBuffer",
    "Node",
    "NodeCheckpoint",
    "NodeId",
    "NodeKind",
    "NodeRef",
    "Operator",
    "OperatorNodeMetrics",
    "OperatorSpec",
    "OperatorState",
    "OutputKey",
    "OutputKind",
    "Plan",
    "Recorded",
    "SinkCapture",
    "SinkRecorder",
    "Stage",
    "StageInput",
    "Stateless",
    "Timer",
    "View",
    "WatermarkTracker",
    "check_version",
    "explain",
    "from_views",
    "mermaid",
    "plan_stages",
    "watermark_of",
]
