"""Operators: the specification, a comparable value, and the running operator, which has state.

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
    """The key of an operator's state: the operator must see rows with equal keys together.

    Attributes:
        columns: Names of the key columns for each port, in the same order. No columns means that
            the operator must see all rows together: `GLOBAL`.
    """

    columns: tuple[tuple[str, ...], ...] = ((),)

    @classmethod
    def of(cls, *columns: str) -> Self:
        """Return a key with the same columns on every port."""
        return cls((columns,))

    @classmethod
    def of_ports(cls, *columns: Sequence[str]) -> Self:
        """Return a key whose columns have different names on each port.

        Raises:
            ValueError: The ports have different numbers of key columns.
        """
        require(
            len({len(names) for names in columns}) == 1,
            f"all ports need the same number of key columns: {columns}",
        )
        return cls(tuple(tuple(names) for names in columns))

    @property
    def is_global(self) -> bool:
        """Whether the operator must see all rows together."""
        return not self.columns[0]

    def on(self, port: int) -> tuple[str, ...]:
        """Return the key columns of the rows that arrive on `port`."""
        return self.columns[port] if len(self.columns) > 1 else self.columns[0]

    def __str__(self) -> str:
        if self.is_global:
            return "all rows together"
        return " = ".join(dict.fromkeys(", ".join(names) for names in self.columns))


GLOBAL: Final = Key()
"""The key of an operator that needs all rows together."""


class OperatorContext(Protocol):
    """An operator's view of its node, and its outputs.

    Attributes:
        port: Input port of the batch, from 0 in the order of the edges.
        time: Time of the current event or timer, or the current watermark.
        watermark: The node's own watermark, or None before the first one.
    """

    node: str
    worker: int
    port: int
    time: int
    watermark: int | None

    def emit(self, batch: pa.RecordBatch, time: int | None = None) -> None:
        """Emit rows to all readers, by default at `context.time`; empty batches are not sent."""

    def late(self, batch: pa.RecordBatch) -> None:
        """Divert rows that arrived behind the watermark."""

    def side(self, name: str, batch: pa.RecordBatch) -> None:
        """Emit rows to a named side output."""

    def change(self, batch: pa.RecordBatch, weight: int = 1) -> None:
        """Emit a change of a table: inserted (+1) or deleted (-1) rows."""

    def replace(self, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Emit both halves of a row update, or neither."""

    def set_timer(self, time: int, tag: str = "") -> None:
        """Request `on_timer` once the node's watermark reaches `time`; once per time and tag.

        Raises:
            ValueError: It is called from `on_timer`, for a time not after the firing one.
        """

    def advance_watermark(self, to: int) -> None:
        """Declare that this node emits nothing before `to` from now on."""


class Operator(ABC):
    """A running operator: one per node and worker.

    Every method may raise; the run then fails with an error that names node, time and worker.

    Attributes:
        version: Version of the state's format; `restore` receives that of the saved state.
        state_ports: For a state of tables written by `tables_to_bytes`: the port whose key columns
            partition each table, or None for a table that is the same on every worker. None for any
            other state, which cannot be rescaled.
    """

    version: int = 1
    state_ports: tuple[int | None, ...] | None = None

    @property
    def form(self) -> str:
        """Format of the state: `version`, and the formats of any nested states.

        Changed code may continue from a state of another format, because `restore` migrates it.
        """
        return str(self.version)

    @abstractmethod
    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        """Process the rows of one event, from `context.port`, at `context.time`."""

    # Not abstract: most operators have no timers, ignore watermarks and keep no state.
    def on_timer(self, timer: Timer, context: OperatorContext) -> None:  # noqa: B027
        """Handle a due timer; the timers of a node fire in order of time and tag.

        If any operator of a stage has this method, the stage processes one time after another, and
        fires due timers in between. The other operators of the stage emit in that order.
        """

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:  # noqa: B027
        """Handle a watermark: rows before it are complete. Comes after all rows and timers."""

    def hold(self) -> int | None:
        """Return the least time before the watermark at which the operator may still emit."""
        return None

    def checkpoint(self) -> bytes:
        """Return the state, as bytes that `restore` reads."""
        return b""

    def restore(self, version: int, state: bytes) -> None:
        """Restore a state: all of it, or nothing when it raises.

        Raises:
            ValueError: The version is unknown, or the bytes are not a state.
        """
        require(
            not state,
            f"an operator without state got {len(state)} bytes of state version {version}",
        )


class OperatorSpec(Protocol):
    """The specification of an operator: a value that can be compared, shipped and displayed.

    A graph holds specifications, so that any number of executors can be created from it.
    """

    @property
    def key(self) -> Key | None:
        """Key of the state, or None for an operator without state."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of the output, given those of its inputs in order of ports.

        Raises:
            ValueError: A required column is missing, or its type does not match.
        """

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """Return the columns whose values each row keeps from the rows it was made of."""

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""

    def describe(self) -> str:
        """Describe the operator in one line."""


class Stateless:
    """Base of specifications of operators without state."""

    __slots__ = ()

    @property
    def key(self) -> Key | None:
        """None: there is no state."""
        return None


class KeyedBy:
    """Base of specifications of operators whose key is the columns `by`, on every port."""

    __slots__ = ()
    by: tuple[str, ...]

    @property
    def key(self) -> Key:
        """The key columns."""
        return Key.of(*self.by)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns."""
        return frozenset(self.by)


def require(holds: object, problem: str) -> None:
    """Raise a `ValueError` that states the problem, unless something holds."""
    if not holds:
        raise ValueError(problem)


def check_version(version: int, known: int = 1) -> None:
    """Refuse a state whose version is not the known one, with a `ValueError`."""
    require(
        version == known, f"unsupported state version {version}; only version {known} is supported"
    )


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one operator in a checkpoint.

    Attributes:
        operator_id: Stable number, derived from the name of the operator's node.
        version: Format of `data`.
        signature: What the state depends on, see `capstan.pipeline.graph.signature`; None when it
            is unknown, as for an operator outside a graph.
    """

    operator_id: int
    version: int
    data: bytes
    signature: Mapping[str, str] | None = None
