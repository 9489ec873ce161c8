"""What a list of runs is narrowed to, and its order, as the query of a page says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from urllib.parse import urlencode

SORTS = ("when", "run", "state", "stream", "table")
"""What runs can be sorted by; with `-` before it, descending."""

NEWEST_FIRST = "-when"


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Conditions that all hold for the runs of a list; an empty one is none."""

    text: str = ""  # part of the name of the run, a stream or the table, in any case
    stream: str = ""  # one of those that the run reads
    table: str = ""  # as `short_target` names it
    state: str = ""
    since: date | None = None  # the first day of the last step, in UTC
    until: date | None = None  # the last day of it
    sort: str = NEWEST_FIRST

    @property
    def narrows(self) -> bool:
        """Whether it leaves out any runs."""
        return self != RunSearch(sort=self.sort)

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of the query that says it; without what is as usual."""
        values = {name: str(getattr(self, name) or "") for name in self.__slots__}
        return {k: v for k, v in values.items() if v and (k, v) != ("sort", NEWEST_FIRST)}

    @property
    def sorted_by(self) -> tuple[str, bool]:
        """One of `SORTS`, and whether it is descending."""
        return self.sort.removeprefix("-"), self.sort.startswith("-")

    def by(self, column: str) -> str:
        """The query of the same runs sorted by a column, or the other way round if they are."""
        name, descending = self.sorted_by
        down = not descending if name == column else column == "when"
        return urlencode(replace(self, sort=f"{'-' if down else ''}{column}").fields)
