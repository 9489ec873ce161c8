"""The plan of a replay: reads and writes, resolved from the index and the ledgers alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capstan.core.config import Mode, Target
from capstan.core.config.change_rules import ChangeRule
from capstan.core.config.row_checks import Check
from capstan.core.times import Antichain, Box, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import IncompleteError
from capstan.replay.planning.computation import Computation
from capstan.replay.planning.cursor import follow_identity
from capstan.replay.planning.request import Request
from capstan.replay.planning.stream_input import Inputs, StreamInput
from capstan.replay.planning.target_layout import Layout
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.retirements import require_records
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.tables import stored_target

_PART_HINT = "capture more first, shorten the range, or replay its complete part with --partial"


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, resolved."""

    lake: Lake
    request: Request
    inputs: Inputs  # The streams that it reads; a copy and a transform read one.
    box: Box
    region: Region  # The times of the rows that are written, in the coordinates of `time_type`.
    reached: Antichain  # Under it, all written rows are complete; a followed replay continues here.
    cursor: Antichain | None  # What earlier runs of a followed replay have reached.
    target: str
    declared: Target | None  # The target's declaration, if there is one.
    layout: Layout  # The target's columns of worker and time.
    computation: Computation
    checks: tuple[Check, ...] = ()  # Of the target and of the declared replay.

    @property
    def frontier(self) -> Antichain:
        """The common frontier of the chosen workers of all streams at their cuts."""
        return self.inputs.frontier

    @property
    def complete(self) -> bool:
        """Whether the whole range is complete, or has no end."""
        return self.is_complete(self.frontier)

    @property
    def scope(self) -> Scope:
        """The part of the target that the replay may change; None as workers means all of them."""
        keeps = self.layout.worker is not None
        region = self.region
        if self.layout.time is None:
            region = Region(Box.everything(self.time_type))
        return Scope(self.target, tuple(sorted(self.inputs.workers)) if keeps else None, region)

    @property
    def reach(self) -> Scope:
        """The part of the target that it may change: a merge any row with one of its keys."""
        return self._whole_target if self.request.mode is Mode.MERGE else self.scope

    @property
    def _whole_target(self) -> Scope:
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
        """The part of the target that an attempt locks: all of it for a merge by sequence."""
        # Its keys are not bound to the range, and its rows depend on all other changes of the
        # table.
        return self.scope if self.change_rule is None else self._whole_target

    @property
    def time_type(self) -> TimeType:
        """The times of the rows that are written; a pipeline keeps one coordinate of the tape's."""
        return self.computation.time_type(self.inputs.time_type)

    @property
    def reads(self) -> Region:
        """The times whose records are read; a pipeline also reads times around the range."""
        return self.computation.reads(self.region)

    @property
    def output(self) -> tuple[str, str]:
        """The identity of the rows: the stream, and the name of the computation."""
        return self.request.stream, self.computation.name

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
        if self.computation.resumed is not None:
            return self.computation.resumed.peers
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
        behind = [each for each in self.inputs if not self.is_complete(each.frontier)]
        names = ", ".join(each.tape.name for each in behind or self.inputs)
        times = [self.inputs.tape.time_type.render(time) for time in self.frontier.elements]
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {names}: {lacks}, the frontier is at {', '.join(map(str, times))}",
            "capture more first" if self.is_empty else _PART_HINT,
            stream=self.request.stream,
            frontier=times,
        )

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
    def is_empty(self) -> bool:
        """Whether the region has no times, since no time of the range is complete."""
        region, minimum = self.region.simplified(), self.time_type.minimum
        if self.time_type.is_total:
            return region.box.is_empty_from(minimum)
        lows = zip(region.box.since, minimum, strict=True)
        first = Time(least if low is None else max(low, least) for low, least in lows)
        # Times that are complete lie below others, so the first time of the box is among them.
        return not replace(region, above=None).contains(first)


def request_at_cuts(plan: Plan) -> Request:
    """The request of a plan at its cuts and versions of lookup tables, for who carries it out."""
    # That of a followed replay stays: it goes on from its cursor, to the newest cut.
    if plan.request.follow is not None:
        return plan.request
    inputs = plan.inputs
    cuts, as_of = (inputs.cuts, None) if inputs.several else ({}, inputs.cut.commit)
    lookups = {name: pin.version for name, pin in plan.computation.lookup_pins.items()}
    return replace(plan.request, cuts=cuts, as_of=as_of, lookups=lookups)


def _input_identity(plan: Plan) -> str:
    """The hash of what a replay reads, computes and writes; that of stored runs never changes."""
    parts: dict[str, object] = {
        "stream": plan.request.stream,
        "tape": plan.inputs.tape.identity,
        "cut": plan.inputs.cut.commit,
        "workers": sorted(plan.inputs.workers),
        "region": region_text(plan.region.simplified()),
        "transform": plan.request.transform,
        "code": plan.computation.code,
        "mode": str(plan.request.mode),
        "keys": list(plan.keys),
        "target": stored_target(plan.lake, plan.target),
    }
    parts |= plan.computation.identity_parts(plan.region)
    rule = plan.change_rule
    if rule is not None:
        parts["changes"] = rule.to_json()
    if plan.inputs.several:
        parts["streams"] = {stream.source: _part(stream) for stream in plan.inputs}
    pins = plan.computation.lookup_pins
    if pins:
        parts["lookups"] = {name: pin.to_json() for name, pin in pins.items()}
    return identity_of(**parts)


def _part(stream: StreamInput) -> dict[str, object]:
    """What a run reads of one of several streams."""
    return {
        "stream": stream.tape.name,
        "tape": stream.tape.identity,
        "cut": stream.cut.commit,
        "workers": sorted(stream.workers),
    }
