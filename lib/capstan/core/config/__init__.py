"""Declarations of streams, transforms, targets and replays, and the rules for their names."""

from __future__ import annotations

from capstan.core.config.durations import format_duration, parse_duration
from capstan.core.config.loading.loader import ProjectConfig, load_config, load_sound
from capstan.core.config.models import (
    MAX_WORKERS,
    ByColumn,
    ByKey,
    ByPartition,
    Creation,
    EpochTime,
    EventTime,
    LatePolicy,
    Mode,
    Partitions,
    Stream,
    Target,
)
from capstan.core.config.names import check_attempt, check_name, check_target, join_names
from capstan.core.config.replays import BackfillPolicy, Order, Replay
from capstan.core.config.sources import Source
from capstan.core.config.stream_names import joined_streams, parse_streams, source_of, split_streams
from capstan.core.config.transforms import Transform

__all__ = [
    "MAX_WORKERS",
    "BackfillPolicy",
    "ByColumn",
    "ByKey",
    "ByPartition",
    "Creation",
    "EpochTime",
    "EventTime",
    "LatePolicy",
    "Mode",
    "Order",
    "Partitions",
    "ProjectConfig",
    "Replay",
    "Source",
    "Stream",
    "Target",
    "Transform",
    "check_attempt",
    "check_name",
    "check_target",
    "format_duration",
    "join_names",
    "joined_streams",
    "load_config",
    "load_sound",
    "parse_duration",
    "parse_streams",
    "source_of",
    "split_streams",
]
