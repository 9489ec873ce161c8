"""Tables that have a name in a catalog, or were moved: found, and their places recorded.

A table keeps its runs by its Delta table id, and by the transactions of those runs in its log.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig
from capstan.core.config.names import is_catalog_name, normalised
from capstan.errors import InvalidRequestError
from capstan.pipeline import pipelines
from capstan.replay.planning.planner import target_path
from capstan.spark.safe_commits import require_safe_commits
from capstan.storage.catalog_tables import find_table, is_lasting, register_table
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.table_places import IN_LAKE, Place
from capstan.storage.ledger.tables import append_rows, read_places, read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def needs_catalog(lake: Lake, declarations: ProjectConfig, into: str) -> bool:
    """Whether a target has a name in a catalog that the lake has not seen yet."""
    declared = target_path(lake, declarations, into)[1]
    if declared is None or declared.table is None:
        return False
    return read_places(lake).named(normalised(declared.table)) is None


def locate_target(spark: SparkSession, lake: Lake, declarations: ProjectConfig, into: str) -> None:
    """Find the table of a target, and record its place if that has changed."""
    path, declared = target_path(lake, declarations, into)
    require_safe_commits(spark, path)
    if declared is None or declared.table is None:
        find_moved(lake, path)
        return
    found = find_table(spark, declared.table)
    if found is not None:
        _record_found(lake, normalised(declared.table), lake.target(found.path), found.table)
    else:
        _require_forgotten(spark, lake, declared.table)


def unseen_lookups(lake: Lake, declarations: ProjectConfig, pipeline: str | None) -> bool:
    """Whether a pipeline has a lookup table in a catalog that the lake has not seen yet."""
    names = _lookup_names(declarations, pipeline)
    return bool(names) and any(read_places(lake).named(normalised(n)) is None for n in names)


def locate_lookups(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    pipeline: str | None,
    *,
    required: bool = True,
) -> None:
    """Find the lookup tables of a pipeline in their catalogs, and record places that have changed.

    Args:
        declarations: The declared pipelines.
        pipeline: The pipeline's name; None for no pipeline.
        required: Whether they must be there. A run that is rolled back does without them.
    """
    with nullcontext() if required else suppress(InvalidRequestError):
        for name in _lookup_names(declarations, pipeline):
            found = find_table(spark, name)
            if found is not None:
                _record_found(lake, normalised(name), found.path, found.table)
                continue
            _require_forgotten(spark, lake, name)
            if read_places(lake).named(normalised(name)) is None:
                raise InvalidRequestError(
                    "CAP-CATALOG",
                    f"the catalog has no table {name}, which pipeline {pipeline} looks up",
                    "check the name, and the catalogs of the Spark session",
                    table=name,
                )


def _lookup_names(declarations: ProjectConfig, pipeline: str | None) -> list[str]:
    if pipeline is None:
        return []
    declarations.require_sound("pipelines", pipeline)
    lookups = pipelines(references=declarations.pipelines).get(pipeline).lookups
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
    """Recognise the table at a path whose runs the ledgers have under another path.

    The transactions in its log prove which runs have published into it. A copy of a table that is
    still in its place is a table of its own. In a lake that was moved or copied, the tables with
    the same names are meant.

    Returns:
        Whether a place was recorded.
    """
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


def _record_found(lake: Lake, name: str, path: str, table: str) -> None:
    """Record the table that a catalog has under a name, if that is new."""
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
    _record(lake, Place(target, path, table, name))


def _holds(place: Place) -> bool:
    """Whether the table that was recorded at a place is still there."""
    return is_table(place.path) and delta.identity_of(place.path) == place.table


def _record(lake: Lake, place: Place) -> None:
    if read_places(lake).at(place.path) != place:
        append_rows(lake, "tables", [asdict(place)])
