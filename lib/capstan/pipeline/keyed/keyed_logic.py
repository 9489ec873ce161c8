"""A stateful logic as an operator of a graph: called once for each row, in order of time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.graph.operator import Context, Key, Operator, check_version
from capstan.pipeline.keyed.keyed_operator import KeyedOperator
from capstan.pipeline.keyed.messages import Data, Epoch, Message
from capstan.pipeline.keyed.stateful_functions import SomeLogic, StatefulLogic
from capstan.pipeline.operators.ordering import check_sortable, ordered
from capstan.pipeline.operators.time_buffer import (
    RowBuffer,
    emit_timed,
    field_of,
    is_timed,
    known,
    on_time,
    unique,
    with_time,
)
from capstan.pipeline.state.codec import Encoded

CODEC: Final = "#codec"
VERSION: Final = "#version"
STATE: Final = "#state"
_STATE_FIELDS: Final = (
    pa.field(CODEC, pa.string()),
    pa.field(VERSION, pa.int32()),
    pa.field(STATE, pa.binary()),
)


@dataclass(frozen=True, slots=True)
class KeyedLogic:
    """Calls a logic for each row whose time is complete, in order of time.

    Rows at one time come in the order of the columns `ties`, then of all columns: never in the
    order of arrival. After the rows before a watermark `w` comes the epoch `w - 1`, and before the
    rows of a key at `t` the epoch `t - 1`, for that key alone. So batches and watermarks make no
    difference, if the logic keeps to what `StatefulLogic.on_epoch` asks of it. `on_schedule` is
    never called: what a replay puts out may not depend on the clock.

    The key of a record is the value of its key column, or a tuple where there are several; its
    value is likewise that of `columns`. What the logic puts out has the columns `output`, again as
    a value or a tuple, beside the key columns.

    Attributes:
        logic: What is done.
        by: The key columns.
        columns: What the logic sees of a row.
        output: The columns that it puts out, without those of the key.
        ties: Columns that order rows of one time.
    """

    logic: SomeLogic
    by: tuple[str, ...]
    columns: tuple[str, ...]
    output: pa.Schema
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.by or not self.columns or not self.output.names:
            message = "a keyed logic needs key columns, columns to see and columns to put out"
            raise ValueError(message)

    @property
    def key(self) -> Key:
        """The key columns."""
        return Key.of(*self.by)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The key columns, those of `output`, perhaps `_time`.

        Raises:
            ValueError: A column is not there, comes out twice, or rows cannot be ordered by it.
        """
        (schema,) = known(inputs)
        for column in (*self.columns, *self.ties):
            field_of(with_time(schema), column)
        used = _used(schema, self)
        check_sortable(used, used.names)
        made = pa.schema([*(field_of(schema, name) for name in self.by), *self.output])
        return unique(with_time(made) if is_timed(schema) else made)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns."""
        return frozenset(self.by)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form without state."""
        return _KeyedLogicOperator(self, inputs)

    def describe(self) -> str:
        """One line for people."""
        return f"{type(self.logic).__name__} on {', '.join(self.columns)}"


class _KeyedLogicOperator(Operator):
    """Keeps rows that are not complete, the states by key, and the last epoch."""

    state_ports = (0, 0, None)

    def __init__(self, spec: KeyedLogic, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = known(inputs)
        self._spec = spec
        self._schema = with_time(spec.output_schema(inputs))
        self._timed = is_timed(schema)
        self._rows = RowBuffer(_used(schema, spec))
        self._keys = pa.schema([schema.field(name) for name in spec.by])
        self._minds_epochs = type(spec.logic).on_epoch is not StatefulLogic.on_epoch
        self._made: list[Message] = []
        name = f"logic {type(spec.logic).__name__}"
        self._operator: KeyedOperator[object] = KeyedOperator(
            operator_id(name), spec.logic, self._made.append, name
        )

    @property
    def form(self) -> str:
        return f"{self.version}, of the logic {self._spec.logic.version}"

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context, 1)
        if rows is not None:
            self._rows.add(rows.select(self._rows.schema.names))

    def on_watermark(self, watermark: int, context: Context) -> None:
        rows = self._rows.take_before(watermark)
        handle = self._operator.handle
        if rows.num_rows:
            rows = ordered(rows, [(name, "ascending") for name in (TIME, *self._spec.ties)])
            keys, values = _records(rows, self._spec.by), _records(rows, self._spec.columns)
            times = rows.column(TIME).to_pylist()
            records = map(Data, keys, values, times)
            for record in self._reminded(records) if self._minds_epochs else records:
                handle(record)
        handle(Epoch(END if watermark == END else watermark - 1))
        made = [message for message in self._made if isinstance(message, Data)]
        self._made.clear()
        if made:
            emit_timed(self._table(made), context, timed=self._timed)

    def _reminded(self, records: Iterable[Data[object]]) -> Iterator[Data[object]]:
        """The records; the first of a key at a time once the epoch before has come for the key."""
        last: dict[Hashable, int | None] = {}
        for record in records:
            key, time = record.key, record.time
            if time is not None and last.get(key) != time:
                last[key] = time
                self._operator.remind(key, time - 1)
            yield record

    def checkpoint(self) -> bytes:
        states = self._operator.store.snapshot()
        found = list(states.values())
        columns = [
            *_columns(list(states), self._keys),
            pa.array([state.codec for state in found], pa.string()),
            pa.array([state.version for state in found], pa.int32()),
            pa.array([state.data for state in found], pa.binary()),
        ]
        kept = pa.Table.from_arrays(columns, schema=pa.schema([*self._keys, *_STATE_FIELDS]))
        edge = pa.table({"epoch": pa.array([self._operator.epoch], pa.int64())})
        return tables_to_bytes([self._rows.table(), kept, edge])

    def restore(self, version: int, state: bytes) -> None:
        check_version(version)
        rows, kept, edge = tables_from_bytes(state)
        written = zip(*(kept.column(f.name).to_pylist() for f in _STATE_FIELDS), strict=True)
        states = {
            key: Encoded(*each)
            for key, each in zip(_records(kept, self._spec.by), written, strict=True)
        }
        read = self._operator.store.all_read(states)
        self._operator.store.states = read
        self._operator.epoch = edge.column("epoch")[0].as_py()
        self._rows.replace(rows)

    def _table(self, made: list[Data[object]]) -> pa.Table:
        time = pa.array([message.time for message in made], pa.int64())
        if time.null_count:
            text = "the logic put out a record without a time"
            raise ValueError(text)
        keys = _columns([message.key for message in made], self._keys)
        values = _columns([message.value for message in made], self._spec.output)
        names = [*self._keys.names, *self._spec.output.names, TIME]
        return pa.table([*keys, *values, time], names).select(self._schema.names)


def _used(schema: pa.Schema, spec: KeyedLogic) -> pa.Schema:
    timed = with_time(schema)
    names = dict.fromkeys([*spec.by, *spec.columns, *spec.ties, TIME])
    return pa.schema([field_of(timed, name) for name in names])


def _records(rows: pa.Table, columns: Sequence[str]) -> list[Hashable]:
    """What Python sees of some columns, row by row: a value, or a tuple where there are several."""
    found = [rows.column(name).to_pylist() for name in columns]
    return found[0] if len(found) == 1 else list(zip(*found, strict=True))


def _columns(records: Sequence[object], schema: pa.Schema) -> list[pa.Array]:
    """What `_records` took apart, as columns."""
    if len(schema) == 1:
        return [pa.array(records, schema.field(0).type)]
    if not records:
        return [pa.array([], field.type) for field in schema]
    columns = zip(*records, strict=True)
    return [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
