"""The form of recordings whose release of timely is not declared, where their bytes decide it.

Bytes of one form often fit the other, so a form is assumed for all recordings of a run together:

-   0.32, if every frame fits it, and not every frame fits 0.31;
-   0.31, if 0.32 does not fit, or fits with nothing but messages without elements, which need a
    deliberate send;
-   neither, if both fit. Nor if neither does, and 0.32 fits further into the first recording that
    it does not fit. Then the user is asked.

The messages of transcripts name the form; see `core.protocol.transcript`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from capstan.core.protocol import Messages, Release, transcript_release
from capstan.errors import InvalidRequestError
from capstan.interop.timely.encoding import Frames
from capstan.interop.timely.recording_files import open_recording, unreadable
from capstan.interop.timely.types.decoder import Damage
from capstan.interop.timely.types.event_types import EventTypes


@dataclass(frozen=True, slots=True)
class _Fit:
    """How far a recording fits a form."""

    misfit: int | None  # the first byte of the first frame that does not fit
    has_elements: bool  # messages whose stamp has an element


def assumed_of_frames(paths: Sequence[Path], types: EventTypes) -> Release:
    """The form of the frames of a run; `CAP-TIMELY` if they do not decide."""
    has_elements = False
    for path in paths:
        fit = _fit(path, types, Release.V032)
        if fit.misfit is not None:
            former = _fit(path, types, Release.V031, fit.misfit)
            if former.misfit is not None and former.misfit < fit.misfit:
                _ask(
                    f"{path} fits timely 0.31 up to byte {former.misfit} and timely 0.32 up to "
                    f"byte {fit.misfit}"
                )
            return Release.V031
        has_elements = has_elements or fit.has_elements
    if any(_fit(path, types, Release.V031).misfit is not None for path in paths):
        return Release.V032
    if has_elements:
        _ask(f"the frames of {paths[0].parent} fit timely 0.31 and timely 0.32")
    return Release.V031


def assumed_of_lines(paths: Sequence[Path], minimum: object) -> Release:
    """The form of the transcripts of a run; `CAP-TIMELY` if they have two."""
    found: dict[Release, Path] = {}
    for path in paths:
        try:
            with path.open("rb") as lines:
                release = transcript_release(lines, minimum)
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from error
        if release is not None:
            found.setdefault(release, path)
    if len(found) > 1:
        _ask(
            f"messages of {found[Release.V031]} have a time, as those of timely 0.31, and messages "
            f"of {found[Release.V032]} a stamp, as those of 0.32"
        )
    return next(iter(found), Release.V031)


def _fit(path: Path, types: EventTypes, release: Release, stop: int | None = None) -> _Fit:
    """How far the frames of a file before byte `stop` fit a form."""
    has_elements = False
    with open_recording(path, Frames(types, release=release)) as reader:
        for item in reader.items():
            if isinstance(item, Damage):
                return _Fit(item.offset, has_elements)
            if isinstance(item, Messages) and item.stamp:
                has_elements = True
            if stop is not None and reader.offset > stop:
                break
    return _Fit(None, has_elements)


def _ask(found: str) -> NoReturn:
    raise InvalidRequestError(
        "CAP-TIMELY",
        f"the release of timely that wrote the recordings is not declared, and their contents do "
        f"not decide it: {found}",
        'give --timely 0.31 or --timely 0.32, or write "timely": "0.32" into case.json beside them',
    )
