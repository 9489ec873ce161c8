"""Transcripts: a recording as text, one JSON object per line.

    {"worker":0,"seq":0,"event":"progress","updates":[[time,diff],...]}
    {"worker":0,"seq":1,"event":"messages","time":time,"data":[...]}
    {"worker":0,"seq":1,"event":"messages","stamp":[time,...],"data":[...]}

Messages under one time state it as `time` or as a `stamp` of one element: those of timely 0.31 the
first, those of 0.32 the second, and a recording never both, so that it can be written back. Any
other stamp is a `stamp`, with its elements in order.

A time is an integer, or a list of integers for several coordinates, outermost first: all times are
written like the minimum. Coordinates range from -2^63 to 2^64-1, because some producers have
unsigned times, and are kept exactly. Diffs are signed 64-bit integers.

A line that is not an event of the recording becomes a `Fault` in its place: `shape` when it is not
such an object or belongs to another worker; `seq` when its number is not the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NoReturn, TypeGuard

from capstan.core.protocol.events import Event, Fault, Item, Messages, Progress, in_order, unsorted
from capstan.core.protocol.release import Release
from capstan.core.protocol.rules import Rule
from capstan.core.times import Time
from capstan.errors import InvalidRequestError

_DIFF: Final = (-(2**63), 2**63 - 1)
_COORDINATE: Final = (-(2**63), 2**64 - 1)
_SHOWN: Final = 80
# A member of an enumeration takes longer to find, and is asked for once per line.
_TIMED, _STAMPED = Release.V031, Release.V032
_UPDATE_FIELDS: Final = 2


class _MisshapenError(Exception):
    """Raised inside this module when a line is not an event; the text says why."""


def read_transcript(
    lines: Iterable[bytes],
    minimum: object,
    worker: int | None = None,
    release: Release | None = None,
) -> Iterator[Item]:
    """Read a transcript for `check` or a `StreamChecker`: the event of each line, or a `Fault`.

    Lines after a fault are numbered as if the line had been valid. `minimum` is JSON: an integer or
    a list of integers. `worker` is by default that of the first line. Without a release, the first
    messages under one time show how all of them state it.
    """
    width = None if _is_integer(minimum, _COORDINATE) else len(transcript_minimum(minimum))
    form = release
    for position, line in enumerate(lines):
        try:
            fields = _fields(line)
            found = _natural(fields, "worker")
            worker = found if worker is None else worker
            if found != worker:
                yield Fault(Rule.SHAPE, f"worker {found} in the recording of worker {worker}")
                continue
            seq = _natural(fields, "seq")
            event = _event(fields, width)
            if isinstance(event, Messages) and (form is None or form is not _form_of(fields)):
                form = _form(fields, form, declared=release is not None)
        except _MisshapenError as error:
            yield Fault(Rule.SHAPE, str(error))
            continue
        if seq != position:
            yield Fault(Rule.SEQ, f"seq {seq} where {position} was due", found=event)
            continue
        yield event


def transcript_release(lines: Iterable[bytes], minimum: object) -> Release | None:
    """The release whose form a transcript has: by its first messages under one time.

    Without any, that of a stamp of several elements, or of none; and without messages None.
    """
    width = None if _is_integer(minimum, _COORDINATE) else len(transcript_minimum(minimum))
    release: Release | None = None
    for line in lines:
        try:
            fields = _fields(line)
            event = _event(fields, width)
        except _MisshapenError:
            continue
        if isinstance(event, Messages):
            release = _form_of(fields)
            if len(event.stamp) == 1:
                break
    return release


def transcript_line(
    event: Event, worker: int, seq: int, minimum: object, release: Release | None = None
) -> bytes:
    """The line of an event with its newline, compact and in UTF-8: what is read is written back.

    Data are JSON values, with tuples for lists. Times are written like `minimum`, which is JSON.
    Without a release, the time of messages is a `time` if it is one, else a `stamp`.
    """
    width = None if _is_integer(minimum, _COORDINATE) else len(transcript_minimum(minimum))
    fields: dict[str, object] = {"worker": worker, "seq": seq}
    if isinstance(event, Progress):
        fields["event"] = "progress"
        fields["updates"] = [
            [_written(time, width), diff if _is_integer(diff, _DIFF) else _unwritten(diff)]
            for time, diff in event.updates
        ]
    else:
        fields["event"] = "messages"
        stamp = event.stamp
        if release is _TIMED or (len(stamp) == 1 and release is None):
            fields["time"] = _written(stamp[0] if len(stamp) == 1 else event.time, width)
        elif in_order(stamp):
            fields["stamp"] = [_written(time, width) for time in stamp]
        else:
            raise _not_written(unsorted(stamp))
        fields["data"] = _unwritten(event) if event.data is None else event.data
    try:
        return json_text(fields, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_written(str(error)) from error


def json_text(value: object, *, allow_nan: bool = True) -> str:
    """Compact JSON that UTF-8 can always encode, with non-ASCII characters as themselves."""

    def text(*, ascii_only: bool) -> str:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=allow_nan
        )

    try:
        plain = text(ascii_only=False)
        plain.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair is valid in JSON only as an escape.
        return text(ascii_only=True)
    return plain


def transcript_minimum(value: object) -> Time:
    """The minimum time of a transcript, from JSON: an integer or a list of integers."""
    values = value if isinstance(value, list) else [value]
    times = [part for part in values if _is_integer(part, _COORDINATE)]
    if not values or len(times) < len(values):
        raise InvalidRequestError(
            "CAP-TIME",
            f"not a minimum time: {_shown(value)}",
            "give an integer, or for nested times a list of integers",
            value=_shown(value),
        )
    return Time(times)


def _fields(line: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(
            line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
        )
    # RecursionError: lists nested deeper than the parser follows.
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise _MisshapenError(message) from error
    if not isinstance(value, Mapping):
        _refuse(f"not an object: {_shown(value)}")
    return value


def _event(fields: Mapping[str, object], width: int | None) -> Event:
    kind = fields.get("event")
    if kind == "progress":
        _absent(fields, "time", "stamp", "data")
        updates = fields.get("updates")
        if not isinstance(updates, list):
            _refuse("progress needs a list of updates")
        return Progress(tuple(_update(update, width) for update in updates))
    if kind == "messages":
        _absent(fields, "updates")
        data = fields.get("data")
        if ("time" not in fields and "stamp" not in fields) or not isinstance(data, list):
            _refuse("messages need a time or a stamp, and a list of data")
        return Messages(_stamp(fields, width), len(data), tuple(data))
    return _refuse(f"not a kind of event: {_shown(kind)}")


def _stamp(fields: Mapping[str, object], width: int | None) -> tuple[Time, ...]:
    if "stamp" not in fields:
        return (_time(fields["time"], width),)
    if "time" in fields:
        _refuse("messages have a time or a stamp, not both")
    listed = fields["stamp"]
    if not isinstance(listed, list):
        _refuse(f"a stamp is a list of times: {_shown(listed)}")
    stamp = tuple(_time(value, width) for value in listed)
    if not in_order(stamp):
        _refuse(unsorted(stamp))
    return stamp


def _form_of(fields: Mapping[str, object]) -> Release:
    """How a line of messages states their times."""
    return _TIMED if "time" in fields else _STAMPED


def _form(fields: Mapping[str, object], form: Release | None, *, declared: bool) -> Release | None:
    """How a transcript states the time of messages, after a line of them in another form."""
    found, stamp = _form_of(fields), fields.get("stamp")
    if not declared and isinstance(stamp, list) and len(stamp) != 1:
        # Such a stamp has no other way: it tells nothing about messages under one time.
        return form
    if form is not None:
        kind = "a time" if found is Release.V031 else "a stamp"
        _refuse(f"messages have {kind}, as those of timely {found}, in a recording of {form}")
    return found


def _update(value: object, width: int | None) -> tuple[Time, int]:
    if not isinstance(value, list) or len(value) != _UPDATE_FIELDS:
        _refuse(f"not an update: {_shown(value)}")
    time, diff = value
    if not _is_integer(diff, _DIFF):
        _refuse(f"not an update: {_shown(value)}")
    return _time(time, width), diff


def _time(value: object, width: int | None) -> Time:
    values = [value] if width is None else value
    if (
        not isinstance(values, list)
        or (width is not None and len(values) != width)
        or not all(_is_integer(part, _COORDINATE) for part in values)
    ):
        _refuse(f"not a time of this recording: {_shown(value)}")
    return Time(values)


def _written(time: Time, width: int | None) -> int | list[int]:
    if len(time) != (1 if width is None else width):
        _unwritten(time)
    for value in time:
        if not _is_integer(value, _COORDINATE):
            _unwritten(value)
    return time[0] if width is None else list(time)


def _unwritten(value: object) -> NoReturn:
    raise _not_written(f"{_shown(value)}")


def _not_written(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-VALUE",
        f"has no place in a transcript: {what}",
        "times are of 64 bits and as wide as the minimum; data are JSON values",
    )


def _natural(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _refuse(f"not a {name}: {_shown(value)}")
    return value


def _absent(fields: Mapping[str, object], *names: str) -> None:
    for name in names:
        if fields.get(name) is not None:
            _refuse(f"{name} in an event of kind {fields.get('event')}")


def _is_integer(value: object, limits: tuple[int, int]) -> TypeGuard[int]:
    return (
        isinstance(value, int) and not isinstance(value, bool) and limits[0] <= value <= limits[1]
    )


def _no_constant(name: str) -> NoReturn:
    message = f"{name} is not a number"
    raise ValueError(message)


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        message = "a field occurs twice"
        raise ValueError(message)
    return fields


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _refuse(message: str) -> NoReturn:
    raise _MisshapenError(message)
