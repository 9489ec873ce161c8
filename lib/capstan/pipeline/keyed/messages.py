"""What flows between keyed operators: records, epochs, and messages of the system.

Follows Malstrom. Data goes the one way that an output's partitioner says, everything else to all
of its readers. A message that asks operators for something carries a `Reply`, in which each of
them says that it has answered: nobody concludes it from who still refers to the message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from capstan.pipeline.state.codec import Encoded

Value_co = TypeVar("Value_co", covariant=True)


class Reply:
    """What operators have to say to one request.

    Attributes:
        waiting: The operators that have not answered.
        keys: The keys that were named, in order, each once.
        states: By operator the state of one key, or what an operator keeps beside its keys.
        snapshots: By operator and key the states of a snapshot.
        epochs: By operator the last epoch that it had passed on, or None.
    """

    __slots__ = ("epochs", "keys", "snapshots", "states", "waiting")

    def __init__(self, operators: Iterable[int] = ()) -> None:
        self.waiting = set(operators)
        self.keys: dict[Hashable, None] = {}
        self.states: dict[int, Encoded] = {}
        self.snapshots: dict[int, Mapping[Hashable, Encoded]] = {}
        self.epochs: dict[int, int | None] = {}

    @property
    def complete(self) -> bool:
        """Whether all have answered."""
        return not self.waiting

    def name_keys(self, operator: int, keys: Iterable[Hashable]) -> None:
        """Answer with keys."""
        self.keys.update(dict.fromkeys(keys))
        self.waiting.discard(operator)

    def give_state(self, operator: int, state: Encoded | None) -> None:
        """Answer with one state, or with none; the first one of an operator counts."""
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
class Data(Generic[Value_co]):
    """A record.

    Attributes:
        key: What its state is kept by.
        value: What it says.
        time: When, or None in a stream without time.
    """

    key: Hashable
    value: Value_co
    time: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Nothing with a time less or equal follows; the watermark is one unit later.

    Attributes:
        time: The time; `END` when nothing follows at all.
    """

    time: int


@dataclass(frozen=True, slots=True)
class AbsBarrier:
    """Asks for a snapshot of what came before it.

    Attributes:
        snapshot: Its number.
        reply: Where operators leave their states.
    """

    snapshot: int = 0
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rescale:
    """From now on the keys belong to these workers.

    Attributes:
        workers: The workers after it.
        version: Counts rescales, from 1.
    """

    workers: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class SuspendMarker:
    """Nothing follows until the job is started again."""


@dataclass(frozen=True, slots=True)
class Interrogate:
    """Asks which keys with state must move.

    Attributes:
        moves: Whether a key must.
        reply: Where operators name them.
    """

    moves: Callable[[Hashable], bool] = field(compare=False)
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Takes the state of a key out of all operators.

    Attributes:
        key: The key.
        reply: Where operators leave it.
    """

    key: Hashable
    reply: Reply = field(default_factory=Reply, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Acquire:
    """Gives the state of a key to its new owner.

    Attributes:
        key: The key.
        states: By operator.
    """

    key: Hashable
    states: Mapping[int, Encoded] = field(default_factory=dict)


System = Epoch | AbsBarrier | Rescale | SuspendMarker | Interrogate | Collect | Acquire
"""Every message but a record."""

Message = Data[object] | System
"""Every message."""
