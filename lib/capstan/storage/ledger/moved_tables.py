"""Tables that have a name in a catalog, or were moved: recognised, and their places recorded.

A table keeps its runs by its Delta table id, and by the transactions of those runs in its log.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from capstan.core.config.names import normalised
from capstan.errors import InvalidRequestError
from capstan.storage.catalog_tables import find_table, is_lasting, register_table
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.table_places import IN_LAKE, Place
from capstan.storage.ledger.tables import append_rows, read_places, read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_named(spark: SparkSession, lake: Lake, name: str, *, written: bool = False) -> bool:
    """Ask a catalog for a table, and record its place; whether the lake knows it now.

    One that is to be `written` must not be where the lake has its own tables.
    """
    found, known = find_table(spark, name), read_places(lake).named(normalised(name))
    if found is not None:
        path = lake.target(found.path) if written else found.path
        _record_found(lake, normalised(name), path, found.table)
    elif known is not None and _holds(known) and is_lasting(spark, name):
        raise InvalidRequestError(
            "CAP-CATALOG",
            f"the catalog no longer has {name}, but its table is still at {known.path}",
            "declare the name that it has now; or register it again: CREATE TABLE "
            f"{name} USING delta LOCATION '{known.path}'",
            table=name,
            path=known.path,
        )
    return found is not None or known is not None


def register_named(spark: SparkSession, lake: Lake, name: str, path: str) -> None:
    """Give a table that exists its name in the catalog, and record its place."""
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


def _record_found(lake: Lake, name: str, path: str, table: str) -> None:
    """Record the table that a catalog has under a name."""
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
