"""Listings: rows about the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capstan.core.json_object import Json


@dataclass(frozen=True, slots=True)
class Listing(Sequence[Json]):
    """Rows about the lake: its streams, or its runs."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Json, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def to_json(self) -> list[dict[str, object]]:
        """The rows, as the command line's `--json` prints them."""
        return [dict(row) for row in self.rows]
