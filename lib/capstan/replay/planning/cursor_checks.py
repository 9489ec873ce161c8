"""Whether a followed replay still stands where it was planned from, and what is new since."""

from __future__ import annotations

from capstan.errors import RangeLockedError
from capstan.replay.planning.cursor import cursor
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.runs import History


def require_cursor(plan: Plan, last: History | None) -> None:
    """Check, once it has claimed, that a followed replay still stands where it was planned from.

    Args:
        plan: What was planned.
        last: Its last run that stands now.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when its last run was taken back, or another one published,
            meanwhile.
    """
    if (None if last is None else cursor(plan.request, last)) != plan.cursor:
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"{plan.request.follow} has moved while this run of it was planned",
            "run the same command again",
            follow=plan.request.follow,
        )


def nothing_new(plan: Plan) -> bool:
    """Whether no time became complete since the last run."""
    if plan.cursor is None:
        return False
    return plan.cursor == plan.reached or plan.region.simplified().box.is_empty
