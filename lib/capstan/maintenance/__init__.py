"""Maintenance of a lake: compaction, clean-up, and retirement of old records."""

from __future__ import annotations
