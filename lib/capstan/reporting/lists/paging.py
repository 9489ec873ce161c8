"""Pages of lists that may be long, with the queries that lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import urlencode

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Item]):
    """One page of a list."""

    items: Sequence[Item]
    number: int  # from 1; one beyond the last page has no items
    size: int  # the most items of a page
    total: int  # items on all pages
    fields: Mapping[str, str] = field(default_factory=dict)  # of the query beside the page

    @property
    def last(self) -> int:
        """The number of the last page; 1 for an empty list."""
        return max(-(-self.total // self.size), 1)

    def query(self, number: int) -> str:
        """The query of another page of the same list."""
        return urlencode({**self.fields, **({} if number == 1 else {"page": number})})


def part_of(items: Sequence[Item], number: int, size: int) -> ListPage[Item]:
    """A page of a list that is there as a whole."""
    first = first_of(number, size)
    return ListPage(items[first : first + size], number, size, len(items))


def first_of(number: int, size: int) -> int:
    """The position of the first item of a page."""
    return (number - 1) * size
