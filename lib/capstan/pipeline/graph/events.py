"""Events, timers and outputs of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

TIME: Final = "_time"
"""Column with each row's own time (int64), for batches whose rows have several times."""

WEIGHT: Final = "_weight"
"""Column with the weight of a changed row: +1 for an insertion, -1 for a deletion."""

END: Final = 2**63 - 1
"""The final watermark; nothing follows it."""

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class Event:
    """A batch of rows at a time.

    Attributes:
        time: Time of all rows, in the unit of the coordinate. When the batch has a column `_time`,
            that column has each row's time, and this is at most the least of them.
        batch: The rows.
    """

    time: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """A request of an operator to be called when its node's watermark reaches a time.

    Attributes:
        time: The timer fires when the watermark is at least this.
        tag: Label chosen by the operator; orders timers with the same time.
    """

    time: int
    tag: str = ""


class OutputKind(StrEnum):
    """Kind of an output; all kinds but `data` stay at the node that emitted them."""

    DATA = "data"
    LATE = "late"
    SIDE = "side"
    CHANGE = "change"


@dataclass(frozen=True, slots=True, order=True)
class OutputKey:
    """Identity of a collected output; `name` is that of a side output, otherwise empty."""

    node: str
    kind: OutputKind = OutputKind.DATA
    name: str = ""


def runs_of(rows: Rows, values: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each run of equal values, with the value."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    runs = pc.run_end_encode(values)
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, rows.slice(start, end - start)
        start = end
