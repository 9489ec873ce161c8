"""What every worker runs: a chain of exchanges, keyed operators and functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.keyed.messages import Data, Message
from capstan.pipeline.keyed.stateful_functions import SomeLogic
from capstan.pipeline.live.rescaling import WINDOW
from capstan.pipeline.state.errors import DuplicateOperator
from capstan.pipeline.state.key_placement import Placement, Rendezvous


@dataclass(frozen=True, slots=True)
class Exchange:
    """Brings records of one key to one worker.

    Attributes:
        key: The new key of a record, or None to leave the one it has.
    """

    key: Callable[[Data[object]], Hashable] | None = None

    def keyed(self, record: Data[object]) -> Data[object]:
        """The record with its new key."""
        return record if self.key is None else replace(record, key=self.key(record))


@dataclass(frozen=True, slots=True)
class Keyed:
    """A keyed operator.

    Attributes:
        name: The identity of its state.
        logic: What it does.
    """

    name: str
    logic: SomeLogic

    @property
    def operator_id(self) -> int:
        """A stable number for its name."""
        return operator_id(self.name)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function without state.

    Attributes:
        function: From a message to those that come out. It passes messages of the system on.
    """

    function: Callable[[Message], Iterable[Message]]


Element = Exchange | Keyed | Apply


@dataclass(frozen=True, slots=True)
class Job:
    """A chain of elements.

    Attributes:
        elements: In the order in which records come to them.
        placement: Of all exchanges.
        window: How many keys an exchange collects at once in a rescale.

    Raises:
        DuplicateOperator: Two keyed operators have one name.
        ValueError: There are none.
    """

    elements: tuple[Element, ...]
    placement: Placement = field(default_factory=Rendezvous)
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not self.elements:
            text = "a job of no elements does nothing"
            raise ValueError(text)
        names: set[str] = set()
        for keyed in self.keyed:
            if keyed.name in names:
                text = f"two keyed operators are named {keyed.name}"
                raise DuplicateOperator.create(text, name=keyed.name)
            names.add(keyed.name)

    @classmethod
    def of(
        cls, *elements: Element, placement: Placement | None = None, window: int = WINDOW
    ) -> Job:
        """A job of these elements."""
        return cls(elements, Rendezvous() if placement is None else placement, window)

    @property
    def keyed(self) -> Iterator[Keyed]:
        """The keyed operators, in order."""
        return (element for element in self.elements if isinstance(element, Keyed))

    def region(self, exchange: int) -> Sequence[int]:
        """The numbers of the keyed operators between an exchange and the next one."""
        found = []
        for element in self.elements[exchange + 1 :]:
            if isinstance(element, Exchange):
                break
            if isinstance(element, Keyed):
                found.append(element.operator_id)
        return found

    @property
    def placed(self) -> frozenset[int]:
        """The numbers of the keyed operators that some exchange brings records to."""
        return frozenset(
            number
            for position, element in enumerate(self.elements)
            if isinstance(element, Exchange)
            for number in self.region(position)
        )
