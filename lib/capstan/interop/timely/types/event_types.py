"""The types of a recording's times and records, and its minimum time."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from capstan.core.protocol import Messages, Progress, transcript_minimum
from capstan.core.protocol.events import Event
from capstan.core.times import Time
from capstan.errors import InvalidRequestError
from capstan.interop.timely.types.codec import (
    CoordinateCodec,
    MisfitError,
    TypeCodec,
    TypeShape,
    misfit,
)
from capstan.interop.timely.types.type_names import codec_of

_DIFF: Final = "q"


@dataclass(frozen=True)
class TimeCodec:
    """Byte layout of the times of a recording.

    A time is an integer or a duration, or a `Product` or a tuple of times. Its coordinates follow
    one another, the outermost first. A `bare` time is a plain value in JSON rather than a list.
    """

    name: str
    coordinates: tuple[CoordinateCodec, ...]
    bare: bool

    @classmethod
    def of(cls, text: str) -> TimeCodec:
        """The codec of a type of times; `CAP-TYPE` for any other or unknown name."""
        codec = codec_of(text)
        return cls(codec.name, tuple(_coordinates(codec)), codec.shape is not TypeShape.TUPLE)

    @cached_property
    def minimum(self) -> Time:
        """The least time of this type."""
        return Time(coordinate.minimum for coordinate in self.coordinates)

    @cached_property
    def least(self) -> int:
        """Size of a time in bytes."""
        return sum(coordinate.least for coordinate in self.coordinates)

    @cached_property
    def updates(self) -> struct.Struct | None:
        """A time and its diff, if module `struct` has a format for it."""
        letters = [coordinate.letter for coordinate in self.coordinates]
        return None if None in letters else struct.Struct(f"<{''.join(map(str, letters))}{_DIFF}")

    def decode(self, data: bytes, at: int) -> tuple[Time, int]:
        """The time at byte `at`, and the position after it; `MisfitError` without one."""
        values: list[int] = []
        for coordinate in self.coordinates:
            value, at = coordinate.decode(data, at)
            assert isinstance(value, int)
            values.append(value)
        return Time(values), at

    def encode(self, time: tuple[int, ...], out: bytearray) -> None:
        """Append the bytes of `time`; `MisfitError` if it is not of this type."""
        self.check(time)
        for coordinate, value in zip(self.coordinates, time, strict=True):
            coordinate.encode(value, out)

    def check(self, time: tuple[int, ...]) -> None:
        """Raise `MisfitError` unless `time` is of this type."""
        if len(time) != len(self.coordinates):
            message = f"not a time of {self.name}: it has {len(time)} coordinates"
            raise MisfitError(message)
        for coordinate, value in zip(self.coordinates, time, strict=True):
            if not coordinate.minimum <= value <= coordinate.maximum:
                raise misfit(value, coordinate.name)


@dataclass(frozen=True, slots=True)
class EventTypes:
    """The types of a recording and its minimum: needed to read frames, which do not state them."""

    time: TimeCodec
    record: TypeCodec
    minimum: Time

    @classmethod
    def of(cls, time_type: str, record_type: str, minimum: object = None) -> EventTypes:
        """The types with these names.

        Args:
            time_type: For example `u64` or `Product<u64,u64>`; see `codec_of`.
            record_type: The same for records.
            minimum: Minimum time as JSON; by default that of `time_type`.

        Raises:
            InvalidRequestError: `CAP-TYPE`, a type is unknown, or cannot be that of a time;
                `CAP-TIME`, `minimum` is not of `time_type`.
        """
        time, record = TimeCodec.of(time_type), codec_of(record_type)
        if minimum is None:
            return cls(time, record, time.minimum)
        start = transcript_minimum(minimum)
        try:
            if time.bare is isinstance(minimum, list):
                raise misfit(minimum, time.name)
            time.check(start)
        except MisfitError as error:
            raise InvalidRequestError(
                "CAP-TIME",
                f"the minimum {json.dumps(minimum)} is not a time of type {time.name}: {error}",
                f"give for example {json.dumps(_json(time.minimum, bare=time.bare))}",
            ) from error
        return cls(time, record, start)

    @property
    def minimum_json(self) -> int | list[int]:
        """The minimum as JSON; all times are written in the same form."""
        return _json(self.minimum, bare=self.time.bare)

    def to_json(self) -> dict[str, object]:
        """The types as fields of `case.json`, which `from_json` reads."""
        return {
            "minimum": self.minimum_json,
            "record_type": self.record.name,
            "time_type": self.time.name,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> EventTypes:
        """The types of a JSON object; `CAP-TYPE` or `CAP-TIME` if wrong. `minimum` is optional."""
        names = [value.get(field) for field in ("time_type", "record_type")]
        time_type, record_type = (name if isinstance(name, str) else "" for name in names)
        return cls.of(time_type, record_type, value.get("minimum"))

    def from_transcript(self, event: Event) -> Event:
        """The event with its data as values of the record type; `MisfitError` if one is not."""
        if isinstance(event, Progress):
            for time, _ in event.updates:
                self.time.check(time)
            return event
        self.time.check(event.time)
        data = self.record.from_json_many(records_of(event))
        return Messages(event.time, event.records, data)

    def to_transcript(self, event: Event) -> Event:
        """The event with its data as JSON values, for a transcript."""
        if isinstance(event, Progress) or self.record.plain:
            return event
        data = tuple(self.record.to_json(value) for value in records_of(event))
        return Messages(event.time, event.records, data)


def records_of(messages: Messages) -> tuple[object, ...]:
    """The records of an event."""
    if messages.data is None:
        message = f"an event of {messages.records} records without the records"
        raise MisfitError(message)
    return messages.data


def _coordinates(codec: TypeCodec) -> Iterator[CoordinateCodec]:
    if isinstance(codec, CoordinateCodec):
        yield codec
    elif codec.shape is TypeShape.TUPLE:
        for part in codec.parts:
            yield from _coordinates(part)
    else:
        raise InvalidRequestError(
            "CAP-TYPE",
            f"type {codec.name} cannot be that of a time",
            "A time consists of integers of at most 64 bits, durations, and Products or tuples.",
            type=codec.name,
        )


def _json(time: Time, *, bare: bool) -> int | list[int]:
    return time[0] if bare else list(time)
