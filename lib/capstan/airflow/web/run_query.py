"""The query of the list of runs: what is looked for, in which order, and which page."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from capstan.reporting.lists.run_search import NEWEST_FIRST, SORTS, RunSearch


def _none_for_empty(value: object) -> object:
    """A form sends its empty fields, too."""
    return None if value == "" else value


Name = Annotated[str, Field(max_length=2000)]
Day = Annotated[date | None, BeforeValidator(_none_for_empty)]


class RunQuery(BaseModel):
    """The fields of a query, checked; others are ignored."""

    model_config = ConfigDict(frozen=True)

    text: Annotated[str, Field(max_length=200)] = ""
    stream: Name = ""
    table: Name = ""
    state: Annotated[str, Field(max_length=40)] = ""
    since: Day = None
    until: Day = None
    sort: Annotated[str, Field(pattern=f"^-?({'|'.join(SORTS)})$")] = NEWEST_FIRST
    page: Annotated[int, Field(ge=1, le=100_000)] = 1

    @property
    def search(self) -> RunSearch:
        """What is looked for."""
        return RunSearch(**self.model_dump(exclude={"page"}))


Asked = Annotated[RunQuery, Query()]
