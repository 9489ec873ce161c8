"""Comparison of few cells in this process, without a Spark join, for audits of small runs.

Only equality is detected here. If cells differ or are many, Spark compares them and their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame

from capstan.audit.row_view import place_of
from capstan.audit.table_shape import Shape
from capstan.core.times.region import Region
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape

MAX_CELLS = 20_000
"""The most cells, and the most events that they are summed from."""

Place = tuple[int | None, ...]
"""The worker and coordinates of a cell; None if the table lacks them."""
Content = tuple[int, int, int]
"""The number of records of a cell and the two sums of their hashes."""


def promised(
    tape: Tape, cut: Cut, workers: Iterable[int], region: Region, like: Shape
) -> dict[Place, Content] | None:
    """The cells that the index promises for a table of this shape; None if there are many."""
    columns = like.times_for(tape.time_type)
    cells: dict[Place, Content] = {}
    events = index.messages(tape, cut, workers, region)
    for number, event in enumerate(events):
        if number == MAX_CELLS:
            return None
        times = (None if c is None else t for c, t in zip(columns, event.time, strict=True))
        place = (None if like.worker is None else event.worker, *times)
        records, h1, h2 = cells.get(place, (0, 0, 0))
        cells[place] = records + event.records, h1 + event.h1, h2 + event.h2
    return {place: (n, _signed(h1), _signed(h2)) for place, (n, h1, h2) in cells.items()}


def totals_if_equal(
    expected: Mapping[Place, Content] | None, stored: DataFrame, summed: Sequence[str]
) -> dict[str, int] | None:
    """The totals of `cells.count_cells` if all cells are equal; None if any may differ.

    By name: `cells` with rows, rows as `table`, and the sums of `summed`. `expected` is None if
    there are too many cells.
    """
    if expected is None:
        return None
    # With more cells than expected, one of them differs.
    rows = stored.limit(len(expected) + 2).toArrow().to_pylist()
    names = place_of(stored)
    cells = {
        tuple(row[name] for name in names): (row["records"], row["h1"], row["h2"])
        for row in rows
        if row["records"]
    }
    if cells != {place: content for place, content in expected.items() if content[0]}:
        return None
    sums = {name: sum(row[name] or 0 for row in rows) for name in summed}
    return {"cells": len(cells), "table": sum(n for n, _, _ in cells.values()), **sums}


def _signed(value: int) -> int:
    """A sum modulo 2^64, as a BIGINT."""
    unsigned = value % 2**64
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
