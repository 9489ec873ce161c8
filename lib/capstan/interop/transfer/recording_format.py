"""Form of a stream's recordings, needed to read them: format, types and minimum time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from capstan.core.protocol import Release, transcript_minimum
from capstan.core.times import PAIR, PRODUCT, Coordinate, Kind, TimeOrder, TimeType
from capstan.core.times.time_type import order_json
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    MAX_FRAME,
    Encoding,
    EventTypes,
    Frames,
    Lines,
    TypeCodec,
    assumed_of_frames,
    assumed_of_lines,
    case_beside,
    recordings_in,
    release_of,
    times_of,
    types_of,
    worker_of,
)


class Format(StrEnum):
    """File format of a recording."""

    JSONL = "jsonl"
    """Transcripts: one line of JSON per event."""
    TIMELY = "timely"
    """Frames of timely's `EventWriter`."""

    @property
    def suffix(self) -> str:
        """Suffix of its files."""
        return ".jsonl" if self is Format.JSONL else ".bin"


@dataclass(frozen=True, slots=True)
class Form:
    """Form of the recordings of one stream."""

    format: Format
    types: EventTypes | None  # None for transcripts with arbitrary JSON records
    minimum: object  # JSON: an integer, or a list of integers
    release: Release = Release.V031  # how messages state their times
    untyped: TimeOrder = PRODUCT  # the order of times that have no type
    # Whether the release was found in the recordings, because none was declared.
    assumed: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        transcript_minimum(self.minimum)

    @classmethod
    def of_folder(
        cls,
        folder: Path,
        form: Format,
        *,
        time_type: str | None = None,
        record_type: str | None = None,
        minimum: object = None,
        timely: str | None = None,
    ) -> Form:
        """The form of the recordings in a folder: from the arguments, else from `case.json`.

        Without a release of timely in either, it is that which the recordings show.
        """
        place = folder / f"worker-0{form.suffix}"
        case = case_beside(place)
        known = (time_type or case.get("time_type")) and (record_type or case.get("record_type"))
        release = release_of(place, timely)
        if known or record_type is not None or form is Format.TIMELY:
            types = types_of(place, time_type, record_type, minimum)
            made = cls(form, types, types.minimum_json, release or Release.V031)
        else:
            start, order = times_of(case, time_type, minimum)
            made = cls(form, None, start, release or Release.V031, order)
        return made if release is not None else made._assuming(folder)

    def _assuming(self, folder: Path) -> Form:
        """The same with the release that the recordings in a folder show."""
        paths = recordings_in(folder, (self.format.suffix,))
        if self.format is Format.TIMELY:
            assert self.types is not None
            release = assumed_of_frames(paths, self.types)
        else:
            release = assumed_of_lines(paths, self.minimum)
        return replace(self, release=release, assumed=True)

    @classmethod
    def from_options(
        cls,
        form: Format,
        *,
        time_type: str | None = None,
        record_type: str | None = None,
        minimum: object = None,
        timely: str | None = None,
    ) -> Form:
        """The form of recordings without files: from the arguments alone; by default of 0.31."""
        release = Release.V031 if timely is None else Release.of(timely)
        if time_type is not None and record_type is not None:
            types = EventTypes.of(time_type, record_type, minimum)
            return cls(form, types, types.minimum_json, release)
        if form is Format.TIMELY:
            raise InvalidRequestError(
                "CAP-FILE",
                "the types of frames are unknown: their bytes do not state them",
                "give --time-type and --record-type, for example u64 and string",
            )
        _require_times(record_type)
        start, order = times_of({}, time_type, minimum)
        return cls(form, None, start, release, order)

    @classmethod
    def from_json(cls, value: Mapping[str, object], form: Format) -> Form:
        """The form stored in the settings of an imported stream."""
        release = Release.of(value.get("timely", Release.V031))
        time_type, record_type = value.get("time_type"), value.get("record_type")
        if time_type is not None and record_type is not None:
            types = EventTypes.from_json(value)
            return cls(form, types, types.minimum_json, release)
        if form is Format.TIMELY:
            raise InvalidRequestError(
                "CAP-FILE",
                "the types of frames are unknown: the stream was imported without types",
                "give --time-type and --record-type, or export transcripts (--format jsonl)",
            )
        _require_times(record_type)
        named = None if time_type is None else str(time_type)
        start, order = times_of(value, named, value.get("minimum"))
        return cls(form, None, start, release, order)

    def to_json(self) -> dict[str, object]:
        """The types, the minimum and the release, as in `case.json`; without one it is 0.31."""
        types = order_json(self.untyped) if self.types is None else self.types.to_json()
        # Settings of tapes that earlier versions imported do not state it.
        release = {} if self.release is Release.V031 else {"timely": str(self.release)}
        return {"minimum": self.minimum, **types, **release}

    @property
    def record(self) -> TypeCodec | None:
        """The type of records; None for arbitrary JSON."""
        return None if self.types is None else self.types.record

    @property
    def order(self) -> TimeOrder:
        """The order of times."""
        return self.untyped if self.types is None else self.types.time.order

    def require_tape(self) -> None:
        """Check that a tape can hold recordings of this form: it has one order for all parts."""
        if self.order not in (PRODUCT, PAIR):
            named = {} if self.types is None else {"type": self.types.time.name}
            raise InvalidRequestError(
                "CAP-TIME-TYPE",
                f"times of {named.get('type', 'this type')} mix pairs and Products, and a tape "
                "orders all parts of a time in one way",
                "`capstan check` checks the files as they are; pairs of pairs, and Products of "
                "Products, can be imported",
                **named,
            )

    @property
    def time_type(self) -> TimeType:
        """The time type of the tape: `t`, or `t0`, `t1` and so on, of kind BIGINT, in its order."""
        start = transcript_minimum(self.minimum)
        names = ["t"] if len(start) == 1 else [f"t{index}" for index in range(len(start))]
        pairs = zip(names, start, strict=True)
        axes = (Coordinate.of(name, Kind.BIGINT, least) for name, least in pairs)
        return TimeType(tuple(axes), self.order)

    def encoding(self, worker: int | None, longest: int = MAX_FRAME) -> Encoding:
        """The encoding, up to `longest` bytes a frame; without a worker, line one names it."""
        if self.format is Format.TIMELY:
            assert self.types is not None
            return Frames(self.types, longest, self.release)
        return Lines(self.minimum, self.types, worker, longest, self.release)


def _require_times(record_type: object) -> None:
    """Check that transcripts whose times have no type have none of records either."""
    if record_type is not None:
        raise InvalidRequestError(
            "CAP-FILE",
            "the type of records is given without that of times, which are read with it",
            "give --time-type too, for example u64, or leave out --record-type",
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """A file with the recording of one worker."""

    worker: int
    path: str
    named: int | None  # worker in a transcript's lines; None reads it from the first


def find_recordings(folder: Path, form: Format) -> list[Recording]:
    """The recordings in a folder; files without a worker number are numbered after the others."""
    paths = recordings_in(folder, (form.suffix,))
    numbers = {path: worker_of(path) for path in paths}
    free = max((worker for worker in numbers.values() if worker is not None), default=-1) + 1
    by_worker: dict[int, Path] = {}
    for path, number in numbers.items():
        worker, free = (free, free + 1) if number is None else (number, free)
        if worker in by_worker:
            raise InvalidRequestError(
                "CAP-FILE",
                f"{by_worker[worker]} and {path} both belong to worker {worker}",
                "remove one of them",
                worker=worker,
            )
        by_worker[worker] = path
    return [
        Recording(worker, str(path.absolute()), numbers[path]) for worker, path in by_worker.items()
    ]
