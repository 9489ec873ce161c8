"""The fields of a replay's request as keywords, with the types that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TypedDict

from capstan.core.config import Mode

Names = Sequence[str] | str | None
"""A list of names, or text with commas."""

Time = str | int | date | Sequence[object] | None
"""A time as on the command line, a `date` or `datetime`, a number, or a list by coordinate."""


class ReplayOptions(TypedDict, total=False):
    """The fields of `capstan.ReplayRequest`, whose help tells what they are; None is not given."""

    workers: Names
    workers_of: Mapping[str, Sequence[str] | str] | None
    since: Time
    until: Time
    known_at: int | None
    as_of: int | None
    lookups: Mapping[str, int] | None
    peers: int | None
    transform: str | None
    pipeline: str | None
    sink: str | None
    mode: Mode | str | None
    keys: Names
    sequence_by: Sequence[str | Mapping[str, str]] | Mapping[str, str] | str | None
    delete_when: str | None
    truncate_when: str | None
    unchanged: str | None
    history: bool | None
    follow: str | None
    partial: bool | None
    adopt: bool | None
    hold: bool | None
    approve: bool | None
    replay: str | None
    streams: Mapping[str, str | Sequence[str]] | None
    cuts: Mapping[str, int] | None
