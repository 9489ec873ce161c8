"""Makes plans: a request, resolved against tapes, ledgers and declarations, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from capstan.core.config import Mode, ProjectConfig, Target
from capstan.core.config.row_checks import Check
from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.replay.planning.computation import Computation
from capstan.replay.planning.cursor import Cursor, current_cursor, reached_by
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.lookup_input import Pin, at_pins
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.request import Request, with_preset
from capstan.replay.planning.requested import (
    record_computation,
    requested_box,
    requested_sink,
    sink_computation,
)
from capstan.replay.planning.stamp_checks import require_copied, require_placed, require_tape_times
from capstan.replay.planning.stream_input import Inputs, open_inputs
from capstan.replay.planning.target_layout import Layout
from capstan.replay.planning.target_places import locate
from capstan.spark.session import Later
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import TERMINAL, History, read_unrecorded
from capstan.storage.ledger.tables import read_places


def plan_with_spark(
    session: SparkSession | Later, lake: Lake, config: ProjectConfig, request: Request
) -> tuple[SparkSession, Plan]:
    """Resolve a request, and start Spark: what can be refused is refused before it starts."""
    plan = make_plan(lake, config, request, session=session)
    if isinstance(session, SparkSession):
        return session, plan
    # Spark's catalogs may have another table under a name of the request than when last asked.
    spark, seen = session(), read_places(lake)
    locate(spark, lake, config, plan.request.into, plan.request.pipeline)
    if read_places(lake) != seen:
        plan = make_plan(lake, config, plan.request)
    return spark, plan


def make_plan(
    lake: Lake,
    config: ProjectConfig,
    request: Request,
    *,
    session: SparkSession | Later | None = None,
    cuts: Mapping[str, int] | None = None,
    pins: Mapping[str, Pin] | None = None,
    cursor: Cursor | None = None,
) -> Plan:
    """Resolve a request; without a JVM, unless a table has a name in a catalog.

    The session finds the tables, as for `locate`. `cuts` and `pins` are those of an earlier plan.
    By default, a followed replay continues from its last published run.
    """
    if cuts is None:  # A pinned request has the rule of its time.
        request = with_preset(config, request)
    chosen = requested_sink(config, request)
    inputs = open_inputs(lake, request, None if chosen is None else chosen[1].worker_source, cuts)
    require_copied(inputs, request)
    box = requested_box(inputs, request)
    path, declared = locate(session, lake, config, request.into, request.pipeline)
    if request.follow is not None and cursor is None and cuts is None:
        cursor = current_cursor(lake, request, path)
    reached, resumed = (None, None) if cursor is None else (cursor.reached, cursor.resumed)
    if chosen is None:
        computation = record_computation(config, request, declared)
    else:
        computation = sink_computation(lake, request, chosen, inputs, box, resumed, pins)
    computation.require_grain(inputs.time_type, box)
    checks = () if declared is None else declared.checks
    if request.replay is not None:
        checks += config.replay(request.replay).checks
    plan = _over(lake, request, inputs, box, path, declared, computation, reached, checks)
    if cuts is None:  # What a run has recorded can be rolled back without its transform.
        require_tape_times(plan)
    return continued(plan) if plan.computation.lookups and pins is None else plan


def at_cuts(plan: Plan, cuts: Mapping[str, int]) -> Plan:
    """The plan of the same request at other cuts, by source."""
    inputs = open_inputs(plan.lake, plan.request, plan.inputs.worker_source, cuts)
    computation = plan.computation.over(inputs, plan.box)
    fixed = (plan.lake, plan.request, inputs, plan.box, plan.target, plan.declared)
    return _over(*fixed, computation, plan.cursor, plan.checks)


def over_range(plan: Plan, since: str | None, until: str | None) -> Plan:
    """The plan of the same request over another range."""
    request, inputs = replace(plan.request, since=since, until=until), plan.inputs
    box = requested_box(inputs, request)
    computation = plan.computation.over(inputs, box)
    computation.require_grain(inputs.time_type, box)
    fixed = (plan.lake, request, inputs, box, plan.target, plan.declared)
    return _over(*fixed, computation, plan.cursor, plan.checks)


def _over(
    lake: Lake,
    request: Request,
    inputs: Inputs,
    box: Box,
    path: str,
    declared: Target | None,
    computation: Computation,
    cursor: Antichain | None,
    checks: tuple[Check, ...],
) -> Plan:
    """The plan of a computation over its inputs, for the times that are complete."""
    reached = computation.written_until(inputs.time_type, inputs.frontier)
    region = Region(computation.project(box), reached, cursor).simplified()
    step = computation.step(inputs.tape.step)
    layout = Layout(computation.worker, computation.time, inputs.keepers[0].labels, step)
    plan = Plan(
        lake=lake,
        request=request,
        inputs=inputs,
        box=box,
        region=region,
        reached=reached,
        cursor=cursor,
        target=path,
        declared=declared,
        layout=layout,
        computation=computation.at(region),
        checks=checks,
    )
    _check_scope(plan)
    require_placed(plan)
    return plan


def with_region(plan: Plan, region: Region) -> Plan:
    """The plan for other times, such as those that an earlier attempt pinned."""
    return replace(plan, region=region, computation=plan.computation.at(region))


def nothing_new(plan: Plan) -> bool:
    """Whether no time became complete since the last run of a followed replay, or ever."""
    return plan.cursor == plan.reached or plan.is_empty


def continues(plan: Plan, last: History | None) -> bool:
    """Whether a followed replay goes on from the run that was published last."""
    return (None if last is None else reached_by(plan.request, last)) == plan.cursor


def require_cursor(plan: Plan, last: History | None) -> None:
    """Check, under the claim, that the last published run is still that of the plan."""
    if not continues(plan, last):
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"{plan.request.follow} has moved while this run was planned",
            "run the same command again",
            follow=plan.request.follow,
        )


def at_versions(plan: Plan, pins: Mapping[str, Pin]) -> Plan:
    """The plan at other versions of lookup tables, such as those of an earlier attempt."""
    lookups = at_pins(plan.lake, [each.lookup for each in plan.computation.lookups], pins)
    return replace(plan, computation=replace(plan.computation, lookups=lookups))


def continued(plan: Plan) -> Plan:
    """The plan at the versions of lookup tables that a stopped run of the same request pinned."""
    # So the same command finishes that run, whatever was committed to the tables since. A run that
    # has failed is not continued, as a newer version may be what mends it; nor is one whose
    # versions can no longer be read.
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


def _check_scope(plan: Plan) -> None:
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
