"""What a keyed operator does, written for one key at a time. Follows Malstrom's `StatefulLogic`.

Two rules bind whoever writes one: what is put out for a record has the record's key, and no time
at or before the last epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from capstan.pipeline.keyed.messages import Data
from capstan.pipeline.state.codec import PLAIN, Codec

In = TypeVar("In")
State = TypeVar("State")
Out = TypeVar("Out")
Entry = TypeVar("Entry")
Put_contra = TypeVar("Put_contra", contravariant=True)


class Output(Protocol[Put_contra]):
    """Where a logic puts out records."""

    def emit(self, key: Hashable, value: Put_contra, time: int | None) -> None:
        """Put a record out.

        Raises:
            KeyChanged: The key is not that of the record that is being handled.
            LateRecord: The time is not after the last epoch.
        """


class StatefulLogic(ABC, Generic[In, State, Out]):
    """A function of records and of a state for each key.

    Attributes:
        version: Of the form of the state; `migrate` is told which one it gets.
        codec: By which states are written.
    """

    version: ClassVar[int] = 1
    codec: ClassVar[Codec] = PLAIN

    @abstractmethod
    def on_data(self, message: Data[In], state: State | None, output: Output[Out]) -> State | None:
        """Handle a record.

        Args:
            message: The record.
            state: Of its key, or None when there is none.
            output: Where to put records out.

        Returns:
            The state from now on; None forgets the key.
        """

    # Not abstract: many logics care for neither time nor schedule.
    def on_epoch(
        self, epoch: int, states: MutableMapping[Hashable, State], output: Output[Out]
    ) -> None:
        """Learn that nothing at or before `epoch` follows, before anybody downstream does.

        Which epochs come depends on how records are cut into batches, and on which keys a worker
        has. So what is done to a key has to follow from its own state and from comparing with the
        epoch: as much must come of an epoch alone as of an earlier one and then that. `KeyedLogic`
        sees to it that no record of a key comes before the epoch that is just before its time.

        Args:
            epoch: The time; what is put out now may still be at or before it, but not at or
                before the last epoch that all keys had.
            states: Of all keys, or of those alone for which it is time; entries may be put in,
                changed and taken out.
            output: Where to put records out.
        """

    def on_schedule(self, states: MutableMapping[Hashable, State], output: Output[Out]) -> None:
        """Do what does not depend on records or time; called now and then."""

    def migrate(self, version: int, state: object) -> State:
        """A state of an earlier version in the form of this one.

        Raises:
            ValueError: There is no way from that version; the default knows none.
        """
        message = f"a state of version {version}, and only version {self.version} is known"
        raise ValueError(message)


# Python has no way of saying that there are such types, whatever they are.
SomeLogic = StatefulLogic[Any, Any, Any]
"""A logic of any records and states."""


class _StatefulMap(StatefulLogic[In, State, Out]):
    """See `stateful_map`."""

    def __init__(
        self, mapper: Callable[[Hashable, In, State | None], tuple[Out, State | None]]
    ) -> None:
        self._mapper = mapper

    def on_data(self, message: Data[In], state: State | None, output: Output[Out]) -> State | None:
        made, state = self._mapper(message.key, message.value, state)
        output.emit(message.key, made, message.time)
        return state


def stateful_map(
    mapper: Callable[[Hashable, In, State | None], tuple[Out, State | None]],
) -> StatefulLogic[In, State, Out]:
    """A logic that makes one record of each: of key, value and state a value and a state.

    A state of None forgets the key.

    >>> total = stateful_map(lambda key, value, state: ((state or 0) + value,) * 2)
    """
    return _StatefulMap(mapper)


Expiring = dict[Hashable, tuple[Entry, int]]
"""Entries by name, each with the epoch at which it is taken out."""


class _TtlMap(StatefulLogic[In, Expiring[Entry], Out]):
    """See `ttl_map`."""

    def __init__(
        self, mapper: Callable[[Hashable, In, int, Expiring[Entry]], tuple[Out, Expiring[Entry]]]
    ) -> None:
        self._mapper = mapper

    def on_data(
        self, message: Data[In], state: Expiring[Entry] | None, output: Output[Out]
    ) -> Expiring[Entry] | None:
        if message.time is None:
            text = "entries that expire need records with times"
            raise ValueError(text)
        entries = {} if state is None else state
        made, entries = self._mapper(message.key, message.value, message.time, entries)
        output.emit(message.key, made, message.time)
        return entries or None

    def on_epoch(
        self,
        epoch: int,
        states: MutableMapping[Hashable, Expiring[Entry]],
        output: Output[Out],
    ) -> None:
        for key, entries in list(states.items()):
            kept = {name: entry for name, entry in entries.items() if entry[1] > epoch}
            if kept:
                states[key] = kept
            else:
                del states[key]


def ttl_map(
    mapper: Callable[[Hashable, In, int, Expiring[Entry]], tuple[Out, Expiring[Entry]]],
) -> StatefulLogic[In, Expiring[Entry], Out]:
    """A logic whose state is entries that expire in event time.

    Each record is mapped from key, value, time and entries to a value and entries, each of these
    with its expiry. At an epoch entries go whose expiry is at most that epoch, and keys that have
    none left; until then they can be read.
    """
    return _TtlMap(mapper)
