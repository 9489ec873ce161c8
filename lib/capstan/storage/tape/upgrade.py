"""Upgrades of tapes with older formats, before this Capstan writes to them.

Readers accept every format up to their own. A writer first upgrades the tape, one step per version.
A step only adds to a tape, and is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from capstan.storage.delta import arrow_writer
from capstan.storage.tape.schema import (
    FORMAT,
    SETTLED,
    SETTLED_FORMAT,
    STAMPED_FORMAT,
    stamp_column,
)
from capstan.storage.tape.tape import Tape, format_of
from capstan.telemetry.instrumentation import emit


def _nothing(tape: Tape) -> None:
    """From 1 to 2: the first batch creates the feed."""
    assert tape.paths.feed


STEPS: Mapping[int, Callable[[Tape], None]] = {1: _nothing}
"""The upgrade steps by the version they start from."""


def upgrade(tape: Tape) -> Tape:
    """Upgrade a tape to the format that this Capstan writes, and return it."""
    # The version is stored last, so an interrupted step is repeated.
    stored = format_of(tape.paths.events)
    for version in range(stored, FORMAT):
        STEPS[version](tape)
        arrow_writer.set_properties(tape.paths.events, {"capstan.format": str(version + 1)})
        emit("tape.upgrade", stream=tape.name, format=version + 1)
    return tape


def take_settled(tape: Tape) -> None:
    """Make a tape one of which single rows of `late` are settled, before the first of them."""
    # An older Capstan would put them back, and does not know the batches that settle them.
    if format_of(tape.paths.events) < SETTLED_FORMAT:
        arrow_writer.create_table(tape.paths.settled, SETTLED)
        version = {"capstan.format": str(SETTLED_FORMAT)}
        arrow_writer.set_properties(tape.paths.events, version)
        emit("tape.settled", stream=tape.name)


def take_stamps(tape: Tape) -> Tape:
    """Make a tape one of stamps: before the first messages that do not have one time."""
    # The version comes last, and before any row that has a stamp. Until then all readers pass over
    # the columns.
    if not tape.stamped:
        columns = arrow_writer.struct(**stamp_column(tape.time_type, stamped=True))
        for path in (tape.paths.records, tape.paths.events):
            arrow_writer.add_columns(path, columns)
        emit("tape.columns", stream=tape.name)
        arrow_writer.set_properties(tape.paths.events, {"capstan.format": str(STAMPED_FORMAT)})
        emit("tape.stamped", stream=tape.name)
    return replace(tape, stamped=True)
