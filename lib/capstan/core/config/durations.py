"""Times as text: durations, instants, rates, hours: `1 hour`, `2013-03-01`, `22:00-06:00`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

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
_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MEASURES = {name.lower(): name for name in _BYTES}
_RATE = re.compile(r"([1-9]\d{0,14}) (rows?|kb|mb|gb|tb) per (second|minute|hour|day)")
_HOURS = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)(?: (\S{1,64}))?")
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


@dataclass(frozen=True, slots=True)
class Rate:
    """The most rows that runs may read in a time, or the most bytes that they may write.

    Attributes:
        count: How many of them.
        of: `rows`, or `kB`, `MB`, `GB` or `TB` for bytes.
        unit: The time.
    """

    count: int
    of: str
    unit: str

    @classmethod
    def parse(cls, value: object) -> object:
        """The rate that a text states, such as `1000000 rows per hour`."""
        if not isinstance(value, str):
            return value
        found = _RATE.fullmatch(" ".join(value.lower().split()))
        if found is None:
            raise ValueError(
                f"{value!r} is not a rate; give rows, kB, MB, GB or TB per second, minute, hour or "
                "day, such as '1000000 rows per hour' or '20 GB per hour'"
            )
        return cls(int(found[1]), _MEASURES.get(found[2], "rows"), found[3])

    @property
    def in_bytes(self) -> bool:
        """Whether it is of the bytes that runs write."""
        return self.of in _BYTES

    def seconds(self, done: int) -> float:
        """How many seconds that many rows or bytes have to last."""
        return _UNITS[self.unit].total_seconds() * done / (self.count * _BYTES.get(self.of, 1))

    def __str__(self) -> str:
        return f"{self.count} {self.of} per {self.unit}"


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a day in which runs may begin, from the first to before the last."""

    begin: time
    end: time
    zone: str = "UTC"

    @classmethod
    def parse(cls, value: object) -> object:
        """The hours that a text states, such as `22:00-06:00 Europe/Oslo`."""
        if not isinstance(value, str):
            return value
        found = _HOURS.fullmatch(" ".join(value.split()))
        rule = "give them as '22:00-06:00', or '22:00-06:00 Europe/Oslo' (UTC by default)"
        if found is None:
            raise ValueError(f"{value!r} are no hours of a day; {rule}")
        try:
            begin, end = (time.fromisoformat(part) for part in (found[1], found[2]))
        except ValueError as error:
            raise ValueError(f"{value!r} are no hours of a day: {error}; {rule}") from None
        if begin == end:
            raise ValueError(f"{value!r} begin and end at the same time; {rule}")
        zone = found[3] or "UTC"
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, LookupError):
            raise ValueError(f"{zone!r} is no time zone; {rule}") from None
        return cls(begin, end, zone)

    def next(self, moment: datetime) -> datetime:
        """The first moment from this one on at which a run may begin."""
        here = moment.astimezone(ZoneInfo(self.zone))
        at = here.time()
        within = self.begin <= at < self.end
        if self.end < self.begin:
            within = not self.end <= at < self.begin
        if within:
            return moment
        day = here.date() if at < self.begin else here.date() + _UNITS["day"]
        begins = datetime.combine(day, self.begin, here.tzinfo).astimezone(UTC)
        # A time that clocks leave out is that of the clock before.
        return max(begins, moment)

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M} {self.zone}"
