"""Followed replays: the cursor is a frontier, and each run plays what became complete since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from capstan.errors import BadRequest
from capstan.ledger.identity import identity_of
from capstan.ledger.runs import History
from capstan.replay.request import Request
from capstan.times import Antichain, Time

if TYPE_CHECKING:
    from capstan.replay.plan import Plan


def follow_identity(request: Request, target: str) -> str:
    """The identity of all runs of a followed replay: its name, stream and target."""
    return identity_of({"follow": request.follow, "stream": request.stream, "target": target})


def cursor(request: Request, histories: Iterable[History]) -> Antichain | None:
    """What the followed replay has played: the frontier of its last run that stands.

    Raises:
        BadRequest: `CAP-FOLLOW` when it was followed with other workers, transform or start.
    """
    published = [history for history in histories if history.published]
    if not published:
        return None
    last = max(published, key=lambda history: history.last.generation)
    intent = last.intended
    assert intent is not None
    was = intent.detail["request"]
    assert isinstance(was, dict)
    now = request.as_json()
    for field in ("workers", "transform", "pipeline", "sink", "since", "mode", "keys"):
        # Intents that were written before there were pipelines lack these.
        if _plain(was.get(field)) != _plain(now[field]):
            raise BadRequest(
                "CAP-FOLLOW",
                f"{request.follow} was followed with {field} {was.get(field)}, not {now[field]}",
                "follow it as before, or under another name",
                follow=request.follow,
            )
    times = intent.detail["reached"]
    assert isinstance(times, list)
    return Antichain.of(Time(time) for time in times)


def nothing_new(plan: Plan) -> bool:
    """Whether no time became complete since the last run."""
    if plan.cursor is None:
        return False
    return plan.cursor == plan.reached or plan.region.simplified().box.is_empty


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
