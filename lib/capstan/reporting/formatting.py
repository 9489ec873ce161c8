"""Formatting of values for people: times, numbers, durations, and words for states."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from capstan.core.json_object import Json
from capstan.core.times import Coordinate, Kind

STATES = {
    "covered": ("✓", "written by the present code"),
    "stale": ("≈", "written in part by older code"),
    "gap": ("○", "complete, but not written"),
    "changed": ("≠", "written, and changed by others since"),
    "failed": ("✕", "not written: the last attempt failed"),
    "running": ("▸", "a run is at work on it"),
    "queued": ("◦", "its run waits for a slot, or to be tried again"),
    "waiting": ("?", "staged and audited, waiting for a decision"),
    "dead": ("†", "its run has stopped before it ended; a replay continues"),
    "retired": ("⊘", "not written by the present code, and its records are retired"),
    "incomplete": ("…", "can still receive records"),
}
"""Sign and meaning of each state of an interval, or of a run that has not ended.

The sign works without colours.
"""

Show = Callable[[object], str]
"""A formatter of numbers, times, lists and counts by name."""

_TAIL = re.compile(r"(?::00)?(?:\.0+)?Z?$")
_MIDNIGHT = re.compile(r"T00:00(?::00)?(?:\.0+)?Z?$")
_LONGEST = 200
_LONGEST_LINE = 600
_STRETCHES = 5
_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"))


def moment(at: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def pipeline_text(pipeline: Json | None) -> str:
    """Pipeline, sink, counters of rows outside the target, and state; empty for none."""
    if pipeline is None:
        return ""
    parts = [f"{pipeline['name']}, sink {pipeline['sink']}"]
    lookups = pipeline.get("lookups") or ()
    parts += [f"lookup {x['name']} in {x['table']} at version {x['version']}" for x in lookups]
    if pipeline.get("trimmed"):
        parts.append(f"{pipeline['trimmed']} rows around the range left out")
    aside = pipeline.get("put_aside") or ()
    parts += [f"{part['rows']} {part['output']} rows of {part['node']} put aside" for part in aside]
    if pipeline.get("resumed"):
        parts.append(f"resumed from {pipeline['resumed']}")
    if state := pipeline.get("state"):
        keys = sum(state["keys"].values())
        parts.append(f"{keys} keys kept on {state['peers']} replay workers")
    return "; ".join(parts)


def time_text(value: object) -> str:
    """A time from JSON, without trailing zeros: `2013-03-01 06:30`."""
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(time_text, value)) + ")"
    text = "" if value is None else str(value)
    if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T", text):
        return text
    if _MIDNIGHT.search(text):
        return _MIDNIGHT.sub("", text)
    return _TAIL.sub("", text).replace("T", " ")


def short_bound(text: str) -> str:
    """A bound as the command line takes it: a date for midnight, else without trailing zeros."""
    if _MIDNIGHT.search(text):
        return _MIDNIGHT.sub("", text)
    return re.sub(r"\.0+Z$", "Z", text)


def coordinate_text(coordinate: Coordinate, value: int | None, show: Show | None = None) -> str:
    """A value of a coordinate; `closed` for none, `at the start` for its minimum."""
    if value is None:
        return "closed"
    if value == coordinate.minimum and coordinate.kind is not Kind.BIGINT:
        return "at the start"
    return (show or time_text)(coordinate.render(value))


def length_text(coordinate: Coordinate, value: int | None) -> str:
    """A distance in a coordinate: `3 h`, `2 d 4 h`, `17`."""
    if value is None:
        return ""
    if coordinate.kind is Kind.BIGINT:
        return f"{value:,}"
    return _microseconds_text(value * 86_400_000_000 if coordinate.kind is Kind.DATE else value)


def duration_text(length: timedelta | None) -> str:
    """A duration: `3 h 20 min`; empty for none."""
    return "" if length is None else _microseconds_text(max(length // timedelta(microseconds=1), 0))


def since_text(at: datetime) -> str:
    """How long ago an instant is."""
    return duration_text(datetime.now(UTC) - at)


def _microseconds_text(left: int) -> str:
    parts = []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {name}")
    return " ".join(parts[:2]) or ("0 s" if not left else "under 1 s")


def approval_text(approval: Json | None) -> str:
    """Person, time and reason of an approval; empty when none was needed."""
    if approval is None:
        return ""
    reason = f": {approval['reason']}" if approval.get("reason") else ""
    return f"by {approval.get('by')} at {approval.get('at')}{reason}"


def changes_text(changes: Json | None) -> str:
    """The rule of a merge by sequence, in words; empty for none."""
    if changes is None:
        return ""
    sequence = ", ".join(map(str, changes["sequence_by"]))
    kept = (
        f"a version for each {sequence}"
        if changes.get("history")
        else f"the greatest {sequence} wins"
    )
    parts = [f"per key, {kept}"]
    if changes.get("delete_when") is not None:
        parts.append(f"deleted when {changes['delete_when']}")
    if changes.get("truncate_when") is not None:
        parts.append(f"all before removed when {changes['truncate_when']}")
    if changes.get("unchanged") is not None:
        parts.append(f"unchanged where {changes['unchanged']}")
    return "; ".join(parts)


def workers_text(workers: object) -> object:
    """The workers of a certificate: labels, or of many their count and first ranges of numbers."""
    if not isinstance(workers, Mapping):
        return workers
    stretches = [f"{a}" if a == b else f"{a} to {b}" for a, b in workers["numbers"]]
    more = ", ..." if len(stretches) > _STRETCHES else ""
    return f"{workers['count']:,}, by number {', '.join(stretches[:_STRETCHES])}{more}"


def number(value: object) -> str:
    """A number with thousands separators; None is empty, other values are text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def cell_text(value: object) -> str:
    """A value in a table for people: thousands separated, lists comma-separated, None empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        # A comma in a number would read as the end of a part.
        return ", ".join(str(x) if isinstance(x, int) else cell_text(x) for x in value)
    return _mapping_text(value) if isinstance(value, Mapping) else number(value)


def size(count: int) -> str:
    """A number of bytes in a readable unit."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def value_text(value: object) -> str:
    """Any value of a certificate or a finding, on one line of at most 200 characters."""
    if isinstance(value, list | tuple):
        text = ", ".join(map(time_text, value))
    else:
        text = cell_text(value) if isinstance(value, int | Mapping) else time_text(value)
    return _one_line(text, _LONGEST)


def _one_line(text: str, longest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else line[:longest] + "..."


def _mapping_text(value: Json) -> str:
    """Counts as `25 late`, anything else as `name=value`."""
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value.values()):
        return ", ".join(f"{part:,} {name}" for name, part in value.items())
    return pairs_text(value)


def pairs_text(row: Json) -> str:
    """A row as `name=value`, separated by commas."""
    return ", ".join(f"{name}={part}" for name, part in row.items())


def row_text(value: object) -> str:
    """A row of a finding as `name=value`; other values as in `value_text`."""
    return (
        _one_line(pairs_text(value), _LONGEST) if isinstance(value, Mapping) else value_text(value)
    )


def brief_text(value: object) -> str:
    """An error message on one line of at most 600 characters; empty for None."""
    return "" if value is None else _one_line(str(value), _LONGEST_LINE)


def bounds_text(since: object, until: object, show: Show = time_text) -> str:
    """The bounds of a range in words."""
    # Of markup, the sum is markup.
    start = "from the start" if since is None else "from " + show(since)
    return start if until is None else start + " to before " + show(until)


def short_target(target: str, lake: str) -> str:
    """The name of a table of the lake; the path of other targets."""
    return target.removeprefix(f"{lake}/tables/")
