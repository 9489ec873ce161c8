"""Durations and instants as text: `1 hour`, `2013-03-01`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from capstan.core.times.moment_text import OffsetError, moment

_UNITS = {
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_PART = r"(\d{1,15}) (microsecond|millisecond|second|minute|hour|day|week)s?"
_DURATION = re.compile(rf"{_PART}(?: {_PART})*")

DURATION_RULE = "give a number and a unit, such as '1 hour', '15 minutes' or '1 day 12 hours'"
INSTANT_RULE = "give ISO 8601, such as 2013-03-01 or 2013-03-01T05:00:00Z (UTC by default)"


def parse_duration(text: str) -> timedelta:
    """Parse a duration, zero or more, such as `1 hour`.

    Units are microseconds to weeks; a day has 24 hours. Months and years have no fixed length.
    """
    words = " ".join(text.lower().split())
    if not _DURATION.fullmatch(words):
        raise ValueError(f"{text!r} is not a duration; {DURATION_RULE}")
    try:
        parts = (int(count) * _UNITS[unit] for count, unit in re.findall(_PART, words))
        return sum(parts, timedelta())
    except OverflowError:
        raise ValueError(f"{text!r} is too long; at most 999999999 days") from None


def format_duration(length: timedelta) -> str:
    """Format a duration so that `parse_duration` reads it: `1 day 12 hours`, `0 seconds`."""
    rest, words = length, []
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            words.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(words) or "0 seconds"


def parse_instant(text: str) -> datetime:
    """Parse an instant into UTC, with microseconds; text without a zone is UTC."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment(text))
    except (ValueError, OverflowError) as error:
        offset = error.offset if isinstance(error, OffsetError) else None
        why = "" if offset is None else f": its offset {offset} is out of range"
        raise ValueError(f"{text!r} is not a date or time{why}; {INSTANT_RULE}") from None
