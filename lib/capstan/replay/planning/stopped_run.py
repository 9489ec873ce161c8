"""Plans at the versions of lookup tables that an earlier attempt pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from capstan.replay.planning.intent import Intent
from capstan.replay.planning.lookup_input import Pin, at_pins
from capstan.storage.ledger.runs import TERMINAL, read_unrecorded

if TYPE_CHECKING:
    from capstan.replay.planning.plan import Plan


def at_versions(plan: Plan, pins: Mapping[str, Pin]) -> Plan:
    """The plan at other versions of lookup tables, such as those of an earlier attempt."""
    lookups = at_pins(plan.lake, plan.computation.lookups, pins)
    return replace(plan, computation=replace(plan.computation, lookups=lookups))


def continued(plan: Plan) -> Plan:
    """The plan at the versions of lookup tables that a stopped run of the same request pinned.

    So the same command finishes that run, whatever was committed to the tables since. A run that
    has failed is not continued, as a newer version may be what mends it; nor is one whose versions
    can no longer be read.
    """
    if plan.request.follow is not None:
        return plan
    for history in reversed(read_unrecorded(plan.lake, plan.target).values()):
        row = history.effective_intent
        if row is None or history.last.step in TERMINAL:
            continue
        intent = Intent.from_json(row.detail)
        earlier = at_versions(plan, intent.lookups)
        same = intent.request.lookups == plan.request.lookups and earlier.identity == row.identity
        if same and not any(each.unreadable for each in earlier.computation.lookups):
            return earlier
    return plan
