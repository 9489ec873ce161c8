"""The types of a recording's times and records, and its minimum time."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from capstan.core.protocol import Messages, Progress, transcript_minimum
from capstan.core.protocol.events import Event, in_order, unsorted
from capstan.core.times import PRODUCT, Time, TimeOrder
from capstan.errors import InvalidRequestError
from capstan.interop.timely.types.codec import (
    CoordinateCodec,
    MisfitError,
    TypeCodec,
    TypeShape,
    end_of,
    misfit,
    read_count,
    write_count,
)
from capstan.interop.timely.types.composites import is_product
from capstan.interop.timely.types.type_names import codec_of

_DIFF: Final = "q"
_COUNT: Final = 8


@dataclass(frozen=True)
class TimeCodec:
    """Byte layout of the times of a recording.

    A time is an integer or a duration, or a `Product` or a tuple of times. Its coordinates follow
    one another, the outermost first. A `bare` time is a plain value in JSON rather than a list.
    Times are in `order`: a tuple is ordered as timely orders a pair.
    """

    name: str
    coordinates: tuple[CoordinateCodec, ...]
    bare: bool
    order: TimeOrder = PRODUCT

    @classmethod
    def of(cls, text: str) -> TimeCodec:
        """The codec of a type of times; `CAP-TYPE` for any other or unknown name."""
        codec = codec_of(text)
        bare = codec.shape is not TypeShape.TUPLE
        return cls(codec.name, tuple(_coordinates(codec)), bare, _order(codec)[1])

    def __getstate__(self) -> dict[str, object]:
        # Without what is cached: a struct cannot be pickled.
        return {field.name: getattr(self, field.name) for field in fields(self)}

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
        return None if self.layout is None else struct.Struct(f"{self.layout.format}{_DIFF}")

    @cached_property
    def layout(self) -> struct.Struct | None:
        """A time, if module `struct` has a format for it."""
        letters = [coordinate.letter for coordinate in self.coordinates]
        return None if None in letters else struct.Struct(f"<{''.join(map(str, letters))}")

    def start(self, minimum: object = None) -> Time:
        """The minimum time of a recording, as JSON; by default that of this type.

        Raises:
            InvalidRequestError: `CAP-TIME`, `minimum` is not of this type.
        """
        if minimum is None:
            return self.minimum
        start = transcript_minimum(minimum)
        try:
            if self.bare is isinstance(minimum, list):
                raise misfit(minimum, self.name)
            self.check(start)
        except MisfitError as error:
            raise InvalidRequestError(
                "CAP-TIME",
                f"the minimum {json.dumps(minimum)} is not a time of type {self.name}: {error}",
                f"give for example {json.dumps(self.to_json(self.minimum))}",
            ) from error
        return start

    def to_json(self, time: Time) -> int | list[int]:
        """A time as JSON."""
        return time[0] if self.bare else list(time)

    def decode(self, data: bytes, at: int) -> tuple[Time, int]:
        """The time at byte `at`, and the position after it; `MisfitError` without one."""
        if self.layout is not None:
            end = end_of(data, at, self.layout.size)
            return Time(self.layout.unpack_from(data, at)), end
        values: list[int] = []
        for coordinate in self.coordinates:
            value, at = coordinate.decode(data, at)
            assert isinstance(value, int)
            values.append(value)
        return Time(values), at

    def decode_stamp(self, data: bytes, at: int, room: int) -> tuple[tuple[Time, ...], int]:
        """The stamp at byte `at` and the position after it, in at most `room` bytes.

        The number of its elements is bounded by these bytes before any of them is read.
        """
        count, at = read_count(data, at)
        if count == 1:
            # Nearly all stamps: a time that does not fit is told like one of timely 0.31.
            time, at = self.decode(data, at)
            return (time,), at
        if count * self.least > room - _COUNT:
            message = f"{count} times of {self.name} do not fit into {max(room, 0)} bytes"
            raise MisfitError(message)
        end_of(data, at, count * self.least)
        times: list[Time] = []
        for _ in range(count):
            time, at = self.decode(data, at)
            times.append(time)
        stamp = tuple(times)
        if count > 1 and not in_order(stamp):
            raise MisfitError(unsorted(stamp))
        return stamp, at

    def encode_stamp(self, stamp: tuple[Time, ...], out: bytearray) -> None:
        """Append the bytes of a stamp; `MisfitError` if its elements are not in order."""
        if len(stamp) > 1 and not in_order(stamp):
            raise MisfitError(unsorted(stamp))
        write_count(len(stamp), out)
        for time in stamp:
            self.encode(time, out)

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
        return cls(time, record, time.start(minimum))

    @property
    def minimum_json(self) -> int | list[int]:
        """The minimum as JSON; all times are written in the same form."""
        return self.time.to_json(self.minimum)

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
        for time in event.stamp:
            self.time.check(time)
        data = self.record.from_json_many(records_of(event))
        return Messages(event.stamp, event.records, data)

    def to_transcript(self, event: Event) -> Event:
        """The event with its data as JSON values, for a transcript."""
        if isinstance(event, Progress) or self.record.plain:
            return event
        data = tuple(self.record.to_json(value) for value in records_of(event))
        return Messages(event.stamp, event.records, data)


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


def _order(codec: TypeCodec) -> tuple[int, TimeOrder]:
    """The number of coordinates of a type of times, and their order."""
    if isinstance(codec, CoordinateCodec):
        return 1, PRODUCT
    parts = [_order(part) for part in codec.parts]
    order = TimeOrder.of(parts, lexicographic=not is_product(codec))
    return sum(width for width, _ in parts), order
