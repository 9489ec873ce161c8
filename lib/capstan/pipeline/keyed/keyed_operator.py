"""The operator that calls a logic for one record or epoch after another, and has its states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from capstan.pipeline.keyed.stateful_functions import Data, StatefulLogic
from capstan.pipeline.state.codec import Encoded, codec_named
from capstan.pipeline.state.errors import KeyChanged, LateRecord, StateLost, StateVersion

State = TypeVar("State")


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
