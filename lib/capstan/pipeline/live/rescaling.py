"""One worker's part of a rescale: its phases, and what the others have said so far.

1. Preparing. Epochs are held, and every peer is told so. When all have said the same, every worker
   has passed on the same epoch, and all records that were sent before have arrived.
2. Interrogating. Operators name the keys with state that have to go.
3. Collecting. The state of each is taken out and goes to its new owner, then the records that came
   meanwhile.
4. Finished. Every peer is told, and acknowledges; so its answers to all that was asked are read.
5. Done. No old owner is asked any more. When all have said so, nothing is left to hand back.
6. Bye. When all have said so, nothing is on its way by old rules, and leavers can go.

Steps 2 to 4 are Malstrom's; 1, 5 and 6 are what it lacks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from capstan.pipeline.keyed.messages import (
    Acquire,
    Collect,
    Data,
    Interrogate,
    Message,
    Reply,
    Rescale,
)
from capstan.pipeline.live.routing import Phase, Router
from capstan.pipeline.live.wire import AckUpgrade, Bye, Done, Prepared, Sent, Upgrade, Wire

WINDOW: Final = 64
"""How many keys are collected at once."""

Step = type[Prepared] | type[Upgrade] | type[AckUpgrade] | type[Done] | type[Bye]


class Rescaling:
    """A rescale as one worker sees it.

    Attributes:
        message: What asked for it.
        peers: All others that take part, those that come and those that go.
        epochs: The last epochs of the peers' own inputs before it; None where there was none.
    """

    __slots__ = (
        "_asked",
        "_buffered",
        "_collects",
        "_operators",
        "_put",
        "_router",
        "_said",
        "_send",
        "_told",
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
        """A rescale that has not begun.

        Args:
            router: Of the worker; its phase is moved on.
            message: What asks for it.
            operators: The operators downstream that have state.
            put: Called with messages for downstream.
            send: Called with messages for peers.
            window: How many keys are collected at once.
        """
        self.message = message
        self.peers = tuple(sorted({*router.old, *message.workers} - {router.me}))
        self.epochs: dict[int, int | None] = {}
        self._router = router
        self._operators = tuple(operators)
        self._put = put
        self._send = send
        self._said: dict[Step, set[int]] = defaultdict(set)
        self._told: set[Step] = set()
        self._window = window
        self._asked: Reply | None = None
        self._collects: deque[tuple[Hashable, Reply]] = deque()
        self._buffered: dict[Hashable, list[Data[object]]] = {}

    def begin(self, epoch: int | None) -> None:
        """Tell the peers that epochs are held here from now on; `epoch` was the last own one."""
        self._router.phase = Phase.PREPARING
        self._router.new = self.message.workers
        self._tell(Prepared(self.message.version, epoch))

    def heard(self, peer: int, said: Prepared | Upgrade | AckUpgrade | Done | Bye) -> None:
        """Note what a peer has said."""
        self._said[type(said)].add(peer)
        if isinstance(said, Prepared):
            self.epochs[peer] = said.epoch
        if isinstance(said, Upgrade):
            self._router.upgraded.add(peer)
            self._send(peer, AckUpgrade(said.version))

    def buffer(self, record: Data[object]) -> None:
        """Keep a record of a key whose state is being collected."""
        self._buffered.setdefault(record.key, []).append(record)

    @property
    def prepared(self) -> bool:
        """Whether it has begun everywhere, and its second step has not begun here."""
        return self._router.phase is Phase.PREPARING and self._all(Prepared)

    @property
    def over(self) -> bool:
        """Whether nothing is on its way any more."""
        return self._router.phase is Phase.DONE and Bye in self._told and self._all(Bye)

    @property
    def ready(self) -> bool:
        """Whether `advance` would do something."""
        match self._router.phase:
            case Phase.INTERROGATING:
                return self._asked is not None and self._asked.complete
            case Phase.COLLECTING:
                return not self._collects or self._collects[0][1].complete
            case Phase.FINISHED:
                return self._all(Upgrade) and self._all(AckUpgrade)
            case Phase.DONE:
                return Bye not in self._told and self._all(Done)
            case _:
                return False

    def interrogate(self) -> None:
        """Ask which keys have to go."""
        self._router.phase = Phase.INTERROGATING
        self._asked = Reply(self._operators)
        self._put(Interrogate(self._router.must_move, self._asked))

    def advance(self) -> None:
        """Take the step that is due; see `ready`."""
        match self._router.phase:
            case Phase.INTERROGATING:
                assert self._asked is not None
                self._router.note(self._asked.keys)
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
        return self._said[step] >= {*self.peers}

    def _tell(self, said: Prepared | Upgrade | Done | Bye) -> None:
        self._told.add(type(said))
        for peer in self.peers:
            self._send(peer, said)
