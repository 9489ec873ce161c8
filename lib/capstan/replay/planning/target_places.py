"""Where the tables of a replay are: its target, and the lookup tables of its pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from capstan.core.config import ProjectConfig, Target
from capstan.core.config.loading.loader import ROOTS
from capstan.core.config.names import is_catalog_name, normalised, one_spelling
from capstan.errors import InvalidRequestError
from capstan.pipeline import pipelines
from capstan.spark.safe_commits import require_safe_commits
from capstan.spark.session import Later
from capstan.storage.lake import Lake
from capstan.storage.ledger.moved_tables import find_moved, find_named
from capstan.storage.ledger.tables import read_places


def locate(
    session: SparkSession | Later | None,
    lake: Lake,
    config: ProjectConfig,
    into: str,
    pipeline: str | None = None,
) -> tuple[str, Target | None]:
    """Find the target of a replay, and the lookup tables of its pipeline: as `target_path`.

    The session finds tables that were moved, or are named as in a catalog, and their places are
    recorded; None takes them to be where they were. One that starts later is started only for
    names that the lake has not seen yet.
    """
    lookups = lookup_names(config, pipeline)
    path, declared = target_path(lake, config, into)
    if session is None:
        return path, declared
    name = None if declared is None else declared.table
    if not isinstance(session, SparkSession):
        places = read_places(lake)
        if all(places.named(normalised(each)) for each in (*lookups, name) if each):
            find_moved(lake, path)
            return path, declared
        session = session()
    require_safe_commits(session, path)
    if name is None:
        find_moved(lake, path)
    else:
        find_named(session, lake, name, written=True)
    find_lookups(session, lake, lookups, pipeline)
    return target_path(lake, config, into)


def lookup_names(config: ProjectConfig, pipeline: str | None) -> list[str]:
    """The lookup tables of a pipeline that are named as in a catalog."""
    if pipeline is None:
        return []
    config.require_sound("pipelines", pipeline)
    lookups = pipelines(references=config.pipelines).get(pipeline).lookups
    return [lookup.table for lookup in lookups if is_catalog_name(lookup.table)]


def find_lookups(
    spark: SparkSession, lake: Lake, names: Iterable[str], pipeline: str | None
) -> None:
    """Ask the catalogs for the lookup tables of a pipeline, and record their places."""
    for name in names:
        if not find_named(spark, lake, name):
            raise InvalidRequestError(
                "CAP-CATALOG",
                f"the catalog has no table {name}, which pipeline {pipeline} looks up",
                "check the name, and the catalogs of the Spark session",
                table=name,
            )


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


def require_below_roots(lake: Lake, config: ProjectConfig, into: str) -> None:
    """Check that a target that a form names is below a declared root, not by way of a link.

    What the file itself names is free: declared targets, and those of declared replays. So are
    tables in catalogs, whose places the catalogs say.
    """
    config.require_sound("targets", ROOTS)
    roots = config.roots or (lake.root,)
    path, declared = target_path(lake, config, into)
    replays = (target_path(lake, config, each.target)[0] for each in config.replays.values())
    if declared is not None or path in replays:
        return
    if not any(_is_below(path, root) for root in roots):
        raise InvalidRequestError(
            "CAP-ROOT",
            f"{into[:80]!r} is below none of the places where forms may write: {', '.join(roots)}",
            "name a table of the lake or a declared target; or list its folder as targets.roots in "
            f"{config.path.name}; a path has no links below such a folder",
            target=into,
            roots=list(roots),
        )


def _is_below(path: str, root: str) -> bool:
    """Whether a path is below a root, both spelled alike, and no link in between."""
    # By another way to the same table, a run would not meet the claims of others, nor the approval
    # that a declared replay into it asks for.
    if "://" in root:
        return one_spelling(path).startswith(f"{one_spelling(root).rstrip('/')}/")
    spelled = root.rstrip("/")
    own = path.removeprefix(f"{spelled}/")
    return own != path and os.path.realpath(path) == f"{os.path.realpath(spelled)}/{own}"


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
