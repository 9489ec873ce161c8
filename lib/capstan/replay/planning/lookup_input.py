"""The lookup tables that a replay reads, each at its pinned version.

A version is pinned with the table's Delta id, so that another table at the same path, whose
versions begin anew, is not taken for it. A table that is named as in a catalog is found by this id
even after it was moved or renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from capstan.core.config.names import is_catalog_name, normalised
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.pipeline import Lookup, Pipeline, Sink
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import Lake, is_table, sizes_of
from capstan.storage.ledger.tables import read_places


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a table."""

    id: str  # The table's Delta id at that version.
    version: int

    def to_json(self) -> dict[str, object]:
        """The object that intents and run identities have."""
        return {"id": self.id, "version": self.version}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The version that `to_json` wrote."""
        return cls(str(value["id"]), int(value["version"]))


@dataclass(frozen=True, slots=True)
class LookupInput:
    """A lookup table that a replay reads."""

    lookup: Lookup
    path: str
    pin: Pin

    def to_json(self) -> dict[str, object]:
        """The object that plans and certificates have."""
        named = {"name": self.lookup.name, "source": self.lookup.source}
        return {**named, "table": self.lookup.table, "path": self.path, **self.pin.to_json()}

    @property
    def unreadable(self) -> str | None:
        """Why the version cannot be read any more, as seen from the log; None when it can."""
        version = self.pin.version
        if not is_table(self.path):
            return f"there is no Delta table at {self.path}"
        newest = delta.version_of(self.path) or 0
        if version > newest:
            return f"the table at {self.path} has no version {version}: the newest is {newest}"
        table = _at_version(self.path, version)
        if table is None:
            return f"the log of the table at {self.path} no longer has version {version}"
        if str(table.metadata().id) != self.pin.id:
            return f"the table at {self.path} is another than the one whose version was pinned"
        if version < newest and (missing := _missing_file(self.path, table)) is not None:
            return f"version {version} of the table at {self.path} lacks {missing}, as after VACUUM"
        return None

    def require_readable(self) -> None:
        """Check that the version can still be read."""
        problem = self.unreadable
        if problem is not None:
            raise _refusal(self.lookup, problem)


def lookups_of(pipeline: Pipeline, sink: Sink) -> list[Lookup]:
    """The lookups of the sources that a sink reads."""
    dag = pipeline.plan([sink.node]).dag
    sources = {dag.nodes[number].name for number in dag.sources}
    return [lookup for lookup in pipeline.lookups if lookup.source in sources]


def pin_lookups(
    lake: Lake, pipeline: Pipeline, sink: Sink, asked: Mapping[str, int]
) -> tuple[LookupInput, ...]:
    """The lookups of a sink as declared, without a JVM; unless asked for, at the newest version."""
    known = {lookup.name for lookup in pipeline.lookups}
    for name in sorted(set(asked) - known):
        raise InvalidRequestError(
            "CAP-LOOKUP",
            f"pipeline {pipeline.name} has no lookup {name[:80]!r}",
            f"its lookups: {', '.join(sorted(known)) or 'none'}",
            pipeline=pipeline.name,
        )
    inputs: list[LookupInput] = []
    found: dict[tuple[str, int | None], Pin] = {}
    for lookup in lookups_of(pipeline, sink):
        path = _path(lake, lookup)
        version = asked.get(lookup.name, lookup.version)
        # Two lookups of one table read one version, whatever is committed meanwhile.
        pin = found.get((path, version)) or _pin(lookup, path, version)
        found[path, version] = pin
        inputs.append(LookupInput(lookup, path, pin))
    return tuple(inputs)


def at_pins(
    lake: Lake, lookups: Iterable[Lookup], pins: Mapping[str, Pin]
) -> tuple[LookupInput, ...]:
    """Those lookups that an earlier attempt has pinned, at its versions; no table is opened."""
    return tuple(
        LookupInput(lookup, _path(lake, lookup, pin), pin)
        for lookup in lookups
        if (pin := pins.get(lookup.name)) is not None
    )


def _path(lake: Lake, lookup: Lookup, pin: Pin | None = None) -> str:
    """The path of a lookup's table; of a name in a catalog, where it was last seen.

    With a version, the path of the table that had it, which may be that of another or of none.
    """
    if not is_catalog_name(lookup.table):
        return lake.table(lookup.table)
    places = read_places(lake)
    place = places.named(normalised(lookup.table))
    if pin is not None and (place is None or place.table != pin.id):
        place = next(reversed(places.of_table(pin.id)), place)
    if place is not None:
        return place.path
    if pin is not None:
        return lake.table(lookup.table)
    raise InvalidRequestError(
        "CAP-LOOKUP",
        f"lookup {lookup.name}: the place of {lookup.table} is not known in this lake yet",
        "run `capstan plan` or `capstan replay` once, which look it up in the catalog",
        lookup=lookup.name,
        table=lookup.table,
    )


def _pin(lookup: Lookup, path: str, version: int | None) -> Pin:
    if not is_table(path):
        raise _refusal(lookup, f"there is no Delta table at {path}")
    newest = delta.open_table(path)
    if version is None or version == newest.version():
        return Pin(str(newest.metadata().id), newest.version())
    table = None if version > newest.version() else _at_version(path, version)
    pinned = LookupInput(
        lookup, path, Pin("" if table is None else str(table.metadata().id), version)
    )
    pinned.require_readable()
    return pinned.pin


def _at_version(path: str, version: int) -> OpenedTable | None:
    """The table at a version; None when its log no longer reaches back so far."""
    try:
        return delta.open_table(path, version)
    except SystemFailureError as error:
        if error.code == "CAP-TABLE":
            return None
        raise


def _missing_file(path: str, table: OpenedTable) -> str | None:
    files = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    sizes = sizes_of([delta.resolve_path(path, file) for file in files])
    return next((file.rpartition("/")[2] for file, size in sizes.items() if size is None), None)


def _refusal(lookup: Lookup, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-LOOKUP",
        f"lookup {lookup.name}: {problem}",
        "restore the table or the version; or replay again with a version that can be read",
        lookup=lookup.name,
        table=lookup.table,
    )
