"""A stateful logic as an operator of a graph, called for each row in order of time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic

import pyarrow as pa

from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.operator import KeyedBy, Operator, OperatorContext, require
from capstan.pipeline.keyed.stateful_functions import Data, SomeLogic, State, StatefulLogic
from capstan.pipeline.operators.ordering import check_sortable, ordered
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    RowBuffer,
    emit_timed,
    field_of,
    input_schemas,
    is_timed,
    unique,
    with_time,
)
from capstan.pipeline.state.codec import Encoded, codec_named
from capstan.pipeline.state.errors import KeyChanged, LateRecord, StateLost, StateVersion

CODEC: Final = "#codec"
VERSION: Final = "#version"
STATE: Final = "#state"
_STATE_FIELDS: Final = (
    pa.field(CODEC, pa.string()),
    pa.field(VERSION, pa.int32()),
    pa.field(STATE, pa.binary()),
)


@dataclass(frozen=True, slots=True)
class KeyedLogic(KeyedBy):
    """Calls a logic for each row whose time is complete, in order of time.

    Rows with the same time are ordered by the columns `ties`, then by all columns, never by
    arrival. After the rows before a watermark `w` comes the epoch `w - 1`. Before the rows of a key
    at `t` comes the epoch `t - 1`, for that key alone. So results do not depend on batches and
    watermarks, if the logic follows the rules of `StatefulLogic.on_epoch`. `on_schedule` is never
    called, because the output of a replay must not depend on the clock.

    The key of a record is the value of its key column, or a tuple for several. Its value is the
    value or tuple of `columns`. The logic emits a value or a tuple for the columns `output`; the
    key columns are added.

    Attributes:
        logic: The logic.
        by: Key columns.
        columns: Columns that the logic sees.
        output: Columns that the logic emits, without the key columns.
        ties: Columns that order rows with the same time.
    """

    logic: SomeLogic
    by: tuple[str, ...]
    columns: tuple[str, ...]
    output: pa.Schema
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(
            self.by and self.columns and self.output.names,
            "a keyed logic needs key columns, input columns and output columns",
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the key columns, those of `output`, and `_time` if timed."""
        (schema,) = input_schemas(inputs)
        for column in (*self.columns, *self.ties):
            field_of(with_time(schema), column)
        used = _used(schema, self)
        check_sortable(used, used.names, lists=True)
        columns = pa.schema([*(field_of(schema, name) for name in self.by), *self.output])
        return unique(with_time(columns) if is_timed(schema) else columns)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _KeyedLogicOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"{type(self.logic).__name__} on {', '.join(self.columns)}"


class KeyedOperator(Generic[State]):
    """Calls a logic, and has its states; follows Malstrom's `stateful_op`."""

    def __init__(
        self,
        name: str,
        logic: StatefulLogic[object, State, object],
        send: Callable[[Data[object]], None],
    ) -> None:
        """Create an operator without states, which errors name."""
        self.name = name
        self.states: dict[Hashable, State] = {}
        self.epoch: int | None = None  # the last that all keys had
        self._logic = logic
        self._send = send
        self._key: Hashable = None
        self._handling = False

    def handle_record(self, record: Data[object]) -> None:
        """Handle a record."""
        states, key = self.states, record.key
        self._key, self._handling = key, True
        try:
            state = self._logic.on_data(record, states.get(key), self)
        finally:
            self._handling = False
        if state is not None:
            states[key] = state
        else:
            states.pop(key, None)

    def handle_epoch(self, epoch: int) -> None:
        """Handle an epoch for all keys."""
        self._logic.on_epoch(epoch, self.states, self)
        self.epoch = epoch if self.epoch is None else max(self.epoch, epoch)

    def handle_epoch_of(self, key: Hashable, epoch: int) -> None:
        """Handle an epoch for a single key with state, before all other keys."""
        states = self.states
        if key not in states or (self.epoch is not None and epoch <= self.epoch):
            return
        state = {key: states[key]}
        self._logic.on_epoch(epoch, state, self)
        if key not in state:
            del states[key]
        states.update(state)

    def emit(self, key: Hashable, value: object, time: int | None) -> None:
        """Emit a record; see `LogicOutput`."""
        if self._handling and key != self._key:
            message = f"{self.name}: emitted key {key!r} for a record of key {self._key!r}"
            raise KeyChanged.create(
                message, operator=self.name, key=repr(self._key), found=repr(key)
            )
        if self.epoch is not None and time is not None and time <= self.epoch:
            message = f"{self.name}: emitted a record at {time} after the epoch {self.epoch}"
            raise LateRecord.create(message, operator=self.name, time=time, epoch=self.epoch)
        self._send(Data(key, value, time))

    def snapshot(self) -> dict[Hashable, Encoded]:
        """Encode all states."""
        return {key: self.encode(key, state) for key, state in self.states.items()}

    def restore(self, states: Mapping[Hashable, Encoded], epoch: int | None) -> None:
        """Continue from the states of a snapshot, as they were after an epoch."""
        self.states = {key: self.decode(key, state) for key, state in states.items()}
        self.epoch = epoch

    def encode(self, key: Hashable, state: State) -> Encoded:
        """Encode a state."""
        codec = self._logic.codec
        try:
            return Encoded(codec.name, self._logic.version, codec.encode(state))
        except Exception as error:
            raise self._lost("encoded", key, error) from error

    def decode(self, key: Hashable, state: Encoded) -> State:
        """Decode a state, and migrate it if it has another version."""
        logic = self._logic
        codec = logic.codec if state.codec == logic.codec.name else codec_named(state.codec)
        try:
            value = codec.decode(state.data)
        except Exception as error:
            raise self._lost("decoded", key, error) from error
        if state.version == logic.version:
            return value  # type: ignore[return-value] # the logic wrote it itself
        try:
            return logic.migrate(state.version, value)
        except Exception as error:
            raise StateVersion.create(
                f"{self.name}: the state has version {state.version}, the logic has "
                f"{logic.version}: {error}",
                operator=self.name,
                found=state.version,
                version=logic.version,
            ) from error

    def _lost(self, action: str, key: Hashable, error: Exception) -> StateLost:
        cause = f"{type(error).__name__}: {error}"
        message = f"{self.name}: the state of key {key!r} cannot be {action}: {cause}"
        return StateLost.create(message, operator=self.name, key=repr(key), cause=cause)


class _KeyedLogicOperator(BufferedOperator):
    """State: incomplete rows, the states by key, and the last epoch."""

    state_ports = (0, 0, None)

    def __init__(self, spec: KeyedLogic, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._spec = spec
        self._schema = with_time(spec.output_schema(inputs))
        self._timed = is_timed(schema)
        self._rows = RowBuffer(_used(schema, spec))
        self._buffers = (self._rows,)
        self._keys = pa.schema([schema.field(name) for name in spec.by])
        self._uses_epochs = type(spec.logic).on_epoch is not StatefulLogic.on_epoch
        self._emitted: list[Data[object]] = []
        name = f"logic {type(spec.logic).__name__}"
        self._operator: KeyedOperator[object] = KeyedOperator(
            name, spec.logic, self._emitted.append
        )

    @property
    def form(self) -> str:
        return f"{self.version}, of the logic {self._spec.logic.version}"

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        rows = self._rows.take_before(watermark)
        if rows.num_rows:
            rows = ordered(rows, [(name, "ascending") for name in (TIME, *self._spec.ties)])
            keys, values = _records(rows, self._spec.by), _records(rows, self._spec.columns)
            times = rows.column(TIME).to_pylist()
            records = map(Data, keys, values, times)
            for record in self._with_epochs(records) if self._uses_epochs else records:
                self._operator.handle_record(record)
        self._operator.handle_epoch(END if watermark == END else watermark - 1)
        emitted = self._emitted.copy()
        self._emitted.clear()
        if emitted:
            emit_timed(self._to_table(emitted), context, timed=self._timed)

    def _with_epochs(self, records: Iterable[Data[object]]) -> Iterator[Data[object]]:
        """Yield the records; before the first one of a key at a time, handle the key's epoch."""
        last: dict[Hashable, int | None] = {}
        for record in records:
            key, time = record.key, record.time
            if time is not None and last.get(key) != time:
                last[key] = time
                self._operator.handle_epoch_of(key, time - 1)
            yield record

    def _tables(self) -> Sequence[pa.Table]:
        states = self._operator.snapshot()
        encoded = list(states.values())
        columns = [
            *_columns(list(states), self._keys),
            pa.array([state.codec for state in encoded], pa.string()),
            pa.array([state.version for state in encoded], pa.int32()),
            pa.array([state.data for state in encoded], pa.binary()),
        ]
        stored = pa.Table.from_arrays(columns, schema=pa.schema([*self._keys, *_STATE_FIELDS]))
        edge = pa.table({"epoch": pa.array([self._operator.epoch], pa.int64())})
        return stored, edge

    def _restore(self, tables: Sequence[pa.Table]) -> None:
        stored, edge = tables
        keys = _records(stored, self._spec.by)
        fields = zip(*(stored.column(f.name).to_pylist() for f in _STATE_FIELDS), strict=True)
        states = {key: Encoded(*values) for key, values in zip(keys, fields, strict=True)}
        self._operator.restore(states, edge.column("epoch")[0].as_py())

    def _to_table(self, records: list[Data[object]]) -> pa.Table:
        time = pa.array([message.time for message in records], pa.int64())
        if time.null_count:
            text = "the logic emitted a record without a time"
            raise ValueError(text)
        keys = _columns([message.key for message in records], self._keys)
        values = _columns([message.value for message in records], self._spec.output)
        names = [*self._keys.names, *self._spec.output.names, TIME]
        return pa.table([*keys, *values, time], names).select(self._schema.names)


def _used(schema: pa.Schema, spec: KeyedLogic) -> pa.Schema:
    timed = with_time(schema)
    names = dict.fromkeys([*spec.by, *spec.columns, *spec.ties, TIME])
    return pa.schema([field_of(timed, name) for name in names])


def _records(rows: pa.Table, columns: Sequence[str]) -> list[Hashable]:
    """Return the Python values of columns, row by row; tuples if there are several columns."""
    values = [rows.column(name).to_pylist() for name in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _columns(records: Sequence[object], schema: pa.Schema) -> list[pa.Array]:
    """Convert the result of `_records` back to columns."""
    if len(schema) == 1:
        return [pa.array(records, schema.field(0).type)]
    if not records:
        return [pa.array([], field.type) for field in schema]
    columns = zip(*records, strict=True)
    return [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
