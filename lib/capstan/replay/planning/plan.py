"""The plan of a replay: reads and writes, resolved from the index and the ledgers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from capstan.core.config import Target
from capstan.core.config.change_rules import ChangeRule
from capstan.core.config.row_checks import Check
from capstan.core.times import Antichain, Box, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, RangeLockedError
from capstan.replay.planning.computation import (
    Computation,
    PipelineComputation,
)
from capstan.replay.planning.cursor import follow_identity, reached_by
from capstan.replay.planning.request import Request
from capstan.replay.planning.stream_input import (
    StreamInput,
    common_times,
    kept_inputs,
)
from capstan.replay.planning.target_layout import Layout
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.retirements import require_records
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.runs import History
from capstan.storage.ledger.tables import stored_target
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape

_PART_HINT = "capture more first, shorten the range, or replay its complete part with --partial"


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, resolved.

    A copy and a transform read one stream. `tape`, `cut` and `workers` are those of the only one,
    and of the first of several; `workers` of the first whose workers the rows keep.

    Attributes:
        lake: The lake.
        request: The request.
        inputs: The streams that it reads, in the order of their sources' names.
        box: The requested range.
        frontier: The common frontier of the chosen workers of all streams at their cuts.
        region: The times of the rows that are written, in the coordinates of `time_type`.
        reached: The frontier under which all written rows are complete; a followed replay
            continues from it.
        cursor: The frontier that earlier runs of a followed replay have reached; None for others.
        complete: Whether the whole range is complete.
        target: The target's path.
        declared: The target's declaration, if there is one.
        layout: The target's columns of worker and time.
        computation: The computation that makes the rows.
        checks: The checks of the target and of the declared replay, for every row that is written.
    """

    lake: Lake
    request: Request
    inputs: tuple[StreamInput, ...]
    box: Box
    frontier: Antichain
    region: Region
    reached: Antichain
    cursor: Antichain | None
    complete: bool
    target: str
    declared: Target | None
    layout: Layout
    computation: Computation
    checks: tuple[Check, ...] = ()

    @property
    def stream(self) -> str:
        """The stream as the ledgers name it; of several, the text of `joined_streams`."""
        return self.request.stream

    @property
    def several(self) -> bool:
        """Whether it reads several streams."""
        return len(self.inputs) > 1

    @property
    def tape(self) -> Tape:
        """The tape of the first stream."""
        return self.inputs[0].tape

    @property
    def cut(self) -> Cut:
        """The pinned cut of the first stream."""
        return self.inputs[0].cut

    @property
    def cuts(self) -> Mapping[str, int]:
        """The commits of the pinned cuts by source; the source of an only stream is empty."""
        return {stream.source: stream.cut.commit for stream in self.inputs}

    @property
    def pinned(self) -> Request:
        """The request at these cuts, and at these versions of lookup tables."""
        cuts, as_of = (self.cuts, None) if self.several else ({}, self.cut.commit)
        lookups = {name: pin.version for name, pin in self.computation.lookup_pins.items()}
        return replace(self.request, cuts=cuts, as_of=as_of, lookups=lookups)

    def at_cuts(self, cuts: Mapping[str, int]) -> Plan:
        """The plan at other cuts, such as those that an earlier attempt pinned."""
        return replace(
            self,
            inputs=tuple(
                replace(stream, cut=index.find_cut(stream.tape, cuts[stream.source]))
                for stream in self.inputs
            ),
        )

    @property
    def keepers(self) -> tuple[StreamInput, ...]:
        """The streams whose workers the rows keep, all with the same chosen ones, if any does."""
        return kept_inputs(self.inputs, self.computation.worker_source)

    @property
    def workers(self) -> Mapping[int, str]:
        """Labels of the chosen workers of the first stream whose workers the rows keep."""
        return self.keepers[0].workers

    @property
    def audited(self) -> Sequence[tuple[Tape, Cut, Mapping[int, str]]]:
        """What an audit reads of each stream; the first is one whose workers the rows keep."""
        kept = self.keepers
        streams = (*kept, *(each for each in self.inputs if each not in kept))
        return [(stream.tape, stream.cut, stream.workers) for stream in streams]

    @property
    def everyone(self) -> bool:
        """Whether all workers of all streams are chosen."""
        return all(stream.everyone for stream in self.inputs)

    @property
    def scope(self) -> Scope:
        """The part of the target that the replay may change; None as workers means all of them."""
        keeps = self.layout.worker is not None
        region = self.region
        if self.layout.time is None:
            region = Region(Box.everything(self.time_type))
        return Scope(self.target, tuple(sorted(self.workers)) if keeps else None, region)

    @property
    def whole_target(self) -> Scope:
        """All rows of the target."""
        return Scope(self.target, None, Region(Box.everything(self.time_type)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which `merge` and audits match rows."""
        return self.request.keys or self.computation.keys

    @property
    def change_rule(self) -> ChangeRule | None:
        """The rule by which changes of a key become rows; None unless it merges by sequence."""
        return ChangeRule.of(self.keys, self.request)

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row of the target, for audits and comparisons."""
        return self.keys if self.change_rule is None else self.change_rule.identity

    @property
    def locks(self) -> Scope:
        """The part of the target that an attempt locks: all of it for a merge by sequence.

        Its keys are not bound to the range, and its rows depend on all other changes of the table.
        """
        return self.scope if self.change_rule is None else self.whole_target

    @property
    def time_type(self) -> TimeType:
        """The times of the rows that are written; a pipeline keeps one coordinate of the tape's."""
        return self.computation.time_type(common_times(self.inputs))

    def same_coordinates(self, region: Region) -> bool:
        """Whether a region has as many coordinates as `time_type`."""
        return len(region.box.since) == len(self.time_type.coordinates)

    @property
    def axes(self) -> tuple[int, ...]:
        """The positions of the coordinates of `time_type` in the tape's times."""
        return tuple(map(self.tape.time_type.index, self.time_type.names))

    @property
    def grain(self) -> int:
        """The length that ranges are multiples of, in integers of the last coordinate."""
        return math.lcm(self.computation.grain, *(stream.tape.step for stream in self.inputs))

    @property
    def reads(self) -> Region:
        """The times whose records are read; a pipeline also reads times around the range."""
        return self.computation.reads(self.region)

    @property
    def output(self) -> tuple[str, str]:
        """The identity of the rows: the stream, and the name of the computation."""
        return self.stream, self.computation.name

    def completes(self, box: Box) -> bool:
        """Whether the rows of a range, in the tape's times, can no longer change."""
        return self.computation.is_complete(box, self.frontier)

    def is_complete(self, frontier: Antichain) -> bool:
        """Whether the whole range would be complete under a frontier, or has no end."""
        if all(bound is None for bound in self.box.until):
            return True
        return self.computation.is_complete(self.box, frontier)

    @property
    def peers(self) -> int:
        """The number of replay workers: as requested, else as in the resumed snapshot."""
        if self.request.peers:
            return self.request.peers
        computation = self.computation
        if isinstance(computation, PipelineComputation) and computation.resumed is not None:
            return computation.resumed.peers
        return max(len(stream.workers) for stream in self.inputs)

    @property
    def identity(self) -> str:
        """The hash of input, computation and target; of a followed replay, that of its cursor."""
        if self.request.follow is not None:
            return follow_identity(self.request, stored_target(self.lake, self.target))
        return _input_identity(self)

    def require_complete(self) -> None:
        """Check that the range is complete, or with `--partial` some of it; never none of it."""
        if self.request.follow is not None or (
            not self.is_empty and (self.complete or self.request.partial)
        ):
            return
        lacks = "no time of the range is complete" if self.is_empty else "the range is not complete"
        times = [self.tape.time_type.render(time) for time in self.frontier.elements]
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {self._behind}: {lacks}, the frontier is at {', '.join(map(str, times))}",
            "capture more first" if self.is_empty else _PART_HINT,
            stream=self.stream,
            frontier=times,
        )

    @property
    def _behind(self) -> str:
        """The streams that do not complete the range."""
        behind = [each for each in self.inputs if not self.is_complete(each.frontier)]
        return ", ".join(each.tape.name for each in behind or self.inputs)

    def require_records(self) -> None:
        """Check that no record that it reads was deleted."""
        for stream in self.inputs:
            workers = tuple(stream.workers)
            needed = (self.lake, stream.tape, stream.cut, workers, self.reads, "the replay")
            if self.cursor is None:
                require_records(*needed)
            else:
                require_records(*needed, "follow under another name, {since} being its --since")

    @property
    def nothing_new(self) -> bool:
        """Whether no time became complete since the last run of a followed replay, or ever."""
        return self.cursor == self.reached or self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether the region has no times, since no time of the range is complete."""
        region = self.region.simplified()
        lows = zip(region.box.since, self.time_type.minimum, strict=True)
        first = Time(least if low is None else max(low, least) for low, least in lows)
        # Times that are complete lie below others, so the first time of the box is among them.
        return not replace(region, above=None).contains(first)

    def require_cursor(self, last: History | None) -> None:
        """Check, under the claim, that the last published run is still that of the plan."""
        if (None if last is None else reached_by(self.request, last)) != self.cursor:
            raise RangeLockedError(
                "CAP-CONFLICT",
                f"{self.request.follow} has moved while this run was planned",
                "run the same command again",
                follow=self.request.follow,
            )


def _input_identity(plan: Plan) -> str:
    """The hash of what a replay reads, computes and writes; that of stored runs never changes."""
    parts: dict[str, object] = {
        "stream": plan.stream,
        "tape": plan.tape.identity,
        "cut": plan.cut.commit,
        "workers": sorted(plan.workers),
        "region": region_text(plan.region.simplified()),
        "transform": plan.request.transform,
        "code": plan.computation.code,
        "mode": str(plan.request.mode),
        "keys": list(plan.keys),
        "target": stored_target(plan.lake, plan.target),
    }
    if isinstance(plan.computation, PipelineComputation):
        parts["pipeline"] = plan.computation.name
        parts["reads"] = region_text(plan.reads.simplified())
    rule = plan.change_rule
    if rule is not None:
        parts["changes"] = rule.to_json()
    if plan.several:
        parts["streams"] = {stream.source: _part(stream) for stream in plan.inputs}
    pins = plan.computation.lookup_pins
    if pins:
        parts["lookups"] = {name: pin.to_json() for name, pin in pins.items()}
    return identity_of(parts)


def _part(stream: StreamInput) -> dict[str, object]:
    """What a run reads of one of several streams."""
    return {
        "stream": stream.tape.name,
        "tape": stream.tape.identity,
        "cut": stream.cut.commit,
        "workers": sorted(stream.workers),
    }
