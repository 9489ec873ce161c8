"""Stateful functions, written for one key at a time. Follows Malstrom's `StatefulLogic`.

Two rules apply: output for a record has the key of the record, and no time at or before the last
epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from capstan.pipeline.state.codec import PLAIN, Codec

In = TypeVar("In")
State = TypeVar("State")
Out = TypeVar("Out")
Entry = TypeVar("Entry")
Put_contra = TypeVar("Put_contra", contravariant=True)
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Data(Generic[Value_co]):
    """A record."""

    key: Hashable
    value: Value_co
    time: int | None = None  # None in a stream without times


class LogicOutput(Protocol[Put_contra]):
    """Output of a logic."""

    def emit(self, key: Hashable, value: Put_contra, time: int | None) -> None:
        """Emit a record.

        Raises:
            KeyChanged: The key is not that of the current record.
            LateRecord: The time is not after the last epoch.
        """


class StatefulLogic(ABC, Generic[In, State, Out]):
    """A function of records and of a state per key.

    Attributes:
        version: Version of the state's format; `migrate` receives that of the saved state.
        codec: Codec of the states.
    """

    version: ClassVar[int] = 1
    codec: ClassVar[Codec] = PLAIN

    @abstractmethod
    def on_data(
        self, message: Data[In], state: State | None, output: LogicOutput[Out]
    ) -> State | None:
        """Handle a record.

        Args:
            message: The record.
            state: State of its key, or None when there is none.
            output: Output for records.

        Returns:
            The new state; None removes the key.
        """

    # Not abstract: many logics need neither time nor schedule.
    def on_epoch(
        self, epoch: int, states: MutableMapping[Hashable, State], output: LogicOutput[Out]
    ) -> None:
        """Handle an epoch, before downstream operators do: nothing at or before it follows.

        The sequence of epochs depends on how records are cut into batches, and on the keys of a
        worker. So the effect on a key must follow from its own state and a comparison with the
        epoch: an epoch alone must have the same effect as an earlier one followed by it.
        `KeyedLogic` calls this for the epoch just before a record's time before the record.

        Args:
            epoch: The time. Output may have a time at or before it, but not at or before the last
                epoch that all keys had.
            states: States of all keys, or only of the keys that are due. Entries may be added,
                changed and removed.
            output: Output for records.
        """

    def on_schedule(
        self, states: MutableMapping[Hashable, State], output: LogicOutput[Out]
    ) -> None:
        """Act independently of records and time; called at intervals."""

    def migrate(self, version: int, state: object) -> State:
        """Migrate a state of an earlier version.

        Raises:
            ValueError: No migration leads from that version; by default there is none.
        """
        message = f"unsupported state version {version}; only version {self.version} is supported"
        raise ValueError(message)


# Python cannot express an existential type.
SomeLogic = StatefulLogic[Any, Any, Any]
"""A logic with any types of records and states."""


class _StatefulMap(StatefulLogic[In, State, Out]):
    """See `stateful_map`."""

    def __init__(
        self, mapper: Callable[[Hashable, In, State | None], tuple[Out, State | None]]
    ) -> None:
        self._mapper = mapper

    def on_data(
        self, message: Data[In], state: State | None, output: LogicOutput[Out]
    ) -> State | None:
        value, state = self._mapper(message.key, message.value, state)
        output.emit(message.key, value, message.time)
        return state


def stateful_map(
    mapper: Callable[[Hashable, In, State | None], tuple[Out, State | None]],
) -> StatefulLogic[In, State, Out]:
    """Create a logic that maps key, value and state to one output value and a new state.

    A state of None removes the key.

    >>> total = stateful_map(lambda key, value, state: ((state or 0) + value,) * 2)
    """
    return _StatefulMap(mapper)


Expiring = dict[Hashable, tuple[Entry, int]]
"""Entries by name, each with the epoch at which it expires."""


class _TtlMap(StatefulLogic[In, Expiring[Entry], Out]):
    """See `ttl_map`."""

    def __init__(
        self, mapper: Callable[[Hashable, In, int, Expiring[Entry]], tuple[Out, Expiring[Entry]]]
    ) -> None:
        self._mapper = mapper

    def on_data(
        self, message: Data[In], state: Expiring[Entry] | None, output: LogicOutput[Out]
    ) -> Expiring[Entry] | None:
        if message.time is None:
            text = "entries that expire need records with times"
            raise ValueError(text)
        entries = {} if state is None else state
        value, entries = self._mapper(message.key, message.value, message.time, entries)
        output.emit(message.key, value, message.time)
        return entries or None

    def on_epoch(
        self,
        epoch: int,
        states: MutableMapping[Hashable, Expiring[Entry]],
        output: LogicOutput[Out],
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
    """Create a logic whose state consists of entries that expire in event time.

    The mapper turns key, value, time and entries into an output value and entries, each with its
    expiry. An epoch removes entries whose expiry is at most that epoch, and keys without entries;
    until then entries can be read.
    """
    return _TtlMap(mapper)
