"""Exchange of records between workers by key, with synchronized epochs, barriers and rescales.

Follows Malstrom's distributor. The outgoing epoch is the minimum of all workers' epochs. A barrier
is passed on when every worker has sent it or has suspended; nothing behind it is read before. While
keys move, epochs are held, so that no record in transit becomes late.
move, epochs are held: a record that is handed on must not become late by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.errors import ConcurrentOperation
from tests.reference.key_placement import KeyPlacement
from tests.reference.live.alignment import Alignment
from tests.reference.live.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    Epoch,
    Interrogate,
    Message,
    Rescale,
    SuspendMarker,
)
from tests.reference.live.rescaling import WINDOW, Rescaling
from tests.reference.live.routing import Phase, Router
from tests.reference.live.wire import (
    AckUpgrade,
    BarrierMarker,
    Bye,
    Done,
    Prepared,
    Sent,
    Upgrade,
    Wire,
)

_RESCALING = Prepared | Upgrade | AckUpgrade | Done | Bye
_HOLDING = (Phase.INTERROGATING, Phase.COLLECTING, Phase.FINISHED, Phase.DONE)


class Distributor:
    """One worker's end of an exchange.

    Attributes:
        me: The worker.
        router: Routes records to the owners of their keys.
        late: Records of its own input at or before its last own epoch.
        epoch: The last epoch that was passed on, or None.
        own_epoch: The last epoch of its own input, or None.
    """

    __slots__ = (
        "_alignment",
        "_early",
        "_epochs",
        "_operators",
        "_put",
        "_rescaling",
        "_send",
        "_window",
        "epoch",
        "late",
        "me",
        "own_epoch",
        "router",
    )

    def __init__(
        self,
        me: int,
        workers: Sequence[int],
        placement: KeyPlacement,
        put: Callable[[Message], None],
        send: Callable[[int, Wire], None],
        operators: Iterable[int] = (),
        version: int = 0,
        window: int = WINDOW,
    ) -> None:
        """Create one end of an exchange; a worker that is not among `workers` is joining.

        Args:
            me: The worker.
            workers: All workers of the exchange.
            placement: Placement of the keys.
            put: Called with each message for downstream.
            send: Called with a peer and each message for it.
            operators: Stateful operators downstream, up to the next exchange.
            version: Number of rescales so far.
            window: Maximum number of keys that are collected at once.
        """
        members = tuple(sorted(workers))
        self.me = me
        self.router = Router(me, placement, members, members, version)
        self.late: list[Data[object]] = []
        self.epoch: int | None = None
        self.own_epoch: int | None = None
        self._put = put
        self._send = send
        self._operators = tuple(operators)
        self._epochs: dict[int, int] = {}
        self._alignment = Alignment()
        self._rescaling: Rescaling | None = None
        self._early: list[tuple[int, Prepared]] = []
        self._window = window

    @property
    def peers(self) -> tuple[int, ...]:
        """The other workers of the exchange."""
        if self._rescaling is not None:
            return self._rescaling.peers
        return tuple(worker for worker in self.router.old if worker != self.me)

    @property
    def ready(self) -> bool:
        """Whether `advance` can take a step."""
        return self._rescaling is not None and self._rescaling.ready

    def readable(self, peer: int | None = None) -> bool:
        """Whether the next message of a peer, or of its own input, may be read."""
        if peer is None:
            return self._alignment.own is None
        return peer not in self._alignment.peers

    def handle(self, message: Message) -> None:
        """Handle a message of its own input.

        Raises:
            ConcurrentOperation: A rescale began while another one is running.
        """
        if isinstance(message, Data):
            if self._is_late(message):
                self.late.append(message)
            else:
                self._route(message, self.me)
        elif isinstance(message, Epoch):
            self._own_epoch(message.time)
        elif isinstance(message, AbsBarrier):
            self._alignment.own = message
            self._tell(BarrierMarker(message.snapshot))
            self._align()
        elif isinstance(message, Rescale):
            self._begin(message)
        elif isinstance(message, SuspendMarker):
            self._alignment.ended = True
            self._tell(message)
            self._end()
        else:
            # These concern the keys of the previous exchange.
            assert isinstance(message, Interrogate | Collect | Acquire)

    def handle_peer(self, peer: int, message: Wire) -> None:
        """Handle a message of a peer."""
        if isinstance(message, Sent):
            self._route(message.record, peer, message.version)
        elif isinstance(message, Epoch):
            known = self._epochs.get(peer, message.time)
            self._epochs[peer] = max(known, message.time)
            self._merge()
        elif isinstance(message, BarrierMarker):
            self._alignment.peers.add(peer)
            self._align()
        elif isinstance(message, SuspendMarker):
            self._alignment.suspended.add(peer)
            self._align()
            self._end()
        elif isinstance(message, Acquire):
            self._put(message)
        else:
            self._heard(peer, message)

    def advance(self) -> None:
        """Take the next step of the rescale; see `ready`."""
        if self._rescaling is not None:
            self._rescaling.advance()
            self._settle()

    def start_from(self, epoch: int | None) -> None:
        """Continue after an epoch that all workers had passed on; None when there was none."""
        self.epoch = self.own_epoch = epoch
        self._epochs = {} if epoch is None else dict.fromkeys(self.router.old, epoch)

    def _is_late(self, record: Data[object]) -> bool:
        last, time = self.own_epoch, record.time
        return last is not None and time is not None and time <= last

    def _route(self, record: Data[object], sender: int, version: int | None = None) -> None:
        target = self.router.target(record.key, sender, version)
        if target == self.me:
            self._put(record)
        elif target is not None:
            self._send(target, Sent(record, self.router.version))
        else:
            assert self._rescaling is not None
            self._rescaling.buffer(record)

    def _own_epoch(self, time: int) -> None:
        if self.own_epoch is not None and time <= self.own_epoch:
            return
        self.own_epoch = time
        if self._rescaling is None:
            self._tell_epoch(time)

    def _merge(self) -> None:
        """Pass on the minimum of all workers' epochs, once each has one."""
        if self.router.phase in _HOLDING:
            return
        least = _least(self._epochs.get(worker) for worker in self.router.old)
        if least is not None and (self.epoch is None or least > self.epoch):
            self.epoch = least
            self._put(Epoch(least))

    def _tell_epoch(self, time: int) -> None:
        self._epochs[self.me] = time
        self._tell(Epoch(time))
        self._merge()

    def _align(self) -> None:
        barrier = self._alignment.take(self.peers)
        if barrier is not None:
            self._put(barrier)

    def _end(self) -> None:
        if self._alignment.over(self.peers):
            self._put(SuspendMarker())

    def _begin(self, message: Rescale) -> None:
        if self._rescaling is not None:
            running = self._rescaling.message.version
            text = f"rescale {message.version} began while {running} is running"
            raise ConcurrentOperation.create(text, running=running)
        self._rescaling = Rescaling(
            self.router, message, self._operators, self._put, self._send, self._window
        )
        self._rescaling.begin(self.own_epoch)
        early, self._early = self._early, []
        for peer, prepared in early:
            self._rescaling.heard(peer, prepared)
        self._settle()

    def _heard(self, peer: int, message: _RESCALING) -> None:
        if self._rescaling is None:
            # The peer has begun the rescale before this worker; it cannot get beyond this message.
            assert isinstance(message, Prepared)
            self._early.append((peer, message))
            return
        self._rescaling.heard(peer, message)
        self._settle()

    def _settle(self) -> None:
        rescaling = self._rescaling
        assert rescaling is not None
        if rescaling.prepared:
            if self.me not in self.router.old:
                # A joining worker starts at the epoch of the others.
                self._epochs |= {
                    peer: epoch for peer, epoch in rescaling.epochs.items() if epoch is not None
                }
                self._merge()
                self.own_epoch = self.epoch
            rescaling.interrogate()
        if rescaling.over:
            self._finish(rescaling.message)

    def _finish(self, message: Rescale) -> None:
        router = self.router
        router.phase, router.old = Phase.NORMAL, message.workers
        router.upgraded.clear()
        self._rescaling = None
        for gone in {*self._epochs} - {*message.workers}:
            del self._epochs[gone]
        self._put(message)
        if self.me in message.workers and self.own_epoch is not None:
            self._tell_epoch(self.own_epoch)

    def _tell(self, message: Wire) -> None:
        for peer in self.peers:
            self._send(peer, message)


def _least(epochs: Iterable[int | None]) -> int | None:
    """Return the minimum of epochs; None when there are none, or one is unknown."""
    least: int | None = None
    for epoch in epochs:
        if epoch is None:
            return None
        least = epoch if least is None else min(least, epoch)
    return least
