"""Texts of moments: which texts are one, and which moment each of them is.

One rule for all that people and sources write: bounds on the command line, in forms, in Python and
in declarations, text columns of sources, sequences of changes. Spark reads texts of this pattern as
`moment` does.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

BLANKS: Final = " \t\n\x0b\f\r"
"""What may stand around a moment."""

PATTERN: Final = (
    r"\s*(\d{4})-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,12}))?)?)?"
    r"( ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}|[+-]\d{1,2}(?::\d{2})?"
    r"|[A-Z][A-Za-z_]*(?:/[A-Za-z0-9_+-]+)+))?)?)?\s*"
)
"""A moment as a regular expression of Python (in ASCII) and of Java, for the whole text.

Groups: year, month, day, hour, minute, second, its fraction, zone.
"""

_MOMENT: Final = re.compile(PATTERN, re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX_OFFSET: Final = timedelta(hours=18)


class OffsetError(ValueError):
    """An offset that is out of range."""

    def __init__(self, offset: str) -> None:
        super().__init__(
            f"the offset {offset} is out of range: hours are at most 18, minutes at most 59"
        )
        self.offset = offset


def moment(text: str) -> int:
    """The moment of a text, in microseconds since 1970-01-01 UTC; further digits are cut off."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        message = "expected ISO 8601"
        raise ValueError(message)
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (
        int(number or least) for number, least in zip(numbers, (1, 1, 1, 0, 0, 0), strict=True)
    )
    micro = int((fraction or "0")[:6].ljust(6, "0"))
    offset = _zone((zone or "Z").strip(BLANKS))
    local = datetime(year, month, day, hour, minute, second, micro, tzinfo=offset)
    microseconds = (local - _EPOCH) // _MICROSECOND
    if not _FIRST <= microseconds <= _LAST:
        message = "outside the years 1 to 9999 in UTC"
        raise ValueError(message)
    return microseconds


def day(text: str) -> int:
    """The day that a text is, without a time of day, in days since 1970-01-01."""
    match = _MOMENT.fullmatch(text)
    if match is None or match[4] is not None:
        message = "expected YYYY-MM-DD"
        raise ValueError(message)
    return moment(text) // 86_400_000_000


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT"):
        return UTC
    if name[0] not in "+-":
        try:
            return ZoneInfo(name)
        except (KeyError, OSError, ValueError) as error:  # Nothing, or a folder of zones.
            message = f"there is no zone {name}"
            raise ValueError(message) from error
    hours, colon, minutes = name[1:].partition(":")
    if not colon and len(hours) > 2:
        hours, minutes = hours[:2], hours[2:]
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if offset > _MAX_OFFSET or int(minutes or 0) > 59:
        raise OffsetError(name)
    return timezone(-offset if name[0] == "-" else offset)
