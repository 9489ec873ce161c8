"""Few cells, compared in this process: the audit of a small run needs no join in Spark.

Only equality is told here. Where cells differ, or are many, Spark compares them and finds the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame

from capstan.audit.row_view import place_of
from capstan.audit.table_shape import Shape
from capstan.core.times.region import Region
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape

MOST = 20_000
"""The most cells, and events that they are summed from."""

Place = tuple[int | None, ...]
"""The worker of a cell and its coordinates; None for what the table does not keep."""
Content = tuple[int, int, int]
"""The records of a cell and the two sums of their hashes."""


def promised(
    tape: Tape, cut: Cut, workers: Iterable[int], region: Region, like: Shape
) -> dict[Place, Content] | None:
    """The cells that the tape's index promises a table of this shape; None where it has many."""
    kept = like.times_for(tape.time_type)
    found: dict[Place, Content] = {}
    events = index.messages(tape, cut, workers, region)
    for number, each in enumerate(events):
        if number == MOST:
            return None
        times = (None if k is None else t for k, t in zip(kept, each.time, strict=True))
        place = (None if like.worker is None else each.worker, *times)
        records, h1, h2 = found.get(place, (0, 0, 0))
        found[place] = records + each.records, h1 + each.h1, h2 + each.h2
    return {place: (n, _signed(h1), _signed(h2)) for place, (n, h1, h2) in found.items()}


def totals_if_equal(
    wanted: Mapping[Place, Content] | None, stored: DataFrame, counted: Sequence[str]
) -> dict[str, int] | None:
    """What `cells.count_cells` tells of cells of which none differs; None where any may.

    Args:
        wanted: What should be there; None where that is too much to be told here.
        stored: The cells of the table, as `cells.view_cells` gives them.
        counted: Columns of `stored` that are summed up as well.

    Returns:
        By name: `cells` with rows, rows as `table`, and the sums.
    """
    if wanted is None:
        return None
    # Of more cells than are wanted one differs.
    rows = stored.limit(len(wanted) + 2).toArrow().to_pylist()
    names = place_of(stored)
    cells = {
        tuple(row[name] for name in names): (row["records"], row["h1"], row["h2"])
        for row in rows
        if row["records"]
    }
    if cells != {place: content for place, content in wanted.items() if content[0]}:
        return None
    sums = {name: sum(row[name] or 0 for row in rows) for name in counted}
    return {"cells": len(cells), "table": sum(n for n, _, _ in cells.values()), **sums}


def _signed(value: int) -> int:
    """A sum modulo 2^64, as a BIGINT."""
    rest = value % 2**64
    return rest - 2**64 if rest >= 2**63 else rest
