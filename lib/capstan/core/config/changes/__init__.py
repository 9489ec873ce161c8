"""Presets of change streams: what a source of changes sends, as columns and a rule of replays."""

from __future__ import annotations

from dataclasses import replace

from capstan.core.config.changes.debezium import debezium_preset
from capstan.core.config.changes.model import Changes
from capstan.core.config.changes.presets import Preset, delta_feed_preset, kafka_topic_preset

__all__ = ["Changes", "Preset", "preset_of"]

_PRESETS = {"debezium": debezium_preset, "delta": delta_feed_preset, "kafka": kafka_topic_preset}


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
