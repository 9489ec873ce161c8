"""Checks across declarations: a replay against its stream and transform."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from capstan.core.config.change_rules import problem_without_sequence
from capstan.core.config.durations import format_duration
from capstan.core.config.loading.change_completion import preset_settings
from capstan.core.config.loading.registry import Registry
from capstan.core.config.models import ByColumn, EventTime, Mode, Stream
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.replays import Replay
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
    """The first field that contradicts another declaration, and how; or None.

    The needs of its pipeline are known only after its import, so the plan checks them.
    """
    field = "streams" if replay.streams else "stream"
    for name in replay.inputs:
        if name not in streams:
            guess = did_you_mean(name, streams)
            known = one_of(sorted(streams))
            return field, f"no stream is declared as {name!r}{guess}; declared: {known}"
    stream, *others = (streams[name] for name in replay.inputs)
    for other in others:
        if other.time.domain != stream.time.domain:
            return field, (
                f"{stream.name} has times of domain {stream.time.domain}, and {other.name} of "
                f"domain {other.time.domain}"
            )
    transform = None
    if replay.transform is not None:
        try:
            transform = registry.get(replay.transform)
        except InvalidRequestError as error:
            return "transform", f"{error.message}; {error.hint}"
    return (
        _pipeline(replay, pipelines)
        or next(filter(None, (_workers(replay.workers, each) for each in (stream, *others))), None)
        or _workers_of(replay, streams)
        or next(filter(None, (_range(replay, each) for each in (stream, *others))), None)
        or _merge(replay, transform, streams)
        or (_transformed(replay, stream, transform) if transform else None)
    )


def _pipeline(replay: Replay, known: Collection[str]) -> Problem | None:
    if replay.pipeline is None or replay.pipeline in known:
        return None
    guess = did_you_mean(replay.pipeline, known)
    problem = f"no pipeline is declared as {replay.pipeline!r}{guess}"
    return "pipeline", f"{problem}; declared: {one_of(sorted(known))}"


def _workers_of(replay: Replay, streams: Mapping[str, Stream]) -> Problem | None:
    for key, workers in replay.workers_of.items():
        problem = _workers(workers, streams[replay.keyed[key]])
        if problem is not None:
            return "workers_of", f"{key}: {problem[1]}"
    return None


def _workers(workers: Sequence[str] | None, stream: Stream) -> Problem | None:
    by = stream.workers
    if not isinstance(by, ByColumn) or by.labels is None:
        return None
    for label in workers or ():
        # A number may be that of a worker on tape, which only the tape knows.
        if label not in by.labels and not label.isdecimal():
            guess = did_you_mean(label, by.labels)
            return (
                "workers",
                f"{label!r} is not a worker of {stream.name}{guess}; it has: " + one_of(by.labels),
            )
    return None


def _range(replay: Replay, stream: Stream) -> Problem | None:
    expected, example = (
        (datetime, "an instant, such as 2013-03-01")
        if isinstance(stream.time, EventTime)
        else (int, "the number of a micro-batch, such as 7")
    )
    for field, bound in (("since", replay.since), ("until", replay.until)):
        if bound is not None and not isinstance(bound, expected):
            return field, f"is not a time of {stream.name}; give {example}"
    since, until = replay.since, replay.until
    reversed_times = isinstance(since, datetime) and isinstance(until, datetime) and until <= since
    reversed_epochs = isinstance(since, int) and isinstance(until, int) and until <= since
    if reversed_times or reversed_epochs:
        return "until", "must be after since; until is exclusive"
    if isinstance(stream.time, EventTime):
        return _check_grain(replay, stream.time.every, f"the times of {stream.name}")
    return None


def _merge(
    replay: Replay, transform: Transform | None, streams: Mapping[str, Stream]
) -> Problem | None:
    try:
        preset = preset_settings(replay, streams)
    except InvalidRequestError as error:
        return "mode", f"{error.message}; {error.hint}"
    problem = problem_without_sequence(replay) if "sequence_by" not in preset else None
    if problem is not None:
        return "mode", problem
    has_keys = replay.pipeline is not None or preset or (transform and transform.keys)
    if replay.mode is Mode.MERGE and not (replay.keys or has_keys):
        return "mode", "merge needs keys; declare them in the replay or its transform"
    return None


def _transformed(replay: Replay, stream: Stream, transform: Transform) -> Problem | None:
    if replay.workers is not None and transform.worker is None:
        return "workers", f"the output of {transform.name} has no worker; leave out workers"
    ranged = replay.since is not None or replay.until is not None
    if ranged and transform.time is None and replay.mode is Mode.REPLACE:
        return "mode", f"the output of {transform.name} has no time; use append or merge"
    if transform.grain is None or not isinstance(stream.time, EventTime):
        return None
    if transform.grain % stream.time.every:
        every = format_duration(stream.time.every)
        return "transform", f"the grain of {transform.name} is not a multiple of {every}"
    return _check_grain(replay, transform.grain, f"the grain of {transform.name}")


def _check_grain(replay: Replay, grain: timedelta, owner: str) -> Problem | None:
    """The first bound of a replay that is not a multiple of a grain."""
    for field, bound in (("since", replay.since), ("until", replay.until)):
        if isinstance(bound, datetime) and (bound - _EPOCH) % grain != timedelta():
            return field, f"is not a multiple of {format_duration(grain)}, {owner}"
    return None
