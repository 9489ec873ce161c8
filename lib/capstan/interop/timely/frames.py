"""Frames: a recording as the bytes that timely's `EventWriter` writes.

    length   u64 little-endian   the bytes that follow in this frame
    tag      u32 little-endian   0 = progress, 1 = messages
    progress: u64 count, then per update the time and an i64
    messages: the time, then u64 count, then the records

Frames follow one another with nothing before, between or after them. There is no header, no
version and no end mark, so the types must be told, and a wrong one is noticed only where the
bytes do not fit it. A last frame that is cut short is a torn tail: what is whole counts. Anything
else that is no frame is damage, and nothing after it can be trusted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from capstan.core.protocol import Event, Fault, Item, Messages, Progress, Rule
from capstan.core.times import Time
from capstan.interop.timely.codec import MisfitError, ShortError, read_count, taken, write_count
from capstan.interop.timely.event_types import EventTypes, records_of

MAX_FRAME: Final = 64 * 2**20
"""The longest frame that is read, in bytes: timely's own are a thousandth of it."""

_LENGTH: Final = struct.Struct("<Q")
PREFIX: Final = _LENGTH.size
"""The bytes before a frame that say how long it is."""

_TAG: Final = struct.Struct("<I")
_DIFF: Final = struct.Struct("<q")
_PROGRESS, _MESSAGES = 0, 1
_LEAST_PROGRESS: Final = _TAG.size + _LENGTH.size
# Records that take no bytes: a count alone could ask for any amount of memory.
_MOST_EMPTY: Final = 2**20
_DIFFS: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Torn:
    """The unfinished last frame of a recording.

    Attributes:
        offset: Where it starts, in bytes.
        bytes: How many bytes of it are there.
        missing: How many more were due; None where not even that is known.
        about: The same in words.
    """

    offset: int
    bytes: int
    missing: int | None
    about: str

    def to_json(self) -> dict[str, object]:
        """The tail as reports write it."""
        return {
            "offset": self.offset,
            "bytes": self.bytes,
            "missing": self.missing,
            "about": self.about,
        }


@dataclass(frozen=True, slots=True)
class Damage(Fault):
    """A place in a recording from which on it cannot be read.

    Attributes:
        code: The code of the error that it is.
        offset: Where it is, in bytes.
    """

    code: str
    offset: int


class _TagError(MisfitError):
    """Raised inside this module when a frame is of no kind."""


def encode_event(types: EventTypes, event: Event) -> bytes:
    """The frame of an event, its length in front.

    Raises:
        MisfitError: A time, a diff or a record is not of its type, or the data lie elsewhere.
    """
    body = bytearray(_LENGTH.size)
    if isinstance(event, Progress):
        body += _TAG.pack(_PROGRESS)
        write_count(len(event.updates), body)
        for time, diff in event.updates:
            types.time.encode(time, body)
            if type(diff) is not int or not _DIFFS[0] <= diff <= _DIFFS[1]:
                message = f"not a diff of 64 bits: {diff!r}"
                raise MisfitError(message)
            body += _DIFF.pack(diff)
    else:
        data = records_of(event)
        if types.record.least == 0:
            _look_at_count(len(data))
        body += _TAG.pack(_MESSAGES)
        types.time.encode(event.time, body)
        write_count(len(data), body)
        types.record.encode_many(data, body)
    _LENGTH.pack_into(body, 0, len(body) - _LENGTH.size)
    return bytes(body)


class FrameDecoder:
    """Takes bytes as they come, and gives events as they are whole; does no reading itself.

    At most a frame and one piece of input are held.

    Attributes:
        offset: Where the next frame starts, in bytes.
        seq: How many events were given.
        torn: The unfinished last frame, once the end was told and `next` has come to it.
        over: Whether nothing more will be given: the end was reached, or damage.
    """

    __slots__ = ("_at", "_buffer", "_ended", "_most", "_types", "offset", "over", "seq", "torn")

    def __init__(self, types: EventTypes, max_frame: int = MAX_FRAME) -> None:
        self._types = types
        self._most = max_frame
        self._buffer = bytearray()
        self._at = 0
        self._ended = False
        self.offset = 0
        self.seq = 0
        self.torn: Torn | None = None
        self.over = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def finish(self) -> None:
        """Takes note that no more bytes will come."""
        self._ended = True

    def next(self) -> Item | None:
        """The next event, or the damage in its place; None when more bytes are needed, or over."""
        if self.over:
            return None
        there = len(self._buffer) - self._at
        if there < _LENGTH.size:
            return self._wait(there, None)
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if not _LEAST_PROGRESS <= length <= self._most:
            return self._damaged(
                "CAP-FRAME-LENGTH",
                f"a frame cannot be {length} bytes long, but {_LEAST_PROGRESS} to {self._most}",
            )
        if there < _LENGTH.size + length:
            return self._wait(there, length)
        start = self._at + _LENGTH.size
        event = self._decoded(bytes(memoryview(self._buffer)[start : start + length]), length)
        if not isinstance(event, Damage):
            self._at = start + length
            self.offset += _LENGTH.size + length
            self.seq += 1
        return event

    def _wait(self, there: int, length: int | None) -> Damage | None:
        if not self._ended:
            return None
        body = bytes(self._buffer[self._at + _LENGTH.size :])
        if length is not None:
            # What is there of it must be the beginning of a frame, or it is no torn one.
            found = self._decoded(body, length)
            if isinstance(found, Damage):
                return found
        self.over = True
        if there:
            place, missing = "in its length", _LENGTH.size - there
            if length is not None:
                place, missing = f"in a frame of {length} bytes", length - len(body)
            about = f"torn at byte {self.offset + there}, {place}: {missing} bytes are missing"
            due = None if length is None else missing
            self.torn = Torn(self.offset, there, due, about)
        return None

    def _decoded(self, body: bytes, length: int) -> Event | Damage | None:
        """The event of a frame, or of what is there of it: None when that may be its beginning."""
        torn = len(body) < length
        try:
            return _event(self._types, body, length)
        except ShortError as error:
            if torn:
                return None
            reason = f"its contents do not fit into its {length} bytes: {error}"
            return self._damaged("CAP-FRAME-TYPES", reason)
        except _TagError as error:
            return self._damaged("CAP-FRAME-TAG", str(error))
        except MisfitError as error:
            return self._damaged("CAP-FRAME-TYPES", str(error))

    def _damaged(self, code: str, reason: str) -> Damage:
        self.over = True
        detail = f"the frame at byte {self.offset}: {reason}"
        return Damage(Rule.SHAPE, detail, code, self.offset)


def _event(types: EventTypes, body: bytes, length: int) -> Event:
    """The event of a frame of `length` bytes, of which `body` are there."""
    at = taken(body, 0, _TAG.size)
    (tag,) = _TAG.unpack_from(body, 0)
    if tag == _PROGRESS:
        return Progress(_updates(types, body, at, length))
    if tag != _MESSAGES:
        message = f"its tag is {tag}, where 0 or 1 is due"
        raise _TagError(message)
    time, at = types.time.decode(body, at)
    count, at = read_count(body, at)
    if types.record.least == 0:
        _look_at_count(count)
    elif count * types.record.least > length - at:
        message = f"{count} records of {types.record.name} do not fit into its {length} bytes"
        raise MisfitError(message)
    data, at = types.record.decode_many(body, at, count)
    if at != length:
        message = f"{length - at} bytes are left over after its {count} records"
        raise MisfitError(message)
    return Messages(time, count, data)


def _updates(types: EventTypes, body: bytes, at: int, length: int) -> tuple[tuple[Time, int], ...]:
    count, at = read_count(body, at)
    size = count * (types.time.least + _DIFF.size)
    if size != length - at:
        message = f"{count} updates of times of {types.time.name} do not make up its {length} bytes"
        raise MisfitError(message)
    taken(body, at, size)
    if types.time.updates is not None:
        unpacked = types.time.updates.iter_unpack(body[at:])
        return tuple((Time(values[:-1]), values[-1]) for values in unpacked)
    updates: list[tuple[Time, int]] = []
    for _ in range(count):
        time, at = types.time.decode(body, at)
        updates.append((time, _DIFF.unpack_from(body, at)[0]))
        at += _DIFF.size
    return tuple(updates)


def _look_at_count(count: int) -> None:
    if count > _MOST_EMPTY:
        message = f"{count} records that take no bytes, where at most {_MOST_EMPTY} are taken"
        raise MisfitError(message)
