"""Recordings in a folder: `worker-<i>.jsonl`, `worker-<i>.bin`, and `case.json` with their types.

    {"minimum": 0, "record_type": "u64", "time_type": "u64", "timely": "0.32", "workers": 5}

`minimum`, the types, `order` and `timely` are read; all other fields are informative. `order` is
that of times without a type, stated of pairs alone. `timely` is the release whose form the
recordings have: see `core.protocol.release`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from capstan.core.protocol import Release
from capstan.core.times import PRODUCT, TimeOrder
from capstan.core.times.time_type import order_of
from capstan.errors import InvalidRequestError
from capstan.interop.timely.encoding import FRAMES_SUFFIX, LINES_SUFFIX, Encoding
from capstan.interop.timely.reader import EventReader
from capstan.interop.timely.types.event_types import EventTypes, TimeCodec

CASE: Final = "case.json"
"""File beside recordings that states their types."""

_WORKER: Final = re.compile(r"worker-(\d{1,9})", re.ASCII)


def worker_of(path: Path) -> int | None:
    """The worker number in a file's name, if there is one."""
    match = _WORKER.fullmatch(path.stem)
    return None if match is None else int(match[1])


def recordings_in(
    folder: Path, suffixes: Iterable[str] = (LINES_SUFFIX, FRAMES_SUFFIX)
) -> list[Path]:
    """The recordings in a folder, not in its subfolders, by worker and then by name.

    Args:
        suffixes: Of files that differ only in suffix, the one with the first suffix counts: they
            are the same recording.

    Raises:
        InvalidRequestError: `CAP-FILE`, there is none.
    """
    endings = tuple(suffixes)
    by_stem: dict[str, Path] = {}
    for ending in endings:
        for path in folder.glob(f"*{ending}"):
            by_stem.setdefault(path.stem, path)
    if not by_stem:
        raise unreadable(folder, f"it holds no {' or '.join(endings)} file")
    return sorted(by_stem.values(), key=_order)


def case_beside(path: Path) -> Mapping[str, object]:
    """The fields of `case.json` beside `path`, or none; `CAP-FILE` if it cannot be read."""
    case = path.parent / CASE
    if not case.is_file():
        return {}
    try:
        value = json.loads(case.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(case, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise unreadable(case, f"it is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def types_of(
    path: Path, time_type: str | None = None, record_type: str | None = None, minimum: object = None
) -> EventTypes:
    """The types of a recording: the given ones, else those of `case.json` beside it.

    `minimum` is JSON. Its default is the minimum of `case.json`, or that of the type if the file
    has none or `time_type` is given.

    Raises:
        InvalidRequestError: `CAP-FILE`, a type is neither given nor in `case.json`; `CAP-TYPE`, it
            is unknown; `CAP-TIME`, the minimum is not a time of this type.
    """
    case = case_beside(path)
    times = case.get("time_type") if time_type is None else time_type
    records = case.get("record_type") if record_type is None else record_type
    if not isinstance(times, str) or not isinstance(records, str):
        raise unreadable(path, f"its types are unknown: no {CASE} beside it states them")
    if minimum is None and time_type is None:
        minimum = case.get("minimum")
    return EventTypes.of(times, records, minimum)


def times_of(
    case: Mapping[str, object], time_type: str | None = None, minimum: object = None
) -> tuple[object, TimeOrder]:
    """The minimum, as JSON, and the order of the times of transcripts whose records have no type.

    From the arguments, else as the fields of `case.json` state them. An unknown type in these is
    informative: transcripts can be read without it.

    Raises:
        InvalidRequestError: `CAP-TYPE`, the given type is unknown; `CAP-TIME`, the minimum is not
            a time of it; `CAP-TIME-TYPE`, the order is unknown, or not that of the stated type.
    """
    if time_type is not None:
        times = TimeCodec.of(time_type)
        least = times.start(case.get("minimum") if minimum is None else minimum)
        return times.to_json(least), times.order
    start = case.get("minimum", 0) if minimum is None else minimum
    named, order = case.get("time_type"), order_of(case)
    try:
        typed = TimeCodec.of(named).order if isinstance(named, str) else order
    except InvalidRequestError:
        typed = order
    if "order" in case and typed != order:
        raise InvalidRequestError(
            "CAP-TIME-TYPE",
            f"{CASE} states the order {case['order']}, which times of {named} do not have",
            f"leave the order out of {CASE}, or correct the type",
        )
    return start, typed if isinstance(start, list) and len(start) > 1 else PRODUCT


def release_of(path: Path, timely: str | None = None) -> Release | None:
    """The declared form of a recording: the given one, else that of `case.json`; None without.

    Raises:
        InvalidRequestError: `CAP-TIMELY`, it is not one of a known release.
    """
    declared = case_beside(path).get("timely") if timely is None else timely
    return None if declared is None else Release.of(declared)


def open_recording(path: Path, encoding: Encoding) -> EventReader:
    """A reader of a file, which the caller closes; `CAP-FILE` if it cannot be opened."""
    try:
        return EventReader(path.open("rb", buffering=0), encoding, str(path))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error


def unreadable(path: Path, reason: str) -> InvalidRequestError:
    """The error for a file or folder that cannot be read as a recording."""
    return InvalidRequestError(
        "CAP-FILE",
        f"{path} cannot be read: {reason}",
        f"give {LINES_SUFFIX} or {FRAMES_SUFFIX} files, or folders of them; give the types of "
        f"times and records if no {CASE} states them",
        file=str(path),
    )


def _order(path: Path) -> tuple[bool, int, str]:
    worker = worker_of(path)
    return worker is None, worker or 0, path.name
