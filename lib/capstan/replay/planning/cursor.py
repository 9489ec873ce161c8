"""Followed replays: the cursor is a frontier, and each run plays what became complete since."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.core.times import Antichain, Time
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.planning.snapshot_catalog import find_snapshot
from capstan.replay.planning.snapshot_ledger import Snapshot
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import identity_of
from capstan.storage.ledger.runs import History


def follow_identity(request: Request, target: str) -> str:
    """The identity of all runs of a followed replay: its name, stream and target."""
    return identity_of({"follow": request.follow, "stream": request.stream, "target": target})


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a followed replay stands.

    Attributes:
        reached: What it has played: the frontier of its last run that stands.
        resumed: The snapshot that it goes on from, if it is one of a pipeline that has any.
    """

    reached: Antichain
    resumed: Snapshot | None = None


def find_cursor(lake: Lake, request: Request, last: History | None) -> Cursor | None:
    """Where a followed replay stands; None where no run of it does.

    Args:
        lake: The lake.
        request: What is asked now.
        last: Its last run that stands.

    Raises:
        InvalidRequestError: `CAP-FOLLOW` when it was followed with other workers, transform or
            start.
    """
    if last is None:
        return None
    return Cursor(cursor(request, last), find_snapshot(lake, last, request.peers))


def cursor(request: Request, last: History) -> Antichain:
    """What a followed replay had played after its last run that stands.

    Raises:
        InvalidRequestError: `CAP-FOLLOW` when it was followed with other workers, transform or
            start.
    """
    intent = last.effective_intent
    assert intent is not None
    was = intent.detail["request"]
    assert isinstance(was, dict)
    now = request.to_json()
    for field in ("workers", "transform", "pipeline", "sink", "since", "mode", "keys"):
        # Intents that were written before there were pipelines lack these.
        if _plain(was.get(field)) != _plain(now[field]):
            raise InvalidRequestError(
                "CAP-FOLLOW",
                f"{request.follow} was followed with {field} {was.get(field)}, not {now[field]}",
                "follow it as before, or under another name",
                follow=request.follow,
            )
    times = intent.detail["reached"]
    assert isinstance(times, list)
    return Antichain.of(Time(time) for time in times)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
