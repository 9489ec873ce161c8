"""How long a table keeps files that are no longer in it, and how far back its log goes."""

from __future__ import annotations

from datetime import timedelta

from capstan.core.config import parse_duration
from capstan.storage import arrow_writer, delta

FILES = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"

# Where a table does not say: Delta's own.
_DEFAULTS = {FILES: timedelta(days=7), LOG: timedelta(days=30)}
_DAY = timedelta(days=1)


def retention_of(path: str, what: str) -> timedelta:
    """How long a table keeps something, `FILES` or `LOG`; zero where that cannot be told."""
    text = delta.open_table(path).metadata().configuration.get(what)
    if text is None:
        return _DEFAULTS[what]
    try:
        return parse_duration(text.removeprefix("interval").strip())
    except ValueError:
        return timedelta(0)


def reach_back(path: str, length: timedelta) -> None:
    """Let a table's log go back for this length at the least, from now on; never for less."""
    if not timedelta(0) < retention_of(path, LOG) < length:
        return
    # Delta cleans logs up by whole days.
    days = -(-length // _DAY)
    arrow_writer.set_properties(path, {LOG: f"interval {days} days"})
