"""What declarations must keep between each other: a replay, its stream and its transform."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

from capstan.core.config.durations import format_duration
from capstan.core.config.models import ByColumn, EventTime, Mode, Replay, Stream
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.registry import Registry
from capstan.core.config.transforms import Transform
from capstan.errors import InvalidRequestError

Problem = tuple[str, str]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_replay(
    replay: Replay,
    streams: Mapping[str, Stream],
    registry: Registry,
    pipelines: Collection[str] = (),
) -> Problem | None:
    """The first field of `replay` that does not fit the rest, and why; None when all fit.

    What its pipeline needs is known only once that is imported, and so is checked by the plan.
    """
    stream = streams.get(replay.stream)
    if stream is None:
        guess = did_you_mean(replay.stream, streams)
        known = one_of(sorted(streams))
        return "stream", f"no stream is declared as {replay.stream!r}{guess}; declared: {known}"
    transform = None
    if replay.transform is not None:
        try:
            transform = registry.get(replay.transform)
        except InvalidRequestError as error:
            return "transform", f"{error.message}; {error.hint}"
    return (
        _pipeline(replay, pipelines)
        or _workers(replay, stream)
        or _range(replay, stream)
        or _merge(replay, transform)
        or (_transformed(replay, stream, transform) if transform else None)
    )


def _pipeline(replay: Replay, known: Collection[str]) -> Problem | None:
    if replay.pipeline is None or replay.pipeline in known:
        return None
    guess = did_you_mean(replay.pipeline, known)
    said = f"no pipeline is declared as {replay.pipeline!r}{guess}"
    return "pipeline", f"{said}; declared: {one_of(sorted(known))}"


def _workers(replay: Replay, stream: Stream) -> Problem | None:
    by = stream.workers
    if not isinstance(by, ByColumn) or by.labels is None:
        return None
    for label in replay.workers or ():
        # A number names a worker that is on tape, which only the tape can tell.
        if label not in by.labels and not label.isdecimal():
            guess = did_you_mean(label, by.labels)
            return "workers", f"{label!r} is no worker of {stream.name}{guess}; it has: " + one_of(
                by.labels
            )
    return None


def _range(replay: Replay, stream: Stream) -> Problem | None:
    wanted, words = (
        (datetime, "an instant, such as 2013-03-01")
        if isinstance(stream.time, EventTime)
        else (int, "a number of a micro-batch, such as 7")
    )
    for field, bound in (("since", replay.since), ("until", replay.until)):
        if bound is not None and not isinstance(bound, wanted):
            return field, f"times of {stream.name} are of another kind; write {words}"
    since, until = replay.since, replay.until
    reversed_times = isinstance(since, datetime) and isinstance(until, datetime) and until <= since
    reversed_epochs = isinstance(since, int) and isinstance(until, int) and until <= since
    if reversed_times or reversed_epochs:
        return "until", "must be after since; the range is from since to just before until"
    if isinstance(stream.time, EventTime):
        what = f"the times of {stream.name}"
        return _not_whole(replay, stream.time.every, what)
    return None


def _merge(replay: Replay, transform: Transform | None) -> Problem | None:
    own = replay.pipeline is not None or (transform and transform.keys)
    if replay.mode is Mode.MERGE and not (replay.keys or own):
        return "mode", "merge needs keys; name them in the replay or in its transform"
    return None


def _transformed(replay: Replay, stream: Stream, transform: Transform) -> Problem | None:
    if replay.workers is not None and transform.worker is None:
        return "workers", f"{transform.name} keeps no worker in its output; leave out workers"
    ranged = replay.since is not None or replay.until is not None
    if ranged and transform.time is None and replay.mode is Mode.REPLACE:
        return "mode", f"{transform.name} keeps no time in its output; use append or merge"
    if transform.grain is None or not isinstance(stream.time, EventTime):
        return None
    if transform.grain % stream.time.every:
        every = format_duration(stream.time.every)
        return "transform", f"the grain of {transform.name} is not a multiple of {every}"
    return _not_whole(replay, transform.grain, f"the grain of {transform.name}")


def _not_whole(replay: Replay, grain: timedelta, what: str) -> Problem | None:
    """The first bound of a replay that lies within a grain."""
    for field, bound in (("since", replay.since), ("until", replay.until)):
        if isinstance(bound, datetime) and (bound - _EPOCH) % grain != timedelta():
            return field, f"is not a multiple of {format_duration(grain)}, {what}"
    return None
