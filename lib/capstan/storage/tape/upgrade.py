"""Tapes of older formats: what has to be done to them before this Capstan writes on them.

Readers take every format up to their own. Who writes brings the tape up to it first, a step per
version; a step only adds to a tape, and done twice it does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from capstan.instrumentation import emit
from capstan.storage import arrow_writer
from capstan.storage.tape.schema import FORMAT
from capstan.storage.tape.tape import Tape, format_of


def _nothing(tape: Tape) -> None:
    """From 1 to 2: the feed is made by the first batch that is written down in it."""
    assert tape.paths.feed


STEPS: Mapping[int, Callable[[Tape], None]] = {1: _nothing}
"""By the version that it begins from, what makes it the next one."""


def upgrade(tape: Tape) -> Tape:
    """Bring a tape up to the format that this Capstan writes; the tape, which stays the same.

    The version is written down last: what was cut off is done again.
    """
    found = format_of(tape.paths.events)
    for version in range(found, FORMAT):
        STEPS[version](tape)
        arrow_writer.set_properties(tape.paths.events, {"capstan.format": str(version + 1)})
        emit("tape.upgrade", stream=tape.name, format=version + 1)
    return tape
