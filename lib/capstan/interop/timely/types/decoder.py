"""Incremental decoders of recordings: bytes in, events out; they do no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Final

from capstan.core.protocol import Fault, Item, Rule

MAX_FRAME: Final = 64 * 2**20
"""Maximum length of a frame or line in bytes, a thousand times that of timely's own."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The unfinished last frame of a recording."""

    offset: int  # its start, in bytes
    bytes: int  # that are present
    missing: int | None  # number of bytes; None if unknown
    about: str  # the same in words

    def to_json(self) -> dict[str, object]:
        """The tail as reports show it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Damage(Fault):
    """The byte position `offset` from which a recording cannot be read, and the error code."""

    code: str
    offset: int


class Decoder(ABC):
    """Takes bytes as they arrive, and yields complete events.

    Attributes:
        offset: Start of the next event, in bytes.
        seq: Number of events and faults yielded.
        torn: The unfinished last event, once `finish` was called and `next` has reached it.
        over: Whether no more events will be yielded: the end was reached, or damage.
    """

    __slots__ = ("_ended", "_longest", "offset", "over", "seq", "torn")

    def __init__(self, longest: int) -> None:
        """Start at the beginning of a recording with events of at most `longest` bytes."""
        self._longest = longest
        self._ended = False
        self.offset = 0
        self.seq = 0
        self.torn: Torn | None = None
        self.over = False

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take the next bytes."""

    def finish(self) -> None:
        """Mark the end of the input."""
        self._ended = True

    def next(self) -> Item | None:
        """The next event, or the fault in its place; None without enough bytes, or when `over`."""
        return None if self.over else self._next()

    @abstractmethod
    def _next(self) -> Item | None: ...

    def _advance(self, size: int) -> None:
        self.offset += size
        self.seq += 1

    def _damaged(self, code: str, detail: str) -> Damage:
        self.over = True
        return Damage(Rule.SHAPE, detail, code, self.offset)
