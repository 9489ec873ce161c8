"""Event sources and sinks, and recordings in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from capstan.core.protocol import Event


@runtime_checkable
class EventSource(Protocol):
    """Yields the events of one recording in order; timely's `EventIterator`."""

    @property
    def ended(self) -> bool:
        """Whether no event will ever come; timely leaves that to the counts."""

    def poll(self) -> Event | None:
        """The next event, or None when none is available now."""


@runtime_checkable
class EventPusher(Protocol):
    """Takes the events of one recording in order; timely's `EventPusher`."""

    def push(self, event: Event) -> None:
        """Take the next event."""


class Events:
    """The events of an iterable, all of them available now."""

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
    """A recording in memory: one writer pushes events, any number of readers take them.

    The events lie in a linked list, and each reader holds its position. So an event is freed once
    the last reader has passed it, and at once without readers. One thread may push while others
    read, each with its own reader. After timely's `EventLink`.

    >>> from capstan.core.protocol import Progress
    >>> link = EventLink()
    >>> reader = link.reader()
    >>> link.push(Progress(()))
    >>> reader.poll(), reader.poll()
    (Progress(updates=()), None)
    """

    __slots__ = ("_tail", "closed")

    def __init__(self) -> None:
        self._tail = _Node()
        self.closed = False

    def push(self, event: Event) -> None:
        """Append an event; raises `ValueError` if the link is closed."""
        if self.closed:
            message = "the link is closed"
            raise ValueError(message)
        node = _Node()
        # The event last: a reader that sees the event also sees the next node.
        tail, self._tail = self._tail, node
        tail.next = node
        tail.event = event

    def close(self) -> None:
        """Signal the end to the readers; idempotent."""
        self.closed = True

    def reader(self) -> LinkReader:
        """A reader of all events pushed from now on."""
        return LinkReader(self, self._tail)


class LinkReader:
    """A position in an `EventLink`, and the events after it."""

    __slots__ = ("_link", "_node")

    def __init__(self, link: EventLink, node: _Node) -> None:
        self._link = link
        self._node = node

    @property
    def ended(self) -> bool:
        """Whether the link is closed and every event was taken."""
        # The flag first: events pushed before it was set are then visible.
        return self._link.closed and self._node.event is None

    def poll(self) -> Event | None:
        """The next event, or None when none is available now."""
        event = self._node.event
        if event is not None:
            assert self._node.next is not None
            self._node = self._node.next
        return event

    def reader(self) -> LinkReader:
        """Another reader, at the same position."""
        return LinkReader(self._link, self._node)

    def __iter__(self) -> Iterator[Event]:
        """The events available now."""
        return iter(self.poll, None)


def source_of(events: EventSource | Iterable[Event]) -> EventSource:
    """`events` itself if it is a source, else a source over it."""
    return events if isinstance(events, EventSource) else Events(events)
