"""One worker's part of a rescale: its phases, and the messages of its peers.

1. Preparing. Every worker holds its epochs and tells its peers. When all have done so, every worker
   has passed on the same epoch, and all records that were sent before have arrived.
2. Interrogating. Operators name the keys with state that must move.
3. Collecting. The state of each is removed and sent to its new owner, followed by the records that
   have arrived meanwhile.
4. Finished. Every peer is notified and acknowledges; then all its answers have been read.
5. Done. Old owners get no more requests. When all workers are done, nothing is left to return.
6. Bye. When all have said so, no message is in transit by the old rules, and leaving workers stop.

Steps 2 to 4 are Malstrom's; it lacks 1, 5 and 6.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.live.messages import Acquire, Collect, Interrogate, Message, Reply, Rescale
from tests.reference.live.routing import Phase, Router
from tests.reference.live.wire import AckUpgrade, Bye, Done, Prepared, Sent, Upgrade, Wire

WINDOW: Final = 64
"""Maximum number of keys that are collected at once."""

Step = type[Prepared] | type[Upgrade] | type[AckUpgrade] | type[Done] | type[Bye]


class Rescaling:
    """One worker's view of a rescale.

    Attributes:
        message: The request.
        peers: All other workers, including those that join or leave.
        epochs: Last epochs of the peers' own inputs before it; None when there was none.
    """

    __slots__ = (
        "_buffered",
        "_collects",
        "_operators",
        "_put",
        "_received",
        "_reply",
        "_router",
        "_send",
        "_sent",
        "_window",
        "epochs",
        "message",
        "peers",
    )

    def __init__(
        self,
        router: Router,
        message: Rescale,
        operators: Iterable[int],
        put: Callable[[Message], None],
        send: Callable[[int, Wire], None],
        window: int = WINDOW,
    ) -> None:
        """Create a rescale that has not begun.

        Args:
            router: Router of the worker; its phase is advanced.
            message: The request.
            operators: Stateful operators downstream.
            put: Called with messages for downstream.
            send: Called with messages for peers.
            window: Maximum number of keys that are collected at once.
        """
        self.message = message
        self.peers = tuple(sorted({*router.old, *message.workers} - {router.me}))
        self.epochs: dict[int, int | None] = {}
        self._router = router
        self._operators = tuple(operators)
        self._put = put
        self._send = send
        self._received: dict[Step, set[int]] = defaultdict(set)
        self._sent: set[Step] = set()
        self._window = window
        self._reply: Reply | None = None
        self._collects: deque[tuple[Hashable, Reply]] = deque()
        self._buffered: dict[Hashable, list[Data[object]]] = {}

    def begin(self, epoch: int | None) -> None:
        """Tell the peers that epochs are held from now on; `epoch` is the last own epoch."""
        self._router.phase = Phase.PREPARING
        self._router.new = self.message.workers
        self._tell(Prepared(self.message.version, epoch))

    def heard(self, peer: int, message: Prepared | Upgrade | AckUpgrade | Done | Bye) -> None:
        """Record a message of a peer."""
        self._received[type(message)].add(peer)
        if isinstance(message, Prepared):
            self.epochs[peer] = message.epoch
        if isinstance(message, Upgrade):
            self._router.upgraded.add(peer)
            self._send(peer, AckUpgrade(message.version))

    def buffer(self, record: Data[object]) -> None:
        """Buffer a record of a key whose state is being collected."""
        self._buffered.setdefault(record.key, []).append(record)

    @property
    def prepared(self) -> bool:
        """Whether all peers are prepared, and this worker has not begun its second step."""
        return self._router.phase is Phase.PREPARING and self._all(Prepared)

    @property
    def over(self) -> bool:
        """Whether no message is in transit any more."""
        return self._router.phase is Phase.DONE and Bye in self._sent and self._all(Bye)

    @property
    def ready(self) -> bool:
        """Whether `advance` can take a step."""
        match self._router.phase:
            case Phase.INTERROGATING:
                return self._reply is not None and self._reply.complete
            case Phase.COLLECTING:
                return not self._collects or self._collects[0][1].complete
            case Phase.FINISHED:
                return self._all(Upgrade) and self._all(AckUpgrade)
            case Phase.DONE:
                return Bye not in self._sent and self._all(Done)
            case _:
                return False

    def interrogate(self) -> None:
        """Request the keys that must move."""
        self._router.phase = Phase.INTERROGATING
        self._reply = Reply(self._operators)
        self._put(Interrogate(self._router.must_move, self._reply))

    def advance(self) -> None:
        """Take the next step; see `ready`."""
        match self._router.phase:
            case Phase.INTERROGATING:
                assert self._reply is not None
                self._router.note(self._reply.keys)
                self._router.phase = Phase.COLLECTING
                self._router.version = self.message.version
                self._collect()
            case Phase.COLLECTING:
                self._give()
                self._collect()
            case Phase.FINISHED:
                self._router.phase = Phase.DONE
                self._tell(Done(self.message.version))
            case _:
                self._tell(Bye(self.message.version))

    def _collect(self) -> None:
        router = self._router
        while router.noted and len(self._collects) < self._window:
            key, _ = router.noted.popitem()
            router.collecting.add(key)
            reply = Reply(self._operators)
            self._collects.append((key, reply))
            self._put(Collect(key, reply))
        if not self._collects:
            router.phase = Phase.FINISHED
            self._tell(Upgrade(self.message.version))

    def _give(self) -> None:
        router = self._router
        while self._collects and self._collects[0][1].complete:
            key, reply = self._collects.popleft()
            router.collecting.discard(key)
            owner = router.after(key)
            if reply.states:
                self._send(owner, Acquire(key, reply.states))
            for record in self._buffered.pop(key, ()):
                self._send(owner, Sent(record, router.version))

    def _all(self, step: Step) -> bool:
        return self._received[step] >= {*self.peers}

    def _tell(self, message: Prepared | Upgrade | Done | Bye) -> None:
        self._sent.add(type(message))
        for peer in self.peers:
            self._send(peer, message)
