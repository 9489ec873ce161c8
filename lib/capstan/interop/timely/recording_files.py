"""Recordings in a folder: `worker-<i>.jsonl`, `worker-<i>.bin`, and `case.json` with their types.

    {"minimum": 0, "record_type": "u64", "time_type": "u64", "workers": 5}

`minimum` and the types are read; what else is there is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from capstan.errors import InvalidRequestError
from capstan.interop.timely.encoding import FRAMES_SUFFIX, LINES_SUFFIX, Encoding, Frames, Lines
from capstan.interop.timely.event_types import EventTypes
from capstan.interop.timely.reader import EventReader

CASE: Final = "case.json"
"""The file beside recordings that has their types."""

_WORKER: Final = re.compile(r"worker-(\d{1,9})", re.ASCII)


def worker_of(path: Path) -> int | None:
    """The worker that a file is named after, if it is."""
    match = _WORKER.fullmatch(path.stem)
    return None if match is None else int(match[1])


def recordings_in(
    folder: Path, suffixes: Iterable[str] = (LINES_SUFFIX, FRAMES_SUFFIX)
) -> list[Path]:
    """The recordings of a folder, by worker and then by name.

    Args:
        folder: Where they lie; folders inside it are not looked into.
        suffixes: The endings that are looked for. Where a name is there with several of them, the
            first one counts: it is the same recording.

    Raises:
        InvalidRequestError: `CAP-FILE`, there is none.
    """
    endings = tuple(suffixes)
    found: dict[str, Path] = {}
    for ending in endings:
        for path in folder.glob(f"*{ending}"):
            found.setdefault(path.stem, path)
    if not found:
        raise unreadable(folder, f"there is no {' or '.join(endings)} file in it")
    return sorted(found.values(), key=_order)


def case_beside(path: Path) -> Mapping[str, object]:
    """The fields of `case.json` in the folder of `path`; none where there is no such file.

    Raises:
        InvalidRequestError: `CAP-FILE`, it cannot be read; `CAP-TIME`, it is no JSON.
    """
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
    path: Path,
    time_type: str | None = None,
    record_type: str | None = None,
    minimum: object = None,
) -> EventTypes:
    """The types of a recording: what is given, else what `case.json` beside it says.

    Args:
        path: The file.
        time_type: The type of its times.
        record_type: The type of its records.
        minimum: The minimum time as JSON; by default that of `case.json`, or, where there is none
            or `time_type` is given, that of the type.

    Raises:
        InvalidRequestError: `CAP-FILE`, a type is neither given nor beside it; `CAP-TYPE`, it is
            not known; `CAP-TIME`, the minimum is not of it.
    """
    case = case_beside(path)
    times = case.get("time_type") if time_type is None else time_type
    records = case.get("record_type") if record_type is None else record_type
    if not isinstance(times, str) or not isinstance(records, str):
        raise unreadable(path, f"its types are not known: no {CASE} beside it has them")
    if minimum is None and time_type is None:
        minimum = case.get("minimum")
    return EventTypes.of(times, records, minimum)


def open_recording(path: Path, encoding: Encoding) -> EventReader:
    """A reader of a file; whoever takes it closes it.

    Raises:
        InvalidRequestError: `CAP-FILE`, it cannot be opened.
    """
    try:
        return EventReader(path.open("rb", buffering=0), encoding, str(path))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error


def encoding_of(path: Path, types: EventTypes, worker: int | None = None) -> Encoding:
    """The form that the name of a file stands for.

    Args:
        path: The file.
        types: Its types.
        worker: Whose recording it is, for a transcript; None lets its first line say.

    Raises:
        InvalidRequestError: `CAP-FILE`, its name ends otherwise.
    """
    if path.suffix == FRAMES_SUFFIX:
        return Frames(types)
    if path.suffix == LINES_SUFFIX:
        return Lines.of(types, worker)
    raise unreadable(path, f"its name ends neither in {LINES_SUFFIX} nor in {FRAMES_SUFFIX}")


def unreadable(path: Path, reason: str) -> InvalidRequestError:
    """The error for a file or folder that cannot be read as a recording."""
    return InvalidRequestError(
        "CAP-FILE",
        f"{path} cannot be read: {reason}",
        f"Name {LINES_SUFFIX} or {FRAMES_SUFFIX} files, or folders that hold some; give the types "
        f"of times and records where no {CASE} has them.",
        file=str(path),
    )


def _order(path: Path) -> tuple[bool, int, str]:
    worker = worker_of(path)
    return worker is None, worker or 0, path.name
