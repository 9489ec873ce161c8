"""Upkeep of a lake: compaction, clean-up, and the deletion of records that have had their time."""

from __future__ import annotations
