"""Checks across declarations, and what a stream's preset says of a merge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from capstan.core.config.change_rules import problem_without_sequence
from capstan.core.config.durations import format_duration
from capstan.core.config.loading.registry import Registry
from capstan.core.config.models import ByColumn, EpochTime, EventTime, Mode, Stream
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.replays import Replay
from capstan.core.config.sql_rules import normalised
from capstan.core.config.transforms import Transform
from capstan.errors import InvalidRequestError

Problem = tuple[str, str]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRESET = ("keys", "sequence_by", "delete_when", "truncate_when", "unchanged")


def check_replay(
    replay: Replay,
    streams: Mapping[str, Stream],
    registry: Registry,
    pipelines: Collection[str] = (),
) -> Problem | None:
    """The first field that contradicts another declaration, and how; or None.

    The needs of its pipeline are known only after its import, so the plan checks them.
    """
    return next(_problems(replay, streams, registry, pipelines), None)


def _problems(
    replay: Replay, streams: Mapping[str, Stream], registry: Registry, pipelines: Collection[str]
) -> Iterator[Problem]:
    # Each check relies on those before it.
    yield from _streams(replay, streams)
    transform = None
    if replay.transform is not None:
        try:
            transform = registry.get(replay.transform)
        except InvalidRequestError as error:
            yield "transform", f"{error.message}; {error.hint}"
    if replay.pipeline is not None and replay.pipeline not in pipelines:
        yield "pipeline", _undeclared("pipeline", replay.pipeline, pipelines)
    read = [streams[name] for name in replay.inputs]
    for stream in read:
        for problem in _unknown_workers(replay.workers or (), stream):
            yield "workers", problem
    for key, workers in replay.workers_of.items():
        for problem in _unknown_workers(workers, streams[replay.keyed[key]]):
            yield "workers_of", f"{key}: {problem}"
    for stream in read:
        yield from _range(replay, stream)
    yield from _merge(replay, transform, streams)
    if transform is not None:
        yield from _transformed(replay, read[0], transform)


def _streams(replay: Replay, streams: Mapping[str, Stream]) -> Iterator[Problem]:
    field = "streams" if replay.streams else "stream"
    for name in replay.inputs:
        if name not in streams:
            yield field, _undeclared("stream", name, streams)
    first, *others = (streams[name] for name in replay.inputs)
    for other in others:
        domain, second = first.time.domain, other.time.domain
        if domain != second:
            times = (
                f"{first.name} has times of domain {domain}, and {other.name} of domain {second}"
            )
            yield field, times


def _undeclared(kind: str, name: str, known: Collection[str]) -> str:
    declared = f"declared: {one_of(sorted(known))}"
    return f"no {kind} is declared as {name!r}{did_you_mean(name, known)}; {declared}"


def _unknown_workers(workers: Sequence[str], stream: Stream) -> Iterator[str]:
    by = stream.workers
    if isinstance(by, ByColumn) and by.labels is not None:
        for label in workers:
            # A number may be that of a worker on tape, which only the tape knows.
            if label not in by.labels and not label.isdecimal():
                guess, known = did_you_mean(label, by.labels), one_of(by.labels)
                yield f"{label!r} is not a worker of {stream.name}{guess}; it has: {known}"


def _range(replay: Replay, stream: Stream) -> Iterator[Problem]:
    dated = isinstance(stream.time, EventTime)
    example = (
        "an instant, such as 2013-03-01" if dated else "the number of a micro-batch, such as 7"
    )
    since, until = replay.since, replay.until
    for field, bound in (("since", since), ("until", until)):
        if bound is not None and isinstance(bound, datetime) != dated:
            yield field, f"is not a time of {stream.name}; give {example}"
    if since is not None and until is not None and until <= since:  # type: ignore[operator]
        yield "until", "must be after since; until is exclusive"
    if isinstance(stream.time, EventTime):
        yield from _grain(replay, stream.time.every, f"the times of {stream.name}")
    if replay.partitions and isinstance(stream.time, EpochTime):
        yield "partitions", f"needs event times, but the times of {stream.name} are epochs"


def _merge(
    replay: Replay, transform: Transform | None, streams: Mapping[str, Stream]
) -> Iterator[Problem]:
    preset: Mapping[str, object] = {}
    try:
        preset = preset_settings(replay, streams)
    except InvalidRequestError as error:
        yield "mode", f"{error.message}; {error.hint}"
    problem = problem_without_sequence(replay) if "sequence_by" not in preset else None
    if problem is not None:
        yield "mode", problem
    has_keys = (
        replay.keys or replay.pipeline is not None or preset or (transform and transform.keys)
    )
    if replay.mode is Mode.MERGE and not has_keys:
        yield "mode", "merge needs keys; declare them in the replay or its transform"


def _transformed(replay: Replay, stream: Stream, transform: Transform) -> Iterator[Problem]:
    if replay.workers is not None and transform.worker is None:
        yield "workers", f"the output of {transform.name} has no worker; leave out workers"
    ranged = replay.since is not None or replay.until is not None
    if ranged and transform.time is None and replay.mode is Mode.REPLACE:
        yield "mode", f"the output of {transform.name} has no time; use append or merge"
    if transform.grain is not None and isinstance(stream.time, EventTime):
        if transform.grain % stream.time.every:
            every = format_duration(stream.time.every)
            yield "transform", f"the grain of {transform.name} is not a multiple of {every}"
        yield from _grain(replay, transform.grain, f"the grain of {transform.name}")


def _grain(replay: Replay, grain: timedelta, owner: str) -> Iterator[Problem]:
    for field, bound in (("since", replay.since), ("until", replay.until)):
        if isinstance(bound, datetime) and (bound - _EPOCH) % grain != timedelta():
            yield field, f"is not a multiple of {format_duration(grain)}, {owner}"


def preset_settings(given: Any, streams: Mapping[str, Stream]) -> dict[str, object]:
    """The merge settings that a stream's preset adds; none for pipelines: they have an order."""
    stream = streams.get(given.stream)
    preset = None if stream is None or given.pipeline is not None else stream.source.preset
    if given.mode is not Mode.MERGE or preset is None:
        return {}
    added = {}
    for name in _PRESET:
        own, settled = getattr(given, name), getattr(preset, name)
        if own in (None, ()):
            added[name] = settled
        elif _plain(own) != _plain(settled):
            raise InvalidRequestError(
                "CAP-SEQUENCE",
                f"{name} is {_text(own)}, but by its preset, stream {given.stream} has changes "
                f"with {_text(settled)}",
                f"leave out {name}; or declare source.select instead of source.changes",
                stream=given.stream,
            )
    return added


def _plain(value: object) -> object:
    return normalised(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "none")
