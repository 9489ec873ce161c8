"""The places of tables that ledgers name by an earlier path.

Ledgers name a table by the path at which Capstan has first written to it. The ledger `tables` has a
row for each table that is known by a name in a catalog, or that was moved: with its Delta table id,
which stays the same. Without such rows, a table is where the ledgers say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

IN_LAKE = re.compile(r"/tables/([a-z][a-z0-9_]{0,63})\Z")
"""The end of the path of a lake's own table, with its name."""

_AGAIN = re.compile(r"(?P<path>.+);\d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """The present place of a table.

    Ledgers know it as `target`: its first path; at the first path of another table, with `;2` or a
    later number.
    """

    target: str
    path: str
    table: str
    name: str = ""  # in a catalog, as `normalised`; empty for none


@dataclass(frozen=True)
class Places:
    """The present places of tables, by the name that ledgers have for them."""

    recorded: tuple[Place, ...] = ()  # In the order in which they were; later supersede earlier.

    @cached_property
    def _by_target(self) -> dict[str, Place]:
        by_target: dict[str, Place] = {}
        for place in self.recorded:
            by_target.pop(place.target, None)
            by_target[place.target] = place
        return by_target

    @cached_property
    def _by_path(self) -> dict[str, Place]:
        return {place.path: place for place in self._by_target.values()}

    def __bool__(self) -> bool:
        return bool(self.recorded)

    def path_of(self, target: str) -> str:
        """The present path of a table, by its name in ledgers."""
        place = self._by_target.get(target)
        if place is not None:
            return place.path
        again = _AGAIN.fullmatch(target)
        return again["path"] if again and again["path"] in self._by_target else target

    def target_of(self, path: str) -> str:
        """The name in ledgers of the table at a path, which may not exist yet."""
        place = self._by_path.get(path)
        return self.unused_target(path) if place is None else place.target

    def unused_target(self, path: str) -> str:
        """The first name that no other table has, for a new table at a path."""
        target, number = path, 1
        while target in self._by_target:
            number += 1
            target = f"{path};{number}"
        return target

    def at(self, path: str) -> Place | None:
        """The table that was last recorded at a path."""
        return self._by_path.get(path)

    def of_table(self, table: str) -> list[Place]:
        """The places of the tables with an id, the newest last; several for copies of a table."""
        return [place for place in self._by_target.values() if place.table == table]

    def of_lake(self, name: str) -> list[str]:
        """The tables that may have had a name in a lake, of this or of earlier places."""
        return [each for each in self._by_target if each.endswith(f"/tables/{name}")]

    def named(self, name: str) -> Place | None:
        """The table that last had a name in a catalog, as `normalised`."""
        found = [place for place in self._by_target.values() if name and place.name == name]
        return found[-1] if found else None
