"""Frontiers that stand still, as a stream declares it, or by what is written on its tape.

With `stalled_after`, a frontier is stalled as `CAP-STALLED` says. Without it, nothing says how
often a source delivers, and silence is no fault. What shows a fault even so is that records came
for a day, and the frontier did not move although it is further behind them than the stream lets
records be late: then a worker holds it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from capstan.capture.synthetic.stall_check import frontier_since, holders
from capstan.core.config import EpochTime, EventTime, ProjectConfig, format_duration
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.formatting import coordinate_text
from capstan.reporting.stream_view import StreamHistory
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake, newest_entry

STOOD_FOR = timedelta(days=1)
"""How long records must have come while the frontier stood, where nothing else is declared."""

_MICROSECOND = timedelta(microseconds=1)
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Stall:
    """A frontier that does not move."""

    since: datetime
    text: str


_MOVED: VersionedCache[datetime | None] = VersionedCache()


def find_stall(
    lake: Lake, config: ProjectConfig, view: StreamHistory, now: datetime
) -> Stall | None:
    """The stall of a stream; None while its frontier moves, and when it is closed or undeclared."""
    declared = config.streams.get(view.name)
    if view.closed or declared is None:
        return None
    if declared.stalled_after is not None:
        return _declared_stall(view, declared.stalled_after, now)
    if len(view.tape.time_type.coordinates) > 1 or not _is_late(view, declared.time):
        return None
    held, moments = _least(view), read_commit_times(lake, view).moments
    stood = next((i + 1 for i in range(len(held) - 2, -1, -1) if held[i] != held[-1]), 0)
    moved, newest = (moments[stood], moments[-1]) if moments else (None, None)
    if moved is None or newest is None or newest - moved < STOOD_FOR:
        return None
    return Stall(moved, _text(view, f"while records came until {newest:%Y-%m-%d %H:%M:%S} UTC"))


def _declared_stall(view: StreamHistory, bound: timedelta, now: datetime) -> Stall | None:
    # What is kept until the tape grows also answers later looks: either it is when the frontier
    # moved, or the frontier was too old at the first look.
    moved = _MOVED.get(
        view.tape.paths.events,
        (newest_entry(view.tape.paths.events), bound),
        lambda: frontier_since(view.tape, now - bound),
    )
    if moved is None or now - moved <= bound:
        return None
    return Stall(moved, _text(view, f"longer than {format_duration(bound)}"))


def _is_late(view: StreamHistory, time: EpochTime | EventTime) -> bool:
    """Whether the frontier is further behind the records than the stream lets records be late."""
    if view.greatest is None or not isinstance(time, EventTime) or time.lateness is None:
        return False
    # A worker without a record holds the minimum, which has no distance.
    return view.behind is None or view.behind * _MICROSECOND > time.lateness + time.every


def _least(view: StreamHistory) -> list[int]:
    """The least value that any worker holds after each sampled commit."""
    lines = view.progress.frontiers
    most = np.iinfo(np.int64).max
    least: list[int] = np.where(lines.known, lines.held, most).min(axis=0, initial=most).tolist()
    return least


def _text(view: StreamHistory, how: str) -> str:
    """The sentence about a stall."""
    at = coordinate_text(view.coordinate, view.frontier)
    held = holders(view.workers, view.antichain)
    more = f" and {len(held) - _NAMED:,} more" if len(held) > _NAMED else ""
    by = f"; held back by {', '.join(held[:_NAMED])}{more}" if held else ""
    place = at if at.startswith("at ") else f"at {at}"
    return f"the frontier stands {place}, {how}{by}"
