"""Messages between keyed operators: records, epochs and system messages.

Follows Malstrom. An output's partitioner routes each record; all other messages go to all readers.
A message with a request carries a `Reply`, in which each operator records its answer. Nothing is
concluded from remaining references to the message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.codec import Encoded


class Reply:
    """Collects the operators' answers to one request."""

    def __init__(self, operators: Iterable[int] = ()) -> None:
        self.waiting = set(operators)  # operators that have not answered
        self.keys: dict[Hashable, None] = {}  # in order and without duplicates
        # Of one key by operator, or an operator's state beside its keys.
        self.states: dict[int, Encoded] = {}
        self.snapshots: dict[int, Mapping[Hashable, Encoded]] = {}
        self.epochs: dict[int, int | None] = {}  # last one passed on by each operator

    @property
    def complete(self) -> bool:
        """Whether all operators have answered."""
        return not self.waiting

    def name_keys(self, operator: int, keys: Iterable[Hashable]) -> None:
        """Answer with keys."""
        self.keys.update(dict.fromkeys(keys))
        self.waiting.discard(operator)

    def give_state(self, operator: int, state: Encoded | None) -> None:
        """Answer with a state or None; only the first state of an operator counts."""
        if state is not None:
            self.states.setdefault(operator, state)
        self.waiting.discard(operator)

    def give_snapshot(
        self, operator: int, states: Mapping[Hashable, Encoded], epoch: int | None = None
    ) -> None:
        """Answer with the states of all keys, as they are after an epoch."""
        self.epochs[operator] = epoch
        self.snapshots[operator] = states
        self.waiting.discard(operator)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Declares that only later times follow; the watermark is one unit later."""

    time: int  # `END` when nothing follows


@dataclass(frozen=True, slots=True)
class AbsBarrier:
    """Requests a snapshot of everything before it."""

    snapshot: int = 0
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rescale:
    """Assigns the keys to other workers from now on."""

    workers: tuple[int, ...]
    version: int  # of the rescale, from 1


@dataclass(frozen=True, slots=True)
class SuspendMarker:
    """Declares that nothing follows until the job is restarted."""


@dataclass(frozen=True, slots=True)
class Interrogate:
    """Requests the keys with state that must move."""

    moves: Callable[[Hashable], bool] = field(compare=False)
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Removes the state of a key from all operators."""

    key: Hashable
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Acquire:
    """Transfers the state of a key to its new owner."""

    key: Hashable
    states: Mapping[int, Encoded] = field(default_factory=dict)


System = Epoch | AbsBarrier | Rescale | SuspendMarker | Interrogate | Collect | Acquire
"""All messages except records."""

Message = Data[object] | System
"""All messages."""
