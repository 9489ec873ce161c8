"""Cursors of followed replays: frontiers from which each run continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capstan.core.config.change_rules import OPTIONS
from capstan.core.times import Antichain
from capstan.errors import InvalidRequestError
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.request import Request
from capstan.replay.snapshots import Snapshot, find_snapshot
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.runs import History, read_last_published
from capstan.storage.ledger.tables import stored_target

_FIXED = (
    "workers", "workers_of", "transform", "pipeline", "sink", "since", "mode", "keys",
    "sequence_by", *OPTIONS,
)  # fmt: skip
"""Fields of the request that no run of a followed replay may change."""


def follow_identity(request: Request, target: str) -> str:
    """The identity of all runs of a followed replay: its name, streams, and target in ledgers."""
    several = {"streams": dict(request.streams)} if request.streams else {}
    return identity_of(follow=request.follow, stream=request.stream, target=target, **several)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a followed replay."""

    reached: Antichain  # The frontier of its last published run.
    resumed: Snapshot | None = None  # The snapshot to resume from; None for none.


def current_cursor(lake: Lake, request: Request, path: str) -> Cursor | None:
    """The position of a followed replay into the target at a path."""
    identity = follow_identity(request, stored_target(lake, path))
    return find_cursor(lake, request, read_last_published(lake, identity, path))


def find_cursor(lake: Lake, request: Request, last: History | None) -> Cursor | None:
    """The position of a followed replay; None when no run of it is published."""
    if last is None:
        return None
    return Cursor(reached_by(request, last), find_snapshot(lake, last, request.peers))


def reached_by(request: Request, last: History) -> Antichain:
    """The frontier that the last published run of a followed replay reached."""
    row = last.effective_intent
    assert row is not None
    intent = Intent.from_json(row.detail)
    for field in _FIXED:
        before, now = getattr(intent.request, field), getattr(request, field)
        if before != now:
            raise InvalidRequestError(
                "CAP-FOLLOW",
                f"{request.follow} was followed with {field} {_shown(before)}, not {_shown(now)}",
                "follow it as before, or under another name",
                follow=request.follow,
            )
    return intent.reached


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            "; ".join(f"{key}: {_shown(names)}" for key, names in sorted(value.items())) or "none"
        )
    return ", ".join(value) if isinstance(value, tuple) else str(value)
