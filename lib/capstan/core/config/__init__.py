"""Declarations of streams, transforms, targets and replays, and the rules for their names."""

from __future__ import annotations

from capstan.core.config.creation import Creation
from capstan.core.config.durations import format_duration, parse_duration, parse_instant
from capstan.core.config.loading.loader import (
    ProjectConfig,
    default_path,
    load_config,
    load_optional,
    load_sound,
)
from capstan.core.config.loading.registry import Registry, transform, transforms
from capstan.core.config.models import (
    MAX_WORKERS,
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    LatePolicy,
    Mode,
    Stream,
    Target,
    TimeUnit,
    Watermark,
)
from capstan.core.config.names import (
    READ_OTHERWISE,
    check_attempt,
    check_column,
    check_name,
    check_table,
    check_target,
    is_name,
    join_names,
    split_names,
)
from capstan.core.config.replays import Replay
from capstan.core.config.row_checks import Check, Range
from capstan.core.config.sources import Source
from capstan.core.config.stream_names import (
    STREAMS_PATTERN,
    check_streams,
    joined_streams,
    keyed_streams,
    parse_pairs,
    parse_streams,
    problem_with_workers,
    source_of,
    split_streams,
)
from capstan.core.config.transforms import Transform

__all__ = [
    "MAX_WORKERS",
    "READ_OTHERWISE",
    "STREAMS_PATTERN",
    "ByColumn",
    "ByKey",
    "ByPartition",
    "Check",
    "Creation",
    "EpochTime",
    "EventTime",
    "LatePolicy",
    "Mode",
    "ProjectConfig",
    "Range",
    "Registry",
    "Replay",
    "Source",
    "Stream",
    "Target",
    "TimeUnit",
    "Transform",
    "Watermark",
    "check_attempt",
    "check_column",
    "check_name",
    "check_streams",
    "check_table",
    "check_target",
    "default_path",
    "format_duration",
    "is_name",
    "join_names",
    "joined_streams",
    "keyed_streams",
    "load_config",
    "load_optional",
    "load_sound",
    "parse_duration",
    "parse_instant",
    "parse_pairs",
    "parse_streams",
    "problem_with_workers",
    "source_of",
    "split_names",
    "split_streams",
    "transform",
    "transforms",
]
