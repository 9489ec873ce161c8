"""What flows through a graph, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

TIME: Final = "_time"
"""The column that holds each row's own time (int64), where the rows of a batch have several."""

WEIGHT: Final = "_weight"
"""The column of a change that says by how much its row counts: +1 is put in, -1 is taken out."""

END: Final = 2**63 - 1
"""The watermark after which nothing comes any more."""


@dataclass(frozen=True, slots=True)
class Event:
    """A batch of rows at a time.

    Attributes:
        time: The time of all rows; where the batch has a column `_time`, that column is each
            row's time, and this is at most the least of them. In the unit of the coordinate.
        batch: The rows.
    """

    time: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """A wish of an operator to be called when its node's watermark has reached a time.

    Attributes:
        time: Fires when the watermark is at least this.
        tag: The operator's own word for what is due; orders timers of one time.
    """

    time: int
    tag: str = ""


class OutputKind(StrEnum):
    """What an output is; all but `data` stay at the node that put them out."""

    DATA = "data"
    LATE = "late"
    SIDE = "side"
    CHANGE = "change"


@dataclass(frozen=True, slots=True, order=True)
class OutputKey:
    """Where an output was collected.

    Attributes:
        node: The name of the node.
        kind: What it is.
        name: The name of a side output, else empty.
    """

    node: str
    kind: OutputKind = OutputKind.DATA
    name: str = ""
