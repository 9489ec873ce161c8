"""A keyed operator that handles the messages of a chain; every one but records is passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from capstan.pipeline.keyed import keyed_logic
from capstan.pipeline.keyed.stateful_functions import Data, StatefulLogic
from capstan.pipeline.state.errors import Misplaced
from tests.reference.live.messages import AbsBarrier, Acquire, Collect, Epoch, Interrogate, Message

State = TypeVar("State")


class KeyedOperator(keyed_logic.KeyedOperator[State]):
    """Applies a logic to messages and to its states."""

    def __init__(
        self,
        operator_id: int,
        logic: StatefulLogic[object, State, object],
        send: Callable[[Message], None],
        name: str = "",
    ) -> None:
        """Create an operator without states; errors name it by `name`, or its number."""
        super().__init__(name or f"operator {operator_id}", logic, send)
        self.operator_id = operator_id
        self._pass_on = send

    def handle(self, message: Message) -> None:
        """Handle one message; pass it on unless it is a record."""
        if isinstance(message, Data):
            self.handle_record(message)
            return
        if isinstance(message, Epoch):
            self.handle_epoch(message.time)
        elif isinstance(message, Interrogate):
            keys = [key for key in self.states if message.moves(key)]
            message.reply.name_keys(self.operator_id, keys)
        elif isinstance(message, Collect):
            self._collect(message)
        elif isinstance(message, Acquire):
            self._acquire(message)
        elif isinstance(message, AbsBarrier):
            message.reply.give_snapshot(self.operator_id, self.snapshot(), self.epoch)
        self._pass_on(message)

    def schedule(self) -> None:
        """Call the logic's `on_schedule`."""
        self._logic.on_schedule(self.states, self)

    def _collect(self, message: Collect) -> None:
        state = None
        if message.key in self.states:
            state = self.encode(message.key, self.states[message.key])
            del self.states[message.key]
        message.reply.give_state(self.operator_id, state)

    def _acquire(self, message: Acquire) -> None:
        state = message.states.get(self.operator_id)
        if state is None:
            return
        if message.key in self.states:
            text = f"{self.name}: a state arrived for {message.key!r}, which already has one"
            raise Misplaced.create(text, operator=self.name, twice=[repr(message.key)])
        self.states[message.key] = self.decode(message.key, state)
