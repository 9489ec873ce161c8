"""Tables that have a name in a catalog, or were moved: found, and their places recorded.

A table keeps its runs by its Delta table id, and by the transactions of those runs in its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from capstan.core.config import ProjectConfig, Target
from capstan.core.config.names import is_catalog_name, normalised
from capstan.errors import InvalidRequestError
from capstan.pipeline import pipelines
from capstan.spark.safe_commits import require_safe_commits
from capstan.storage.catalog_tables import find_table, is_lasting, register_table
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.table_places import IN_LAKE, Place
from capstan.storage.ledger.tables import append_rows, read_places, read_rows

if TYPE_CHECKING:
    from capstan.spark.session import Later


def target_path(lake: Lake, config: ProjectConfig, into: str) -> tuple[str, Target | None]:
    """The path of a target and its declaration, which has the name in a catalog if it has one."""
    any_of_all = "/" in into or is_catalog_name(into)
    config.require_sound("targets", None if any_of_all else into)
    places = {name: declared_path(lake, name, target) for name, target in config.targets.items()}
    if is_catalog_name(into):
        return _table_in_catalog(lake, config.targets, places, into)
    path = places.get(into) or lake.table(into)
    name = into if into in places else next((n for n, at in places.items() if at == path), None)
    return lake.target(path), config.targets[name] if name is not None else None


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


def locate(
    session: SparkSession | Later,
    lake: Lake,
    config: ProjectConfig,
    into: str,
    pipeline: str | None = None,
) -> None:
    """Find the target of a replay and the lookup tables of its pipeline, and record their places.

    Until there is a session, names that the lake has seen are taken to be of the same tables.
    """
    if isinstance(session, SparkSession):
        locate_again(session, lake, config, into, pipeline)
        return
    if unseen_lookups(lake, config, pipeline):
        locate_lookups(session(), lake, config, pipeline)
    if needs_catalog(lake, config, into):
        locate_target(session(), lake, config, into)
    else:
        path, _ = target_path(lake, config, into)
        find_moved(lake, path)


def locate_again(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    into: str,
    pipeline: str | None,
    *,
    required: bool = True,
) -> bool:
    """Ask the catalogs for all tables of a replay; returns whether a place has changed."""
    moved = locate_target(spark, lake, config, into)
    return locate_lookups(spark, lake, config, pipeline, required=required) or moved


def needs_catalog(lake: Lake, config: ProjectConfig, into: str) -> bool:
    """Whether a target has a name in a catalog that the lake has not seen yet."""
    declared = target_path(lake, config, into)[1]
    if declared is None or declared.table is None:
        return False
    return read_places(lake).named(normalised(declared.table)) is None


def locate_target(spark: SparkSession, lake: Lake, config: ProjectConfig, into: str) -> bool:
    """Find the table of a target; returns whether its place has changed, and was recorded."""
    path, declared = target_path(lake, config, into)
    require_safe_commits(spark, path)
    if declared is None or declared.table is None:
        return find_moved(lake, path)
    found = find_table(spark, declared.table)
    if found is not None:
        name = normalised(declared.table)
        return _record_found(lake, name, lake.target(found.path), found.table)
    _require_forgotten(spark, lake, declared.table)
    return False


def unseen_lookups(lake: Lake, config: ProjectConfig, pipeline: str | None) -> bool:
    """Whether a pipeline has a lookup table in a catalog that the lake has not seen yet."""
    names = _lookup_names(config, pipeline)
    return bool(names) and any(read_places(lake).named(normalised(n)) is None for n in names)


def locate_lookups(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    pipeline: str | None,
    *,
    required: bool = True,
) -> bool:
    """Find the lookup tables of a pipeline; returns whether a place has changed."""
    moved = False
    with nullcontext() if required else suppress(InvalidRequestError):
        for name in _lookup_names(config, pipeline):
            found = find_table(spark, name)
            if found is not None:
                moved |= _record_found(lake, normalised(name), found.path, found.table)
                continue
            _require_forgotten(spark, lake, name)
            if read_places(lake).named(normalised(name)) is None:
                raise InvalidRequestError(
                    "CAP-CATALOG",
                    f"the catalog has no table {name}, which pipeline {pipeline} looks up",
                    "check the name, and the catalogs of the Spark session",
                    table=name,
                )
    return moved


def _lookup_names(config: ProjectConfig, pipeline: str | None) -> list[str]:
    if pipeline is None:
        return []
    config.require_sound("pipelines", pipeline)
    lookups = pipelines(references=config.pipelines).get(pipeline).lookups
    return [lookup.table for lookup in lookups if is_catalog_name(lookup.table)]


def _require_forgotten(spark: SparkSession, lake: Lake, table: str) -> None:
    """Check that a catalog without a table has not lost the name of one that is still there."""
    known = read_places(lake).named(normalised(table))
    if known is not None and _holds(known) and is_lasting(spark, table):
        raise InvalidRequestError(
            "CAP-CATALOG",
            f"the catalog no longer has {table}, but its table is still at {known.path}",
            "declare the name that it has now; or register it again: CREATE TABLE "
            f"{table} USING delta LOCATION '{known.path}'",
            table=table,
            path=known.path,
        )


def register_target(spark: SparkSession, lake: Lake, name: str, path: str) -> None:
    """Give a target that exists its name in the catalog, and record its place."""
    if find_table(spark, name) is None:
        register_table(spark, name, path)
    # The table is new under this name, even if another one was here before.
    target = read_places(lake).target_of(path)
    _record(lake, Place(target, path, delta.identity_of(path), normalised(name)))


def find_moved(lake: Lake, path: str) -> bool:
    """Recognise and record the table at a path whose runs the ledgers have under another path."""
    # The transactions in its log prove which runs have published into it. A copy of a table that is
    # still in its place is a table of its own. In a lake that was moved or copied, the tables with
    # the same names are meant.
    if not is_table(path) or not is_table(lake.ledger("runs")):
        return False
    places = read_places(lake)
    if places.at(path) is not None or read_rows(lake, "runs", ("run",), target=path):
        return False
    columns = ("run", "identity", "generation", "step", "target")
    done = [row for row in read_rows(lake, "runs", columns) if row["step"] == Step.DONE]
    table = None
    for row in reversed(done):
        if not _may_be_moved(lake, row["target"], path):
            continue
        table = table or delta.open_table(path)
        run = RunId.named(row["run"], row["identity"], row["generation"], path)
        if table.transaction_version(run.app) is not None:
            target = places.target_of(row["target"])
            _record(lake, Place(target, path, str(table.metadata().id)))
            return True
    return False


def find_all_moved(lake: Lake) -> int:
    """Recognise all tables of a lake that was moved; returns how many."""
    paths = {row["target"] for row in read_rows(lake, "coverage", ("target",))}
    names = {match[1] for path in paths if (match := IN_LAKE.search(path)) and not is_table(path)}
    return sum(find_moved(lake, lake.table(name)) for name in sorted(names))


def _may_be_moved(lake: Lake, before: str, path: str) -> bool:
    in_lake = IN_LAKE.search(before)
    same_name = in_lake is not None and path == lake.table(in_lake[1])
    return before != path and (same_name or not is_table(before))


def _record_found(lake: Lake, name: str, path: str, table: str) -> bool:
    """Record the table that a catalog has under a name; returns whether that is new."""
    places = read_places(lake)
    at = places.at(path)
    if at is not None and at.table == table:
        target = at.target
    elif moved := [p for p in places.of_table(table) if p.path != path and not _holds(p)]:
        target = moved[-1].target
    elif at is not None:
        # Another table than before, at the same path.
        target = places.unused_target(path)
    else:
        find_moved(lake, path)
        target = read_places(lake).target_of(path)
    return _record(lake, Place(target, path, table, name))


def _holds(place: Place) -> bool:
    """Whether the table that was recorded at a place is still there."""
    return is_table(place.path) and delta.identity_of(place.path) == place.table


def _record(lake: Lake, place: Place) -> bool:
    if read_places(lake).at(place.path) == place:
        return False
    append_rows(lake, "tables", [asdict(place)])
    return True
