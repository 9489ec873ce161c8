"""What an operator is: its description, which is a value, and its running form, which has state.

The shape is that of LaminarDB's `Operator` and of its later `OperatorGraph`: whole batches on
numbered ports, timers, watermarks, and every call may fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import pyarrow as pa

from capstan.pipeline.graph.events import Timer


@dataclass(frozen=True, slots=True)
class Key:
    """What the state of an operator is kept by: rows with equal values have to meet.

    Attributes:
        columns: For each port the names of its key columns, in the same order. No columns means
            that all rows have to meet: `GLOBAL`.
    """

    columns: tuple[tuple[str, ...], ...] = ((),)

    @classmethod
    def of(cls, *columns: str) -> Self:
        """The same key columns on every port."""
        return cls((columns,))

    @classmethod
    def of_ports(cls, *columns: Sequence[str]) -> Self:
        """Key columns that are named differently on each port.

        Raises:
            ValueError: The ports have different numbers of them.
        """
        if len({len(names) for names in columns}) != 1:
            message = f"every port needs as many key columns as the others: {columns}"
            raise ValueError(message)
        return cls(tuple(tuple(names) for names in columns))

    @property
    def is_global(self) -> bool:
        """Whether all rows have to meet."""
        return not self.columns[0]

    def on(self, port: int) -> tuple[str, ...]:
        """The key columns of the rows that arrive on `port`."""
        return self.columns[port] if len(self.columns) > 1 else self.columns[0]

    def __str__(self) -> str:
        if self.is_global:
            return "all rows together"
        return " = ".join(dict.fromkeys(", ".join(names) for names in self.columns))


GLOBAL: Final = Key()
"""The key of an operator that needs all rows together."""


class Context(Protocol):
    """What an operator sees of its node, and what it puts out through.

    Attributes:
        node: The name of the node.
        worker: The replay worker that runs it.
        port: The input that the batch came by, from 0 in the order of the edges.
        time: The time of the event, of the timer, or the watermark that is being handled.
        watermark: The node's own watermark, or None while it has none.
    """

    node: str
    worker: int
    port: int
    time: int
    watermark: int | None

    def emit(self, batch: pa.RecordBatch, time: int | None = None) -> None:
        """Put out rows to all readers; those without rows are not sent.

        Args:
            batch: Rows with the columns that the node declares.
            time: Of the event; `context.time` when it is not given.
        """

    def late(self, batch: pa.RecordBatch) -> None:
        """Put aside rows that came behind the watermark."""

    def side(self, name: str, batch: pa.RecordBatch) -> None:
        """Put out rows beside the main output, under a name."""

    def change(self, batch: pa.RecordBatch, weight: int = 1) -> None:
        """Put out a change of a table: rows that came (+1) or went (-1)."""

    def replace(self, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Put out both halves of a change of rows, or neither."""

    def set_timer(self, time: int, tag: str = "") -> None:
        """Ask for `on_timer` once the node's watermark has reached `time`; once per time and tag.

        Raises:
            ValueError: Asked for from `on_timer`, for a time that is not after the one that fires.
        """

    def advance_watermark(self, to: int) -> None:
        """Declare that this node puts out nothing before `to` any more."""


class Operator(ABC):
    """The running form of an operator: one per node and worker.

    Every method may raise; the run then fails, and the error names node, time and worker.

    Attributes:
        version: Of the form of its state; `restore` is told which one it gets.
        state_ports: Where the state is tables that `tables_to_bytes` wrote: for each of them the
            port by whose key columns its rows are kept, or None for one that is the same on every
            worker. None for any other state; such a state cannot be dealt to other workers.
    """

    version: int = 1
    state_ports: tuple[int | None, ...] | None = None

    @property
    def form(self) -> str:
        """What tells forms of its state apart: `version`, and that of whatever writes parts of it.

        Under another one, code that has changed may go on from the state: `restore` migrates it.
        """
        return str(self.version)

    @abstractmethod
    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        """Take in the rows of one event, from `context.port`, at `context.time`."""

    # Not abstract: most operators have no timers, no interest in watermarks and no state.
    def on_timer(self, timer: Timer, context: Context) -> None:  # noqa: B027
        """Handle a timer that is due; timers of a node fire in order of time and tag.

        A stage of a pipeline in which some operator has this method takes in the rows of one time
        after another, with the timers in between that are due. What other operators of the stage
        put out comes when they do.
        """

    def on_watermark(self, watermark: int, context: Context) -> None:  # noqa: B027
        """Learn that rows before `watermark` are complete; comes after all rows and timers."""

    def hold(self) -> int | None:
        """The least time at which it may still put something out, if before the watermark."""
        return None

    def checkpoint(self) -> bytes:
        """The state, as bytes that `restore` reads."""
        return b""

    def restore(self, version: int, state: bytes) -> None:
        """Take back a state, all of it or, when it raises, nothing.

        Raises:
            ValueError: It is of a version that is not known, or not a state at all.
        """
        if state:
            message = f"an operator without state was given {len(state)} bytes of version {version}"
            raise ValueError(message)


class OperatorSpec(Protocol):
    """The description of an operator: a value that can be compared, shipped and shown.

    A graph holds descriptions, so that any number of executors can be made of it.
    """

    @property
    def key(self) -> Key | None:
        """What its state is kept by, or None when it has none."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns that it puts out, given those of its inputs in order of ports.

        Raises:
            ValueError: A column that it needs is not there, or not of a fitting type.
        """

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns whose value a row keeps from the row, or the rows, that it was made of."""

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form with no state yet."""

    def describe(self) -> str:
        """One line for people."""


class Stateless:
    """What descriptions of operators without state have in common."""

    __slots__ = ()

    @property
    def key(self) -> Key | None:
        """Nothing: there is no state to keep."""
        return None


def check_version(found: int, known: int = 1) -> None:
    """Refuse a state of another version than the one that is known.

    Raises:
        ValueError: It is another one.
    """
    if found != known:
        message = f"a state of version {found}, and only version {known} is known"
        raise ValueError(message)


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator as a checkpoint has it.

    Attributes:
        operator_id: Stable number of the operator, from its node's name.
        version: Of the form of `data`.
        data: What `Operator.checkpoint` gave.
        signature: What the state depends on, see `capstan.pipeline.graph.signature`; None where it
            is not known, as of an operator that no graph describes.
    """

    operator_id: int
    version: int
    data: bytes
    signature: Mapping[str, str] | None = None
