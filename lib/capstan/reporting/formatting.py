"""Values as pages write them: times, numbers, lengths of time, and words for states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from capstan.core.times import Coordinate, Kind

STATES = {
    "covered": ("✓", "written, by today's code"),
    "stale": ("≈", "written, some of it by older code"),
    "gap": ("○", "complete, and not written"),
    "changed": ("≠", "written, and changed by others since"),
    "failed": ("✕", "not written: the last attempt failed"),
    "waiting": ("?", "staged and audited, and waits for a person's decision"),
    "retired": ("⊘", "not written by today's code, and its records are retired"),
    "incomplete": ("…", "can still receive records"),
}
"""States of an interval, with a sign that does not need colours, and what they mean."""

_TAIL = re.compile(r"(?::00)?(?:\.0+)?Z?$")
_MIDNIGHT = re.compile(r"T00:00(?::00)?(?:\.0+)?Z?$")
_LONGEST = 200
_LONGEST_LINE = 600
_STRETCHES = 5
_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"))


def moment(at: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def pipeline_text(said: object) -> str:
    """A pipeline and its sink, what did not go into the target, and its state; else nothing."""
    if not isinstance(said, Mapping):
        return ""
    parts = [f"{said['name']}, sink {said['sink']}"]
    if said.get("trimmed"):
        parts.append(f"{said['trimmed']} rows around the range left out")
    aside = said.get("put_aside") or ()
    parts += [f"{each['rows']} {each['output']} rows of {each['node']} put aside" for each in aside]
    if said.get("resumed"):
        parts.append(f"went on from {said['resumed']}")
    state = said.get("state")
    if isinstance(state, Mapping):
        keys = sum(state["keys"].values())
        parts.append(f"{keys} keys kept on {state['peers']} replay workers")
    return "; ".join(parts)


def time_text(value: object) -> str:
    """A time as JSON has it, without the zeros that say nothing: `2013-03-01 06:30`."""
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(time_text, value)) + ")"
    text = "" if value is None else str(value)
    if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T", text):
        return text
    if _MIDNIGHT.search(text):
        return _MIDNIGHT.sub("", text)
    return _TAIL.sub("", text).replace("T", " ")


def short_bound(text: str) -> str:
    """A bound as the command line takes it: of a midnight the date, of other instants no zeros."""
    if _MIDNIGHT.search(text):
        return _MIDNIGHT.sub("", text)
    return re.sub(r"\.0+Z$", "Z", text)


def coordinate_text(coordinate: Coordinate, value: int | None) -> str:
    """A value of a coordinate; `closed` for none, `at the start` for its minimum."""
    if value is None:
        return "closed"
    if value == coordinate.minimum and coordinate.kind is not Kind.BIGINT:
        return "at the start"
    return time_text(coordinate.render(value))


def length_text(coordinate: Coordinate, value: int | None) -> str:
    """A distance in a coordinate: `3 h`, `2 d 4 h`, `17`."""
    if value is None:
        return ""
    if coordinate.kind is Kind.BIGINT:
        return f"{value:,}"
    left = value * 86_400_000_000 if coordinate.kind is Kind.DATE else value
    parts = []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {name}")
    return " ".join(parts[:2]) or ("0 s" if not left else "under 1 s")


def approval_text(approval: object) -> str:
    """Who has approved a run, when and why; empty where nobody was asked."""
    if not isinstance(approval, Mapping):
        return ""
    reason = f": {approval['reason']}" if approval.get("reason") else ""
    return f"by {approval.get('by')} at {approval.get('at')}{reason}"


def workers_text(said: object) -> object:
    """The workers of a certificate: a list of labels as it is, of many how many and their numbers.

    Of many stretches of numbers the first few are named.
    """
    if not isinstance(said, Mapping):
        return said
    stretches = [f"{a}" if a == b else f"{a} to {b}" for a, b in said["numbers"]]
    more = ", ..." if len(stretches) > _STRETCHES else ""
    return f"{said['count']:,}, by number {', '.join(stretches[:_STRETCHES])}{more}"


def behind_text(behind: object, show: Callable[[object], str]) -> str:
    """The workers of a plan that hold a range back, each with its frontier as `show` writes it."""
    found = behind if isinstance(behind, Mapping) else {}
    return ", ".join(f"{label} at {show(frontier)}" for label, frontier in found.items())


def covered_text(covered: Iterable[Mapping[str, object]]) -> str:
    """The runs of a plan's `covered`; those of older code say so."""
    return ", ".join(
        f"{each['run']} (other code)" if each.get("stale") else str(each["run"]) for each in covered
    )


def standing_text(standing: object, show: Callable[[object], str]) -> str:
    """How many records of a plan stand already, and by which code; counts as `show` writes them."""
    found = standing if isinstance(standing, Mapping) else {}
    words = {"current": "stand as they would be", "stale": "stand by other code",
             "missing": "are not there"}  # fmt: skip
    return ", ".join(f"{show(found[key])} {said}" for key, said in words.items() if found.get(key))


def number(value: object) -> str:
    """A number with its thousands apart; anything else as text, nothing as nothing."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def size(count: int) -> str:
    """A number of bytes as people read it."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def value_text(value: object) -> str:
    """Any value of a certificate or a finding in one line, not longer than 200 characters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        text = _mapping_text(value)
    elif isinstance(value, list | tuple):
        text = ", ".join(time_text(part) for part in value)
    elif isinstance(value, int):
        text = number(value)
    else:
        text = time_text(value)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _mapping_text(value: Mapping[str, object]) -> str:
    """Counts as `25 late`, anything else as `name=value`."""
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value.values()):
        return ", ".join(f"{part:,} {name}" for name, part in value.items())
    return ", ".join(f"{name}={part}" for name, part in value.items())


def row_text(value: object) -> str:
    """A row of a finding as `name=value`; other values as `value_text` has them."""
    if not isinstance(value, Mapping):
        return value_text(value)
    text = " ".join(", ".join(f"{name}={part}" for name, part in value.items()).split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def brief_text(value: object) -> str:
    """What an error says, on one line of at most 600 characters; nothing where it says nothing."""
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."


def range_text(since: object, until: object) -> str:
    """Bounds of a range in words."""
    start = "from the start" if since is None else f"from {time_text(since)}"
    return start + ("" if until is None else f" to before {time_text(until)}")


def short_target(target: str, lake: str) -> str:
    """A target's path; of the lake's own tables the name."""
    own = f"{lake}/tables/"
    return target[len(own) :] if target.startswith(own) else target
