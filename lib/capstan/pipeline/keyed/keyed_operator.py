"""The states of one operator by key, and the operator that handles messages with them.

Follows Malstrom's `stateful_op`: every message of the system is passed on once, in order.
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
    """The states of one operator.

    Attributes:
        name: Of the operator, for errors.
        states: By key.
    """

    __slots__ = ("_logic", "name", "states")

    def __init__(self, name: str, logic: StatefulLogic[object, State, object]) -> None:
        self.name = name
        self._logic = logic
        self.states: dict[Hashable, State] = {}

    def take(self, key: Hashable) -> Encoded | None:
        """Take the state of a key out, or None when it has none.

        Raises:
            StateLost: It cannot be written; it stays.
        """
        if key not in self.states:
            return None
        written = self.written(key, self.states[key])
        del self.states[key]
        return written

    def put(self, key: Hashable, state: Encoded) -> None:
        """Put the state of a key in, in the place of what it has.

        Raises:
            StateLost, StateVersion, NoCodec: It cannot be read; nothing was changed.
        """
        self.states[key] = self.read(key, state)

    def snapshot(self) -> dict[Hashable, Encoded]:
        """All states as bytes.

        Raises:
            StateLost: One cannot be written.
        """
        return {key: self.written(key, state) for key, state in self.states.items()}

    def all_read(self, states: Mapping[Hashable, Encoded]) -> dict[Hashable, State]:
        """The states of a snapshot, which can take the place of `states`.

        Raises:
            StateLost, StateVersion, NoCodec: One cannot be read.
        """
        return {key: self.read(key, state) for key, state in states.items()}

    def written(self, key: Hashable, state: State) -> Encoded:
        """A state as bytes.

        Raises:
            StateLost: Its codec does not take it.
        """
        codec = self._logic.codec
        try:
            return Encoded(codec.name, self._logic.version, codec.encode(state))
        except Exception as error:
            raise self._lost("written", key, error) from error

    def read(self, key: Hashable, state: Encoded) -> State:
        """A state of bytes, migrated where it is of another version.

        Raises:
            StateLost: The bytes cannot be read.
            StateVersion: They are of a version from which no migration leads.
            NoCodec: Nobody registered the codec that wrote them.
        """
        logic = self._logic
        codec = logic.codec if state.codec == logic.codec.name else codec_named(state.codec)
        try:
            value = codec.decode(state.data)
        except Exception as error:
            raise self._lost("read", key, error) from error
        if state.version == logic.version:
            return value  # type: ignore[return-value] # the logic wrote it itself
        try:
            return logic.migrate(state.version, value)
        except Exception as error:
            raise StateVersion.create(
                f"{self.name}: state of version {state.version}, the logic has "
                f"{logic.version}: {error}",
                operator=self.name,
                found=state.version,
                version=logic.version,
            ) from error

    def _lost(self, what: str, key: Hashable, error: Exception) -> StateLost:
        cause = f"{type(error).__name__}: {error}"
        message = f"{self.name}: the state of key {key!r} cannot be {what}: {cause}"
        return StateLost.create(message, operator=self.name, key=repr(key), cause=cause)


class KeyedOperator(Generic[State]):
    """Handles messages with a logic and its states.

    Attributes:
        operator_id: Stable number of the operator.
        store: The states.
        epoch: The last epoch that was passed on, or None.
    """

    __slots__ = ("_key", "_logic", "_put", "_within", "epoch", "operator_id", "store")

    def __init__(
        self,
        operator_id: int,
        logic: StatefulLogic[object, State, object],
        put: Callable[[Message], None],
        name: str = "",
    ) -> None:
        """An operator without states.

        Args:
            operator_id: Its number.
            logic: What it does.
            put: Called with each message that comes out.
            name: For errors; its number when not given.
        """
        self.operator_id = operator_id
        self.store: StateStore[State] = StateStore(name or f"operator {operator_id}", logic)
        self.epoch: int | None = None
        self._logic = logic
        self._put = put
        self._key: Hashable = None
        self._within = False

    def handle(self, message: Message) -> None:
        """Handle one message, and pass it on unless it is a record.

        Raises:
            KeyChanged, LateRecord: The logic breaks a rule.
            StateLost, StateVersion, NoCodec: A state cannot be written or read.
            Misplaced: A state came for a key that has one.
        """
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
        self._put(message)

    def remind(self, key: Hashable, epoch: int) -> None:
        """Let the logic handle an epoch for one key, if that has a state, before all others."""
        states = self.store.states
        if key not in states or (self.epoch is not None and epoch <= self.epoch):
            return
        mine = {key: states[key]}
        self._logic.on_epoch(epoch, mine, self)
        if key not in mine:
            del states[key]
        states.update(mine)

    def schedule(self) -> None:
        """Let the logic do what does not depend on messages."""
        self._logic.on_schedule(self.store.states, self)

    def emit(self, key: Hashable, value: object, time: int | None) -> None:
        """Put a record out; see `capstan.pipeline.keyed.stateful_functions.Output`."""
        if self._within and key != self._key:
            message = f"{self.store.name}: {key!r} was put out for a record of {self._key!r}"
            raise KeyChanged.create(
                message, operator=self.store.name, key=repr(self._key), found=repr(key)
            )
        if self.epoch is not None and time is not None and time <= self.epoch:
            message = f"{self.store.name}: a record at {time} after the epoch {self.epoch}"
            raise LateRecord.create(message, operator=self.store.name, time=time, epoch=self.epoch)
        self._put(Data(key, value, time))

    def _acquire(self, message: Acquire) -> None:
        state = message.states.get(self.operator_id)
        if state is None:
            return
        if message.key in self.store.states:
            text = f"{self.store.name}: {message.key!r} has a state here, and another one came"
            raise Misplaced.create(text, operator=self.store.name, twice=[repr(message.key)])
        self.store.put(message.key, state)

    def _data(self, message: Data[object]) -> None:
        states, key = self.store.states, message.key
        self._key, self._within = key, True
        try:
            state = self._logic.on_data(message, states.get(key), self)
        finally:
            self._within = False
        if state is not None:
            states[key] = state
        else:
            states.pop(key, None)
