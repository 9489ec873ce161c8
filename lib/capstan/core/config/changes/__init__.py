"""Presets of change streams: what a source of changes sends, as columns and a rule of replays."""

from __future__ import annotations

from capstan.core.config.changes.expansion import preset_of
from capstan.core.config.changes.model import Changes
from capstan.core.config.changes.preset import Preset

__all__ = ["Changes", "Preset", "preset_of"]
