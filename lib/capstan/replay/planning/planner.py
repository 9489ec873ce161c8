"""Makes plans: a request, resolved against the tapes, the ledgers and the declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from capstan.core.config import ProjectConfig, Target
from capstan.core.config.names import is_catalog_name, normalised
from capstan.core.times.region import Region
from capstan.replay.planning.computation import (
    PipelineComputation,
    check_grain,
    computation_of,
    kept_source,
)
from capstan.replay.planning.cursor import Cursor
from capstan.replay.planning.lookup_input import Pin, pin_lookups
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.plan_checks import check_scope, declared_checks
from capstan.replay.planning.request import Request, with_preset
from capstan.replay.planning.stopped_run import continued
from capstan.replay.planning.stream_input import (
    common_times,
    kept_inputs,
    meet,
    open_inputs,
)
from capstan.replay.planning.target_layout import Layout
from capstan.replay.planning.time_range import requested_box
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import read_places


def make_plan(
    lake: Lake,
    declarations: ProjectConfig,
    request: Request,
    *,
    cuts: Mapping[str, int] | None = None,
    pins: Mapping[str, Pin] | None = None,
    cursor: Cursor | None = None,
) -> Plan:
    """Resolve a request, without a JVM.

    Args:
        declarations: The registered transforms and the declared targets.
        cuts: The commits that are already pinned, as `Plan.cuts` has them.
        pins: The versions of lookup tables that are already pinned, by the lookup's name.
        cursor: The position of a followed replay.
    """
    if cuts is None:  # A pinned request has the rule of its time.
        request = with_preset(declarations, request)
    inputs = open_inputs(lake, request, cuts, kept_source(declarations, request))
    frontier, time_type = meet(inputs), common_times(inputs)
    box = requested_box([stream.tape for stream in inputs], time_type, request)
    path, declared = target_path(lake, declarations, request.into)
    computation = computation_of(declarations, request, time_type, box, frontier, declared)
    check_grain(computation, time_type, box)
    if isinstance(computation, PipelineComputation):
        computation = computation.resuming(None if cursor is None else cursor.resumed)
        lookups = pin_lookups(lake, computation.pipeline, computation.sink, request.lookups, pins)
        computation = replace(computation, lookups=lookups)
        for stream in inputs:
            computation.require_coarse(stream.tape.step)
    reached = computation.written_until(time_type, frontier)
    played = None if cursor is None else cursor.reached
    region = Region(computation.project(box), reached, played).simplified()
    # Rows of a pipeline have times of their own, which are not truncated as the stream's are.
    step = 1 if isinstance(computation, PipelineComputation) else inputs[0].tape.step
    kept = kept_inputs(inputs, computation.worker_source)[0]
    plan = Plan(
        lake=lake,
        request=request,
        inputs=inputs,
        box=box,
        frontier=frontier,
        region=region,
        reached=reached,
        cursor=played,
        complete=False,
        target=path,
        declared=declared,
        layout=Layout(computation.worker, computation.time, kept.labels, step),
        computation=computation.at(region),
        checks=declared_checks(declarations, request, declared),
    )
    check_scope(plan)
    plan = replace(plan, complete=plan.is_complete(frontier))
    return continued(plan) if plan.computation.lookups and pins is None else plan


def target_path(lake: Lake, declarations: ProjectConfig, into: str) -> tuple[str, Target | None]:
    """The path of a target and its declaration, even when the target is named by its path.

    A target that is named as in a catalog has that name in its declaration, whether somebody has
    declared it or not.
    """
    any_of_all = "/" in into or is_catalog_name(into)
    declarations.require_sound("targets", None if any_of_all else into)
    places = {
        name: declared_path(lake, name, target) for name, target in declarations.targets.items()
    }
    if is_catalog_name(into):
        return _table_in_catalog(lake, declarations.targets, places, into)
    path = places.get(into) or lake.table(into)
    name = into if into in places else next((n for n, at in places.items() if at == path), None)
    return lake.target(path), declarations.targets[name] if name is not None else None


def _table_in_catalog(
    lake: Lake, targets: Mapping[str, Target], places: Mapping[str, str], into: str
) -> tuple[str, Target]:
    """The path and the declaration of a target that is named as in a catalog."""
    for name, target in targets.items():
        if target.table is not None and normalised(target.table) == normalised(into):
            return lake.target(places[name]), target
    undeclared = Target(name="undeclared", table=into)
    path = declared_path(lake, into, undeclared)
    # A target that is declared otherwise may be that table. The catalog is asked by this name.
    same = next((targets[name] for name, at in places.items() if at == path), undeclared)
    return lake.target(path), replace(same, table=into)


def declared_path(lake: Lake, name: str, target: Target) -> str:
    """The path of a declared target; of a table by name, where it was last seen."""
    if target.table is not None:
        place = read_places(lake).named(normalised(target.table))
        if place is not None:
            return place.path
    return lake.table(target.path or name)


def with_region(plan: Plan, region: Region) -> Plan:
    """The plan for other times, such as those that an earlier attempt pinned."""
    return replace(plan, region=region, computation=plan.computation.at(region))
