"""Retention periods of a table: deleted files and log entries."""

from __future__ import annotations

from datetime import timedelta

from capstan.core.config import parse_duration
from capstan.storage.delta import arrow_writer, delta

FILES = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"

# Delta's defaults.
_DEFAULTS = {FILES: timedelta(days=7), LOG: timedelta(days=30)}
_DAY = timedelta(days=1)


def retention_of(path: str, name: str) -> timedelta:
    """A table's retention period, `FILES` or `LOG`; zero if it cannot be parsed."""
    text = delta.open_table(path).metadata().configuration.get(name)
    if text is None:
        return _DEFAULTS[name]
    try:
        return parse_duration(text.removeprefix("interval").strip())
    except ValueError:
        return timedelta(0)


def extend_log_retention(path: str, length: timedelta) -> None:
    """Extend a table's log retention to at least this period; never shorten it."""
    if not timedelta(0) < retention_of(path, LOG) < length:
        return
    # Delta cleans up logs in whole days.
    days = -(-length // _DAY)
    arrow_writer.set_properties(path, {LOG: f"interval {days} days"})
