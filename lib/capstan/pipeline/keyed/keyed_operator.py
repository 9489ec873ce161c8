"""The states of one operator by key, and the operator that applies messages to them.

Follows Malstrom's `stateful_op`: every system message is passed on once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from capstan.pipeline.keyed.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Data,
    Epoch,
    Interrogate,
    Message,
)
from capstan.pipeline.keyed.stateful_functions import StatefulLogic
from capstan.pipeline.state.codec import Encoded, codec_named
from capstan.pipeline.state.errors import KeyChanged, LateRecord, Misplaced, StateLost, StateVersion

State = TypeVar("State")


class StateStore(Generic[State]):
    """The states of one operator."""

    def __init__(self, name: str, logic: StatefulLogic[object, State, object]) -> None:
        self.name = name
        self._logic = logic
        self.states: dict[Hashable, State] = {}

    def take(self, key: Hashable) -> Encoded | None:
        """Remove and return the state of a key, or None when it has none."""
        if key not in self.states:
            return None
        encoded = self.encode(key, self.states[key])
        del self.states[key]
        return encoded

    def put(self, key: Hashable, state: Encoded) -> None:
        """Store the state of a key, replacing its current one."""
        self.states[key] = self.decode(key, state)

    def snapshot(self) -> dict[Hashable, Encoded]:
        """Encode all states."""
        return {key: self.encode(key, state) for key, state in self.states.items()}

    def decode_all(self, states: Mapping[Hashable, Encoded]) -> dict[Hashable, State]:
        """Decode the states of a snapshot."""
        return {key: self.decode(key, state) for key, state in states.items()}

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


class KeyedOperator(Generic[State]):
    """Applies a logic to messages and to its states."""

    def __init__(
        self,
        operator_id: int,
        logic: StatefulLogic[object, State, object],
        send: Callable[[Message], None],
        name: str = "",
    ) -> None:
        """Create an operator without states; errors name it by `name`, or its number."""
        self.operator_id = operator_id
        self.store: StateStore[State] = StateStore(name or f"operator {operator_id}", logic)
        self.epoch: int | None = None  # the last that was passed on
        self._logic = logic
        self._send = send
        self._key: Hashable = None
        self._handling = False

    def handle(self, message: Message) -> None:
        """Handle one message; pass it on unless it is a record."""
        if isinstance(message, Data):
            self._data(message)
            return
        if isinstance(message, Epoch):
            self._logic.on_epoch(message.time, self.store.states, self)
            self.epoch = message.time if self.epoch is None else max(self.epoch, message.time)
        elif isinstance(message, Interrogate):
            keys = [key for key in self.store.states if message.moves(key)]
            message.reply.name_keys(self.operator_id, keys)
        elif isinstance(message, Collect):
            message.reply.give_state(self.operator_id, self.store.take(message.key))
        elif isinstance(message, Acquire):
            self._acquire(message)
        elif isinstance(message, AbsBarrier):
            message.reply.give_snapshot(self.operator_id, self.store.snapshot(), self.epoch)
        self._send(message)

    def handle_epoch(self, key: Hashable, epoch: int) -> None:
        """Handle an epoch for a single key with state, before all other keys."""
        states = self.store.states
        if key not in states or (self.epoch is not None and epoch <= self.epoch):
            return
        state = {key: states[key]}
        self._logic.on_epoch(epoch, state, self)
        if key not in state:
            del states[key]
        states.update(state)

    def schedule(self) -> None:
        """Call the logic's `on_schedule`."""
        self._logic.on_schedule(self.store.states, self)

    def emit(self, key: Hashable, value: object, time: int | None) -> None:
        """Emit a record; see `capstan.pipeline.keyed.stateful_functions.Output`."""
        if self._handling and key != self._key:
            message = f"{self.store.name}: emitted key {key!r} for a record of key {self._key!r}"
            raise KeyChanged.create(
                message, operator=self.store.name, key=repr(self._key), found=repr(key)
            )
        if self.epoch is not None and time is not None and time <= self.epoch:
            message = f"{self.store.name}: emitted a record at {time} after the epoch {self.epoch}"
            raise LateRecord.create(message, operator=self.store.name, time=time, epoch=self.epoch)
        self._send(Data(key, value, time))

    def _acquire(self, message: Acquire) -> None:
        state = message.states.get(self.operator_id)
        if state is None:
            return
        if message.key in self.store.states:
            text = f"{self.store.name}: a state arrived for {message.key!r}, which already has one"
            raise Misplaced.create(text, operator=self.store.name, twice=[repr(message.key)])
        self.store.put(message.key, state)

    def _data(self, message: Data[object]) -> None:
        states, key = self.store.states, message.key
        self._key, self._handling = key, True
        try:
            state = self._logic.on_data(message, states.get(key), self)
        finally:
            self._handling = False
        if state is not None:
            states[key] = state
        else:
            states.pop(key, None)
