"""The identity of a replay that does not follow: its input, its computation and its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.replay.planning.computation import PipelineComputation
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.tables import stored_target

if TYPE_CHECKING:
    from capstan.replay.planning.plan import Plan
    from capstan.replay.planning.stream_input import StreamInput


def input_identity(plan: Plan) -> str:
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
