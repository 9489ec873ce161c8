"""The streams that a replay reads, each at its pinned cut with its chosen workers.

One stream is the usual case. A pipeline can read several; as when timely replays several captured
streams, a time is complete when it is complete in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from operator import attrgetter

from capstan.core.config import Replay, source_of
from capstan.core.times import Antichain, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.tape import Cut, Tape, open_tape
from capstan.storage.tape.worker_choice import resolve_workers


@dataclass(frozen=True, slots=True)
class StreamInput:
    """A stream that a replay reads."""

    source: str  # As the request names it; empty for the only stream of a replay.
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]  # Labels of the chosen workers, in the order they were chosen.
    labels: Mapping[int, str]
    frontier: Antichain  # The common frontier of the chosen workers at the cut.
    frontiers: Mapping[int, Antichain]

    @property
    def everyone(self) -> bool:
        """Whether all workers of the cut are chosen."""
        return set(self.workers) == set(self.labels)

    @property
    def left_out(self) -> Mapping[int, str]:
        """Labels of the workers that are not chosen."""
        return {n: label for n, label in self.labels.items() if n not in self.workers}

    def label(self, worker: int) -> str:
        """The label of a worker; of several streams, after the name of the source."""
        return self.named(self.labels[worker])

    def named(self, label: str) -> str:
        """A label; of several streams, after the name of the source."""
        return f"{self.source}/{label}" if self.source else label

    def content(self, region: Region) -> ContentSummary:
        """The content of the chosen workers in a region, from the index alone."""
        return index.content_summary(self.tape, self.cut, tuple(self.workers), region)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The streams that a replay reads, in the order of their sources' names; mostly one."""

    streams: tuple[StreamInput, ...]
    worker_source: str | None = None  # The source whose workers the rows keep; None for all.

    def __iter__(self) -> Iterator[StreamInput]:
        """The streams."""
        return iter(self.streams)

    @property
    def several(self) -> bool:
        """Whether there are several streams."""
        return len(self.streams) > 1

    @property
    def tape(self) -> Tape:
        """The tape of the only stream; of several the first, whose times have the same type."""
        return self.streams[0].tape

    @property
    def cut(self) -> Cut:
        """The pinned cut of the only stream, or of the first."""
        return self.streams[0].cut

    @property
    def cuts(self) -> Mapping[str, int]:
        """The commits of the pinned cuts by source; the source of an only stream is empty."""
        return {stream.source: stream.cut.commit for stream in self.streams}

    def at_cuts(self, cuts: Mapping[str, int]) -> Inputs:
        """The same streams at other cuts, such as those that an earlier attempt pinned."""
        streams = [
            replace(stream, cut=index.find_cut(stream.tape, cuts[stream.source]))
            for stream in self.streams
        ]
        return replace(self, streams=tuple(streams))

    @property
    def frontier(self) -> Antichain:
        """The frontier under which a time is complete when it is complete in all of the streams."""
        times = (time for stream in self for time in stream.frontier)
        return Antichain.of(times, self.tape.time_type.order)

    @property
    def time_type(self) -> TimeType:
        """The coordinates of the times, which agree, each from the least minimum of all streams."""
        by_stream = [stream.tape.time_type.coordinates for stream in self]
        axes = (min(axis, key=attrgetter("minimum")) for axis in zip(*by_stream, strict=True))
        return TimeType(tuple(axes), self.tape.time_type.order)

    @property
    def step(self) -> int:
        """The least length that is a multiple of the steps of all streams."""
        return lcm(*(stream.tape.step for stream in self.streams))

    @property
    def keepers(self) -> tuple[StreamInput, ...]:
        """The streams whose workers the rows keep, all with the same chosen ones, if any does."""
        kept = tuple(each for each in self if source_of(each.source) == self.worker_source)
        return kept or self.streams

    @property
    def others(self) -> tuple[StreamInput, ...]:
        """The streams whose workers the rows mix, if they keep those of others."""
        return tuple(each for each in self if each not in self.keepers)

    @property
    def workers(self) -> Mapping[int, str]:
        """Labels of the chosen workers of the first stream whose workers the rows keep."""
        return self.keepers[0].workers

    @property
    def everyone(self) -> bool:
        """Whether all workers of all streams are chosen."""
        return all(stream.everyone for stream in self.streams)


def open_inputs(
    lake: Lake, request: Request, kept: str | None, cuts: Mapping[str, int] | None = None
) -> Inputs:
    """The streams of a request, without a JVM; `cuts` by source supersede those of the request.

    `kept` is the source whose workers the rows keep, and to which the request's `workers`
    belong; None for all. The source of an only stream is empty.
    """
    inputs: list[StreamInput] = []
    found: dict[tuple[str, int | None], Cut] = {}
    pinned = {"": request.as_of, **request.cuts, **(cuts or {})}
    for source, stream in sorted((request.streams or {"": request.stream}).items()):
        tape, commit = open_tape(lake, stream, stamps=True), pinned.get(source)
        # Two sources that read one stream read it at one cut, whatever is captured meanwhile.
        cut = found.get((stream, commit)) or index.find_cut(tape, commit)
        found[stream, commit] = cut
        inputs.append(_input(source, tape, cut, workers_for(source, request, kept)))
    _require_same_times(inputs)
    return Inputs(tuple(inputs), kept)


def workers_for(source: str, chosen: Request | Replay, kept: str | None) -> Sequence[str] | None:
    """The workers that a request, or a declared replay, chooses of a stream; None for all."""
    shared = chosen.workers if not source or kept in (None, source_of(source)) else None
    return chosen.workers_of.get(source, shared)


def require_same_workers(inputs: Sequence[StreamInput], title: str) -> None:
    """Check that a chosen worker is chosen in all streams, with the same number and label."""
    first, *others = inputs
    for other in others:
        if other.workers != first.workers:
            raise InvalidRequestError(
                "CAP-STREAMS",
                f"{title} keeps the worker, but streams {first.tape.name} and {other.tape.name} "
                "have different workers",
                "choose the workers that they share, name the source whose workers the sink keeps "
                "as its worker_source, or leave the worker out of the sink",
                stream=other.tape.name,
            )


def require_all_workers(inputs: Sequence[StreamInput], title: str) -> None:
    """Check that all workers are chosen of streams whose workers the rows mix."""
    for each in inputs:
        if not each.everyone:
            raise InvalidRequestError(
                "CAP-WORKERS",
                f"{title} mixes the workers of stream {each.tape.name}",
                f"replay all workers of source {each.source}",
                stream=each.tape.name,
            )


def total_content(contents: Sequence[ContentSummary]) -> ContentSummary:
    """The content of several streams together; times of one stream count once for each stream.

    Fingerprints are added, as that of a tape is the sum of its records' hashes. Workers are
    those of the first stream.
    """
    if len(contents) == 1:
        return contents[0]
    halves = [(int(c.fingerprint[:16], 16), int(c.fingerprint[16:], 16)) for c in contents]
    h1, h2 = (sum(half) % 2**64 for half in zip(*halves, strict=True))
    return ContentSummary(
        sum(content.messages for content in contents),
        sum(content.records for content in contents),
        sum(content.times for content in contents),
        f"{h1:016x}{h2:016x}",
        contents[0].by_worker,
    )


def _input(source: str, tape: Tape, cut: Cut, chosen: Collection[str] | None) -> StreamInput:
    workers = resolve_workers(tape, cut, chosen)
    states = [state for state in index.worker_states(tape, cut) if state.worker in workers]
    return StreamInput(
        source,
        tape,
        cut,
        workers,
        index.worker_labels(tape, cut),
        index.frontier_of(tape, states),
        {state.worker: state.frontier for state in states},
    )


def _require_same_times(inputs: Sequence[StreamInput]) -> None:
    first, *others = inputs
    for other in others:
        if _times(other) != _times(first):
            raise InvalidRequestError(
                "CAP-STREAMS",
                f"streams {first.tape.name} and {other.tape.name} have different times: "
                f"{_times(first)}, and {_times(other)}",
                "replay streams together that have the same time domain",
                stream=other.tape.name,
            )


def _times(stream: StreamInput) -> str:
    times = stream.tape.time_type
    listed = ", ".join(f"{each.name} {each.kind}" for each in times.coordinates)
    return f"pairs of {listed}" if times.order.lexicographic else listed
