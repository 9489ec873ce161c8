"""Where events come from and go to, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from capstan.core.protocol import Event


@runtime_checkable
class EventSource(Protocol):
    """Gives the events of one recording in order; timely's `EventIterator`."""

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more: timely leaves that to the counts."""

    def poll(self) -> Event | None:
        """The next event, or None when there is none now."""


@runtime_checkable
class EventPusher(Protocol):
    """Takes the events of one recording in order; timely's name for it."""

    def push(self, event: Event) -> None:
        """Takes the next event."""


class Events:
    """The events of an iterable, all of which are there now."""

    __slots__ = ("_events", "ended")

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = iter(events)
        self.ended = False

    def poll(self) -> Event | None:
        """The next event, or None at the end."""
        event = next(self._events, None)
        self.ended = event is None
        return event


class _Node:
    __slots__ = ("event", "next")

    def __init__(self) -> None:
        self.event: Event | None = None
        self.next: _Node | None = None


class EventLink:
    """A recording in memory: one pushes events, and any number of readers take them.

    The events lie in a linked list that the readers hold, each from where it is. So an event is
    freed when the last reader has passed it, and at once where there is none. One thread may
    push while others read, each with a reader of its own. After timely's `EventLink`.

    >>> from capstan.core.protocol import Progress
    >>> link = EventLink()
    >>> reader = link.reader()
    >>> link.push(Progress(()))
    >>> reader.poll(), reader.poll()
    (Progress(updates=()), None)
    """

    __slots__ = ("_state", "_tail")

    def __init__(self) -> None:
        self._tail = _Node()
        self._state = _State()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state.closed

    def push(self, event: Event) -> None:
        """Appends an event.

        Raises:
            ValueError: The link was closed.
        """
        if self._state.closed:
            message = "the link was closed"
            raise ValueError(message)
        node = _Node()
        # The event last: once it is there, so is what follows it.
        tail, self._tail = self._tail, node
        tail.next = node
        tail.event = event

    def close(self) -> None:
        """Tells the readers that nothing more will come; again changes nothing."""
        self._state.closed = True

    def reader(self) -> LinkReader:
        """A reader of what is pushed from now on."""
        return LinkReader(self._tail, self._state)


class LinkReader:
    """A place in an `EventLink`, and what follows it."""

    __slots__ = ("_node", "_state")

    def __init__(self, node: _Node, state: _State) -> None:
        self._node = node
        self._state = state

    @property
    def ended(self) -> bool:
        """Whether the link was closed, and all that was pushed was taken."""
        # The flag first: what was pushed before it was set is then seen.
        return self._state.closed and self._node.event is None

    def poll(self) -> Event | None:
        """The next event, or None when there is none now."""
        event = self._node.event
        if event is not None:
            assert self._node.next is not None
            self._node = self._node.next
        return event

    def reader(self) -> LinkReader:
        """Another reader, at the same place."""
        return LinkReader(self._node, self._state)

    def __iter__(self) -> Iterator[Event]:
        """What is there now."""
        return iter(self.poll, None)


class _State:
    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False


def source_of(events: EventSource | Iterable[Event]) -> EventSource:
    """The source that `events` are, or a source of them."""
    return events if isinstance(events, EventSource) else Events(events)
