"""Frames: a recording as the bytes that timely's `EventWriter` writes.

    length   u64 little-endian   the remaining bytes of this frame
    tag      u32 little-endian   0 = progress, 1 = messages
    progress: u64 count, then per update the time and an i64
    messages: the time, then u64 count, then the records                                   0.31
    messages: u64 count, then the times of the stamp, then u64 count, then the records     0.32

Frames follow one another with nothing before, between or after them. There is no header, no
version and no end mark. So the types and the release of timely must be given, and wrong ones are
noticed only when the bytes do not fit them, which they sometimes do. A last frame that is cut short
is a torn tail: everything before it counts. Anything else that is not a frame is damage, and
nothing after it can be trusted.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Final, Self

from capstan.core.protocol import Event, Item, Messages, Progress, Release
from capstan.core.times import Time
from capstan.interop.timely.types.codec import (
    MisfitError,
    ShortError,
    end_of,
    read_count,
    write_count,
)
from capstan.interop.timely.types.decoder import MAX_FRAME, Damage, Decoder, Torn
from capstan.interop.timely.types.event_types import EventTypes, records_of

_LENGTH: Final = struct.Struct("<Q")
PREFIX: Final = _LENGTH.size
"""Bytes before a frame that give its length."""

_TAG: Final = struct.Struct("<I")
_DIFF: Final = struct.Struct("<q")
_PROGRESS, _MESSAGES = 0, 1
_LEAST_PROGRESS: Final = _TAG.size + _LENGTH.size
# Records without bytes: a count alone could otherwise demand any amount of memory.
_MOST_EMPTY: Final = 2**20
_STAMPED: Final = Release.V032
_DIFFS: Final = (-(2**63), 2**63 - 1)


class _TagError(MisfitError):
    """Raised inside this module for a frame with an unknown tag."""


def encode_event(types: EventTypes, event: Event, release: Release = Release.V031) -> bytes:
    """The frame of an event, including its length; `MisfitError` if it does not fit the types.

    Messages that do not have one time raise `CAP-STAMP` in the form of timely 0.31.
    """
    body = bytearray(_LENGTH.size)
    if isinstance(event, Progress):
        body += _TAG.pack(_PROGRESS)
        write_count(len(event.updates), body)
        for time, diff in event.updates:
            types.time.encode(time, body)
            if type(diff) is not int or not _DIFFS[0] <= diff <= _DIFFS[1]:
                message = f"not a 64-bit diff: {diff!r}"
                raise MisfitError(message)
            body += _DIFF.pack(diff)
    else:
        data = records_of(event)
        if types.record.least == 0:
            _require_count(len(data))
        body += _TAG.pack(_MESSAGES)
        if release is _STAMPED:
            types.time.encode_stamp(event.stamp, body)
        else:
            stamp = event.stamp
            types.time.encode(stamp[0] if len(stamp) == 1 else event.time, body)
        write_count(len(data), body)
        types.record.encode_many(data, body)
    _LENGTH.pack_into(body, 0, len(body) - _LENGTH.size)
    return bytes(body)


class FrameDecoder(Decoder):
    """Decoder of frames; it holds at most one frame and one chunk of input."""

    __slots__ = ("_at", "_buffer", "_release", "_types")

    def __init__(
        self, types: EventTypes, longest: int = MAX_FRAME, release: Release = Release.V031
    ) -> None:
        super().__init__(longest)
        self._types = types
        self._release = release
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def _next(self) -> Item | None:
        available = len(self._buffer) - self._at
        if available < _LENGTH.size:
            return self._wait(available, None)
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if not _LEAST_PROGRESS <= length <= self._longest:
            return self._not_a_frame(
                "CAP-FRAME-LENGTH",
                f"its length is {length} bytes; {_LEAST_PROGRESS} to {self._longest} are allowed",
            )
        if available < _LENGTH.size + length:
            return self._wait(available, length)
        start = self._at + _LENGTH.size
        event = self._decoded(bytes(memoryview(self._buffer)[start : start + length]), length)
        if not isinstance(event, Damage):
            self._at = start + length
            self._advance(_LENGTH.size + length)
        return event

    def _wait(self, available: int, length: int | None) -> Damage | None:
        if not self._ended:
            return None
        body = bytes(self._buffer[self._at + _LENGTH.size :])
        if length is not None:
            # The bytes present must be the beginning of a frame; otherwise it is damage.
            damage = self._decoded(body, length)
            if isinstance(damage, Damage):
                return damage
        self.over = True
        if available:
            place, missing = "in its length", _LENGTH.size - available
            if length is not None:
                place, missing = f"in a frame of {length} bytes", length - len(body)
            about = f"torn at byte {self.offset + available}, {place}: {missing} bytes are missing"
            self.torn = Torn(self.offset, available, missing if length is not None else None, about)
        return None

    def _decoded(self, body: bytes, length: int) -> Event | Damage | None:
        """The event of a frame, complete or cut short; None if it may be the start of one."""
        torn = len(body) < length
        try:
            return _event(self._types, body, length, self._release)
        except ShortError as error:
            if torn:
                return None
            reason = f"its contents do not fit into its {length} bytes: {error}"
            return self._misfit(reason, body, length)
        except _TagError as error:
            return self._not_a_frame("CAP-FRAME-TAG", str(error))
        except MisfitError as error:
            return self._misfit(str(error), body, length)

    def _misfit(self, reason: str, body: bytes, length: int) -> Damage:
        """The damage of a frame that does not fit, which names the other form if that one does."""
        other = self._release.other
        try:
            _event(self._types, body, length, other)
        except MisfitError:
            return self._not_a_frame("CAP-FRAME-TYPES", reason)
        words = f"{reason} (read as timely {self._release}; it fits timely {other})"
        return self._not_a_frame("CAP-FRAME-TYPES", words)

    def _not_a_frame(self, code: str, reason: str) -> Damage:
        return self._damaged(code, f"the frame at byte {self.offset}: {reason}")


def _event(types: EventTypes, body: bytes, length: int, release: Release) -> Event:
    """The event of a frame of `length` bytes, given the bytes present."""
    at = end_of(body, 0, _TAG.size)
    (tag,) = _TAG.unpack_from(body, 0)
    if tag == _PROGRESS:
        return Progress(_updates(types, body, at, length))
    if tag != _MESSAGES:
        message = f"its tag is {tag}; 0 or 1 expected"
        raise _TagError(message)
    if release is _STAMPED:
        stamp, at = types.time.decode_stamp(body, at, length - at - _LENGTH.size)
    else:
        time, at = types.time.decode(body, at)
        stamp = (time,)
    count, at = read_count(body, at)
    if types.record.least == 0:
        _require_count(count)
    elif count * types.record.least > length - at:
        message = f"{count} records of {types.record.name} do not fit into its {length} bytes"
        raise MisfitError(message)
    data, at = types.record.decode_many(body, at, count)
    if at != length:
        message = f"{length - at} bytes are left over after its {count} records"
        raise MisfitError(message)
    return Messages(stamp, count, data)


def _updates(types: EventTypes, body: bytes, at: int, length: int) -> tuple[tuple[Time, int], ...]:
    count, at = read_count(body, at)
    size = count * (types.time.least + _DIFF.size)
    if size != length - at:
        message = f"{count} updates of times of {types.time.name} do not fill its {length} bytes"
        raise MisfitError(message)
    end_of(body, at, size)
    if types.time.updates is not None:
        unpacked = types.time.updates.iter_unpack(body[at:])
        return tuple((Time(values[:-1]), values[-1]) for values in unpacked)
    updates: list[tuple[Time, int]] = []
    for _ in range(count):
        time, at = types.time.decode(body, at)
        updates.append((time, _DIFF.unpack_from(body, at)[0]))
        at += _DIFF.size
    return tuple(updates)


def _require_count(count: int) -> None:
    if count > _MOST_EMPTY:
        message = f"{count} records without bytes; at most {_MOST_EMPTY} are allowed"
        raise MisfitError(message)


class Closing(ABC):
    """An object with an idempotent `close`; as a context manager it closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Release its resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
