"""Listings: rows about the lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Listing(Sequence[Mapping[str, object]]):
    """Rows about the lake: its streams, or its runs."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        return iter(self.rows)

    def to_json(self) -> list[dict[str, object]]:
        """The rows, as the command line's `--json` prints them."""
        return [dict(row) for row in self.rows]
