"""Checks of a followed replay: its cursor has not moved, and there is something new."""

from __future__ import annotations

from capstan.errors import RangeLockedError
from capstan.replay.planning.cursor import cursor
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.runs import History


def require_cursor(plan: Plan, last: History | None) -> None:
    """Check, under the claim, that the cursor is still the one of the plan.

    Args:
        plan: The plan.
        last: The last published run of the followed replay.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when that run was rolled back, or another one has
            published, since the planning.
    """
    if (None if last is None else cursor(plan.request, last)) != plan.cursor:
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"{plan.request.follow} has moved while this run was planned",
            "run the same command again",
            follow=plan.request.follow,
        )


def nothing_new(plan: Plan) -> bool:
    """Whether no time became complete since the last run."""
    if plan.cursor is None:
        return False
    return plan.cursor == plan.reached or plan.region.simplified().box.is_empty
