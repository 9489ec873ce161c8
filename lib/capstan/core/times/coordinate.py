"""One coordinate of a time: its name, kind and text format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final, NoReturn

from capstan.core.times.moment_text import BLANKS, day, moment
from capstan.errors import InvalidRequestError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
# JSON has the exact times of events: its texts are those of `moment_text` that are written out. A
# seventh digit would have to be dropped, which would change the time.
_STORED: Final = {
    "date": re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII),
    "timestamp": re.compile(
        r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
        r"(?:Z|[+-]\d{2}(?::?\d{2})?)?)?",
        re.ASCII,
    ),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.date().toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN: Final = 80


class Kind(StrEnum):
    """The kind of a coordinate: the lower-case name of its column type."""

    BIGINT = "bigint"
    DATE = "date"
    TIMESTAMP = "timestamp"


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


_RANGE: Final = {
    Kind.BIGINT: (-(2**63), 2**63 - 1),
    Kind.DATE: (date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY),
    Kind.TIMESTAMP: (
        _microseconds(datetime.min.replace(tzinfo=UTC)),
        _microseconds(datetime.max.replace(tzinfo=UTC)),
    ),
}
_DEFAULT_MINIMUM: Final = {
    Kind.BIGINT: 0,
    Kind.DATE: _RANGE[Kind.DATE][0],
    Kind.TIMESTAMP: _RANGE[Kind.TIMESTAMP][0],
}
_HINT: Final = {
    Kind.BIGINT: "give an integer of 64 bits, without fraction or quotes",
    Kind.DATE: "give a date such as 2013-03-01, years 1 to 9999",
    Kind.TIMESTAMP: "give ISO 8601 such as 2013-03-01T06:30:00Z, years 1 to 9999",
}


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A named, totally ordered part of a time; its name is a column's."""

    name: str
    kind: Kind
    minimum: int  # where streams start: an integer, or days or microseconds since 1970 UTC

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequestError(
                "CAP-TIME-TYPE",
                f"not a name for a coordinate: {shown(self.name)}",
                "use lower-case letters, digits and underscores, a letter first",
                value=shown(self.name),
            )
        low, high = _RANGE[self.kind]
        if not low <= self.minimum <= high:
            self._refuse(self.minimum, "out of range")

    @classmethod
    def of(cls, name: str, kind: Kind, minimum: int | None = None) -> Coordinate:
        """A coordinate; without `minimum` a `bigint` starts at 0 and the others in year 1."""
        return cls(name, kind, _DEFAULT_MINIMUM[kind] if minimum is None else minimum)

    @property
    def maximum(self) -> int:
        """The last value of its kind."""
        return _RANGE[self.kind][1]

    @classmethod
    def from_json(cls, value: object) -> Coordinate:
        """The coordinate of an object with `name`, `kind` and perhaps `minimum`."""
        entry = value if isinstance(value, Mapping) else {}
        name, kind = entry.get("name"), entry.get("kind")
        if not isinstance(name, str) or kind not in list(Kind):
            raise InvalidRequestError(
                "CAP-TIME-TYPE",
                f"not a coordinate of a time: {shown(value)}",
                f"write a name, and as kind one of: {', '.join(Kind)}",
            )
        made = cls.of(name, Kind(kind))
        minimum = entry.get("minimum")
        return made if minimum is None else cls(name, made.kind, made.parse(minimum))

    def parse(self, value: object) -> int:
        """The integer for a JSON value."""
        if self.kind is Kind.BIGINT:
            # In Python True is an int, but it is not a time.
            if not isinstance(value, int) or isinstance(value, bool):
                self._refuse(value, "not an integer")
            low, high = _RANGE[self.kind]
            if not low <= value <= high:
                self._refuse(value, "beyond 64 bits")
            return value
        if not isinstance(value, str):
            self._refuse(value, f"not a {self.kind}")
        if _STORED[self.kind].fullmatch(value) is None:
            expected = "YYYY-MM-DD" if self.kind is Kind.DATE else "ISO 8601, at most six digits"
            self._refuse(value, f"not a {self.kind} (expected {expected})")
        return self._read(value)

    def parse_text(self, text: str) -> int:
        """The integer for what a person writes: `17`, or a text by the rule of `moment_text`."""
        bare = text.strip(BLANKS)
        if _INTEGER.fullmatch(bare) or self.kind is Kind.BIGINT:
            return self.parse(int(bare) if _INTEGER.fullmatch(bare) else text)
        return self._read(text)

    def parse_written(self, value: object) -> int:
        """The integer for a JSON value that a person writes: texts are by the rule of a moment."""
        if isinstance(value, str) and self.kind is not Kind.BIGINT:
            return self._read(value)
        return self.parse(value)

    def _read(self, text: str) -> int:
        try:
            return day(text) if self.kind is Kind.DATE else moment(text)
        except (ValueError, OverflowError) as error:
            self._refuse(text, f"not a {self.kind} ({error})")

    def render(self, value: int) -> int | str:
        """The JSON value that `parse` reads as `value`."""
        if self.kind is Kind.BIGINT:
            return value
        if self.kind is Kind.DATE:
            return date.fromordinal(value + _EPOCH_DAY).isoformat()
        moment = _EPOCH + value * _MICROSECOND
        return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"

    def _refuse(self, value: object, why: str) -> NoReturn:
        raise InvalidRequestError(
            "CAP-TIME",
            f"not a value of the time coordinate {self.name}: {shown(value)}, {why}",
            _HINT[self.kind],
            coordinate=self.name,
            value=shown(value),
        )


def shown(value: object) -> str:
    """A value for a message: one line of JSON, shortened if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    # Integers with thousands of digits, which Python does not print; endlessly nested lists.
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
