"""A worker: its copy of the chain, with queues between the elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.live.agenda import Agenda, Port
from tests.reference.live.distributor import Distributor
from tests.reference.live.job import Apply, Exchange, Job, Keyed
from tests.reference.live.keyed_operator import KeyedOperator
from tests.reference.live.messages import Acquire, Collect, Interrogate, Message
from tests.reference.live.wire import Wire

Network = Callable[[int, int, int, Wire], None]
"""Called with an exchange's position, the sender, the receiver and the message."""


class Worker:
    """A worker of a job.

    Attributes:
        number: Number of the worker.
        operators: Its keyed operators by number.
        exchanges: Its exchanges by their position in the chain.
    """

    __slots__ = ("_agenda", "_first", "_own", "_peers", "exchanges", "number", "operators")

    def __init__(
        self,
        number: int,
        workers: tuple[int, ...],
        version: int,
        job: Job,
        agenda: Agenda,
        network: Network,
        out: Callable[[int, Message], None],
    ) -> None:
        """Create a worker without state.

        Args:
            number: Number of the worker.
            workers: All workers; the worker itself may still be joining.
            version: Number of rescales so far.
            job: The job.
            agenda: Agenda of its ports.
            network: Sends messages to peers.
            out: Called with the worker's number and each output of the chain.
        """
        self.number = number
        self.operators: dict[int, KeyedOperator[object]] = {}
        self.exchanges: dict[int, Distributor] = {}
        self._agenda = agenda
        self._peers: dict[tuple[int, int], Port[Wire]] = {}
        self._own: dict[int, Port[Message]] = {}
        put: Callable[[Message], None] = partial(self._out, out)
        for position in reversed(range(len(job.elements))):
            element = job.elements[position]
            if isinstance(element, Exchange):
                read, readable = self._exchange(
                    position, element, job, workers, version, put, network
                )
            elif isinstance(element, Keyed):
                read, readable = self._keyed(element, put), _always
            else:
                read, readable = partial(_apply, element, put), _always
            port: Port[Message] = Port(agenda, self._after(read), readable)
            self._own[position] = port
            put = port.put
        self._first = self._own[0]

    def feed(self, message: Message) -> None:
        """Send a message into the chain."""
        self._first.put(message)

    def receive(self, exchange: int, sender: int, message: Wire) -> None:
        """Queue a message of a peer at an exchange."""
        port = self._peers.get((exchange, sender))
        if port is None:
            end = self.exchanges[exchange]
            port = Port(
                self._agenda,
                self._after(partial(end.handle_peer, sender)),
                partial(end.readable, sender),
            )
            self._peers[exchange, sender] = port
        port.put(message)

    @property
    def waiting(self) -> int:
        """Number of queued messages."""
        own = sum(len(port.waiting) for port in self._own.values())
        return own + sum(len(port.waiting) for port in self._peers.values())

    @property
    def late(self) -> list[Data[object]]:
        """Records that were late at an exchange."""
        return [record for end in self.exchanges.values() for record in end.late]

    @property
    def held(self) -> Mapping[int, int]:
        """Number of keys with state, by keyed operator."""
        return {number: len(op.states) for number, op in self.operators.items()}

    def _exchange(
        self,
        position: int,
        element: Exchange,
        job: Job,
        workers: tuple[int, ...],
        version: int,
        put: Callable[[Message], None],
        network: Network,
    ) -> tuple[Callable[[Message], None], Callable[[], bool]]:
        end = Distributor(
            self.number,
            workers,
            job.placement,
            put,
            partial(network, position, self.number),
            job.region(position),
            version,
            job.window,
        )
        self.exchanges[position] = end

        def read(message: Message) -> None:
            end.handle(element.keyed(message) if isinstance(message, Data) else message)

        return read, end.readable

    def _keyed(self, element: Keyed, put: Callable[[Message], None]) -> Callable[[Message], None]:
        number = element.operator_id
        operator: KeyedOperator[object] = KeyedOperator(number, element.logic, put, element.name)
        self.operators[number] = operator
        return operator.handle

    def _after(
        self, read: Callable[[Wire], None] | Callable[[Message], None]
    ) -> Callable[..., None]:
        """Return a step that calls `read`, then every step of a rescale that it made possible."""

        def step(message: object) -> None:
            read(message)  # type: ignore[arg-type]
            for end in self.exchanges.values():
                while end.ready:
                    end.advance()

        return step

    def _out(self, out: Callable[[int, Message], None], message: Message) -> None:
        if not isinstance(message, Interrogate | Collect | Acquire):
            out(self.number, message)


def _always() -> bool:
    return True


def _apply(element: Apply, put: Callable[[Message], None], message: Message) -> None:
    for result in element.function(message):
        put(result)
