"""What has to be known of recordings before they can be read: their form, types and minimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from capstan.core.protocol import transcript_minimum
from capstan.core.times import Coordinate, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    MAX_FRAME,
    Encoding,
    EventTypes,
    Frames,
    Lines,
    case_beside,
    recordings_in,
    types_of,
    worker_of,
)


class Format(StrEnum):
    """How the events of a recording are written down."""

    JSONL = "jsonl"
    """A line of JSON per event: a transcript."""
    TIMELY = "timely"
    """The frames of timely's `EventWriter`."""

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
        return ".jsonl" if self is Format.JSONL else ".bin"


@dataclass(frozen=True, slots=True)
class Form:
    """How the recordings of one stream are written.

    Attributes:
        format: Transcripts, or frames.
        types: The types of times and records; None for transcripts whose records may be any JSON.
        minimum: The minimum time as JSON: an integer, or a list of them.
    """

    format: Format
    types: EventTypes | None
    minimum: object

    @classmethod
    def of(
        cls,
        folder: Path,
        form: Format,
        *,
        time_type: str | None = None,
        record_type: str | None = None,
        minimum: object = None,
    ) -> Form:
        """The form of the recordings in a folder: what is given, else what `case.json` says.

        Raises:
            InvalidRequestError: `CAP-FILE`, the types of frames are not known; `CAP-TYPE`,
                `CAP-TIME`, one that is given is not known or does not fit.
        """
        place = folder / f"worker-0{form.suffix}"
        case = case_beside(place)
        known = (time_type or case.get("time_type")) and (record_type or case.get("record_type"))
        if known or form is Format.TIMELY:
            types = types_of(place, time_type, record_type, minimum)
            return cls(form, types, types.minimum_json)
        start = minimum if minimum is not None else case.get("minimum", 0)
        transcript_minimum(start)
        return cls(form, None, start)

    @classmethod
    def given(
        cls,
        form: Format,
        *,
        time_type: str | None = None,
        record_type: str | None = None,
        minimum: object = None,
    ) -> Form:
        """The form of recordings that come without files: only what is given.

        Raises:
            InvalidRequestError: `CAP-FILE`, frames have no types; `CAP-TYPE`, `CAP-TIME`.
        """
        if time_type is not None and record_type is not None:
            types = EventTypes.of(time_type, record_type, minimum)
            return cls(form, types, types.minimum_json)
        if form is Format.TIMELY:
            raise InvalidRequestError(
                "CAP-FILE",
                "the types of frames are not known: their bytes do not say them",
                "give --time-type and --record-type, such as u64 and string",
            )
        start = 0 if minimum is None else minimum
        transcript_minimum(start)
        return cls(form, None, start)

    @classmethod
    def from_json(cls, value: Mapping[str, object], form: Format) -> Form:
        """The form of a stream that was imported, as its settings keep it.

        Raises:
            InvalidRequestError: `CAP-FILE`, frames are wanted, and the stream has no types for
                them.
        """
        if value.get("time_type") is not None:
            types = EventTypes.from_json(value)
            return cls(form, types, types.minimum_json)
        if form is Format.TIMELY:
            raise InvalidRequestError(
                "CAP-FILE",
                "the types of frames are not known: the stream was not imported with any",
                "give --time-type and --record-type, or export transcripts (--format jsonl)",
            )
        return cls(form, None, value.get("minimum", 0))

    def to_json(self) -> dict[str, object]:
        """The types and the minimum, as `case.json` has them."""
        types = {} if self.types is None else self.types.to_json()
        return {"minimum": self.minimum, **types}

    @property
    def time_type(self) -> TimeType:
        """The times on a tape: `t`, or `t0`, `t1` and so on, of kind BIGINT.

        Raises:
            InvalidRequestError: `CAP-TIME`, the minimum does not fit a BIGINT.
        """
        start = transcript_minimum(self.minimum)
        names = ["t"] if len(start) == 1 else [f"t{index}" for index in range(len(start))]
        pairs = zip(names, start, strict=True)
        return TimeType(tuple(Coordinate.of(name, Kind.BIGINT, least) for name, least in pairs))

    def encoding(self, worker: int | None, longest: int = MAX_FRAME) -> Encoding:
        """How a recording is written.

        Args:
            worker: Whose it is; None lets the first line of a transcript say.
            longest: The longest frame or line that is read, in bytes.
        """
        if self.format is Format.TIMELY:
            assert self.types is not None
            return Frames(self.types, longest)
        return Lines(self.minimum, self.types, worker, longest)


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that holds the recording of one worker.

    Attributes:
        worker: The worker that it becomes.
        path: The file.
        named: The worker that a transcript's lines must name; None lets its first line say.
    """

    worker: int
    path: str
    named: int | None


def find_recordings(folder: Path, form: Format) -> list[Recording]:
    """The recordings of a folder; a file that names no worker is numbered after those that do.

    Raises:
        InvalidRequestError: `CAP-FILE`, there is none, or two are of one worker.
    """
    paths = recordings_in(folder, (form.suffix,))
    named = {path: worker_of(path) for path in paths}
    free = max((worker for worker in named.values() if worker is not None), default=-1) + 1
    found: dict[int, Path] = {}
    for path, named_after in named.items():
        worker, free = (free, free + 1) if named_after is None else (named_after, free)
        if worker in found:
            raise InvalidRequestError(
                "CAP-FILE",
                f"{found[worker]} and {path} are both of worker {worker}",
                "leave one of them",
                worker=worker,
            )
        found[worker] = path
    return [Recording(worker, str(path.absolute()), named[path]) for worker, path in found.items()]
