"""What a tape remembers of its declaration, and which parts of it may change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from capstan.capture import checkpoint_guard
from capstan.core.config import ByColumn, ByKey, EventTime, Stream
from capstan.errors import InvalidRequestError
from capstan.storage.retention import reach_back
from capstan.storage.tape.tape import Tape, change_settings

if TYPE_CHECKING:
    pass


def settings_of(stream: Stream) -> dict[str, object]:
    """The declaration in the form that is kept with the tape.

    Under `fixed` is what gives each record its worker and time: it can never change for a tape.
    The rest may change between two micro-batches.
    """
    by, time = stream.workers, stream.time
    workers: dict[str, object] = {"by": by.by}
    if isinstance(by, ByKey):
        workers |= {"columns": list(by.columns), "count": by.count}
    else:
        workers |= {"column": by.column}
    fixed: dict[str, object] = {"workers": workers, "domain": time.domain}
    free: dict[str, object] = {"late": str(stream.late)}
    if isinstance(by, ByColumn) and by.labels:
        free["labels"] = list(by.labels)
    if isinstance(time, EventTime):
        fixed["time"] = {
            "column": time.column,
            "expression": time.expression,
            "every_us": time.every // timedelta(microseconds=1),
            "minimum": time.minimum.isoformat(),
        }
        free |= {
            "lateness": None if time.lateness is None else str(time.lateness),
            "idle_after": None if time.idle_after is None else str(time.idle_after),
            "max_ahead": None if time.max_ahead is None else str(time.max_ahead),
            "watermark": time.watermark,
        }
    return {"fixed": fixed, "free": free}


def keep_settings(tape: Tape, settings: Mapping[str, object]) -> Tape:
    """Check a declaration against the tape's, and write down what may change and did.

    Raises:
        InvalidRequestError: `CAP-DECLARED`, naming what may not change; `CAP-HALF-DONE` while a
            micro-batch is half done, which must end as it began.
    """
    if settings == tape.settings:
        return tape
    was, now = tape.settings.get("fixed"), settings["fixed"]
    if was != now:
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {tape.name} was captured with {_difference(was, now)}",
            "workers and times of a tape cannot change; declare a new stream",
            stream=tape.name,
        )
    checkpoint_guard.require_no_partial_batch(tape, "a changed declaration")
    return change_settings(tape, settings)


def keep_moments(tape: Tape, stream: Stream) -> None:
    """Let the log of the index go back as far as the stream asks when its batches came.

    Whether a worker is idle, and since when the frontier stands, is told by the moments of commits.
    """
    idle_after = stream.time.idle_after if isinstance(stream.time, EventTime) else None
    lengths = [each for each in (idle_after, stream.stalled_after) if each is not None]
    if lengths:
        reach_back(tape.paths.events, max(lengths) + timedelta(days=1))


def _difference(was: object, now: object, path: str = "") -> str:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*was, *now]:
            if was.get(key) != now.get(key):
                return _difference(was.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    return f"{path} {was}, and is declared with {now}"
