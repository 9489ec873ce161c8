"""Streams, transforms, targets and replays as they are declared, and the rules for their names."""

from __future__ import annotations

from capstan.declare.checks import Check, Range
from capstan.declare.computation import Transform, TransformFunction
from capstan.declare.loading import Declarations, default_path, load, load_sound
from capstan.declare.models import (
    MOST_WORKERS,
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    LatePolicy,
    Mode,
    Replay,
    Source,
    Stream,
    Target,
    Watermark,
)
from capstan.declare.names import READ_OTHERWISE, check_column, check_name, check_target, is_name
from capstan.declare.registry import Registry, transform, transforms
from capstan.declare.values import format_duration, parse_duration, parse_instant

__all__ = [
    "MOST_WORKERS",
    "READ_OTHERWISE",
    "ByColumn",
    "ByKey",
    "ByPartition",
    "Check",
    "Declarations",
    "EpochTime",
    "EventTime",
    "LatePolicy",
    "Mode",
    "Range",
    "Registry",
    "Replay",
    "Source",
    "Stream",
    "Target",
    "Transform",
    "TransformFunction",
    "Watermark",
    "check_column",
    "check_name",
    "check_target",
    "default_path",
    "format_duration",
    "is_name",
    "load",
    "load_sound",
    "parse_duration",
    "parse_instant",
    "transform",
    "transforms",
]
