"""Expansion of a preset into the declarations that it stands for."""

from __future__ import annotations

from dataclasses import replace

from capstan.core.config.changes import debezium, delta_feed, kafka_topic
from capstan.core.config.changes.model import Changes
from capstan.core.config.changes.preset import Preset

_PRESETS = {
    "debezium": debezium.preset,
    "delta": delta_feed.preset,
    "kafka": kafka_topic.preset,
}


def preset_of(changes: Changes, *, kafka: bool) -> Preset:
    """The declarations that a preset stands for; the columns of a `kafka` topic are known."""
    if kafka and changes.format != "delta":
        changes = replace(
            changes,
            key=changes.key or "key",
            offset=changes.offset or "offset",
            timestamp=changes.timestamp or "timestamp",
        )
    return _PRESETS[changes.format](changes)
