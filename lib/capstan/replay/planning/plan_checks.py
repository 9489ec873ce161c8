"""Checks of a resolved replay against its computation and its mode, and those of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.core.config import Mode, ProjectConfig, Target
from capstan.core.config.row_checks import Check
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request

if TYPE_CHECKING:
    from capstan.replay.planning.plan import Plan


def declared_checks(
    config: ProjectConfig, request: Request, declared: Target | None
) -> tuple[Check, ...]:
    """The checks for every row of a replay: of its target, and of its declaration."""
    of_target = () if declared is None else declared.checks
    of_replay = () if request.replay is None else config.replay(request.replay).checks
    return (*of_target, *of_replay)


def check_scope(plan: Plan) -> None:
    """Check that a replay may change the part of its target that it writes."""
    mode = plan.request.mode
    bounded = any(bound is not None for bound in (*plan.box.since, *plan.box.until))
    timeless = mode is Mode.REPLACE and plan.layout.time is None
    plan.computation.require_scope(
        plan.inputs, timeless=timeless and (bounded or plan.request.follow is not None)
    )
    if mode is Mode.MERGE and not plan.keys:
        raise InvalidRequestError(
            "CAP-KEYS",
            "mode merge needs the columns that identify a row",
            "give --keys, or declare keys for the transform or for the pipeline's sink",
        )
    rule = plan.change_rule
    both = [] if rule is None else [c.column for c in rule.sequence if c.column in plan.keys]
    if both:
        raise InvalidRequestError(
            "CAP-SEQUENCE",
            f"column {both[0]} is a key, so it cannot order the changes of a key",
            "name another column in sequence_by",
        )
    if rule is not None and rule.truncate_when is not None and not plan.inputs.everyone:
        raise InvalidRequestError(
            "CAP-SEQUENCE",
            "truncate_when needs all workers: a truncate of one of them removes rows of all",
            "leave out the workers, or replay without truncate_when",
        )
