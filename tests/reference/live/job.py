"""A job: the chain of exchanges, keyed operators and functions that every worker runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.keyed.stateful_functions import Data, SomeLogic
from tests.reference.errors import DuplicateOperator
from tests.reference.key_placement import KeyPlacement, Rendezvous
from tests.reference.live.messages import Message
from tests.reference.live.rescaling import WINDOW


@dataclass(frozen=True, slots=True)
class Exchange:
    """Sends records with equal keys to the same worker.

    Attributes:
        key: Computes the new key of a record, or None to keep its key.
    """

    key: Callable[[Data[object]], Hashable] | None = None

    def keyed(self, record: Data[object]) -> Data[object]:
        """Return the record with its new key."""
        return record if self.key is None else replace(record, key=self.key(record))


@dataclass(frozen=True, slots=True)
class Keyed:
    """A keyed operator.

    Attributes:
        name: Name of the operator, which identifies its state.
        logic: The logic.
    """

    name: str
    logic: SomeLogic

    @property
    def operator_id(self) -> int:
        """Stable number, derived from the name."""
        return operator_id(self.name)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function without state.

    Attributes:
        function: Maps a message to output messages. It must pass system messages on.
    """

    function: Callable[[Message], Iterable[Message]]


Element = Exchange | Keyed | Apply


@dataclass(frozen=True, slots=True)
class Job:
    """A chain of elements.

    Attributes:
        elements: The elements, in order.
        placement: Placement of keys in all exchanges.
        window: Maximum number of keys that an exchange collects at once in a rescale.

    Raises:
        DuplicateOperator: Two keyed operators have the same name.
        ValueError: There are no elements.
    """

    elements: tuple[Element, ...]
    placement: KeyPlacement = field(default_factory=Rendezvous)
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not self.elements:
            text = "a job needs at least one element"
            raise ValueError(text)
        names: set[str] = set()
        for keyed in self.keyed:
            if keyed.name in names:
                text = f"two keyed operators have the name {keyed.name}"
                raise DuplicateOperator.create(text, name=keyed.name)
            names.add(keyed.name)

    @classmethod
    def of(
        cls, *elements: Element, placement: KeyPlacement | None = None, window: int = WINDOW
    ) -> Job:
        """Create a job of these elements."""
        return cls(elements, Rendezvous() if placement is None else placement, window)

    @property
    def keyed(self) -> Iterator[Keyed]:
        """The keyed operators, in order."""
        return (element for element in self.elements if isinstance(element, Keyed))

    def region(self, exchange: int) -> Sequence[int]:
        """Return the numbers of the keyed operators between an exchange and the next one."""
        numbers = []
        for element in self.elements[exchange + 1 :]:
            if isinstance(element, Exchange):
                break
            if isinstance(element, Keyed):
                numbers.append(element.operator_id)
        return numbers

    @property
    def placed(self) -> frozenset[int]:
        """Numbers of the keyed operators that follow an exchange."""
        return frozenset(
            number
            for position, element in enumerate(self.elements)
            if isinstance(element, Exchange)
            for number in self.region(position)
        )
