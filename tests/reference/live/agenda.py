"""Seeded scheduler of steps: a random choice among all that are possible, in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Port(Generic[Item]):
    """Queue of messages for one reader.

    Attributes:
        waiting: The queued messages.
        read: Handles one message.
        readable: Whether the reader accepts a message now.
    """

    __slots__ = ("_agenda", "_listed", "read", "readable", "waiting")

    def __init__(
        self, agenda: Agenda, read: Callable[[Item], None], readable: Callable[[], bool]
    ) -> None:
        self.waiting: deque[Item] = deque()
        self.read = read
        self.readable = readable
        self._agenda = agenda
        self._listed = False

    def put(self, item: Item) -> None:
        """Queue a message."""
        self.waiting.append(item)
        if not self._listed:
            self._listed = True
            self._agenda.add(self)

    def step(self) -> bool:
        """Let the reader take one message; return whether it did."""
        if self.waiting and self.readable():
            self.read(self.waiting.popleft())
            return True
        return False

    def leaves(self) -> bool:
        """Whether the queue is empty, so that the port leaves the agenda until the next message."""
        self._listed = bool(self.waiting)
        return not self._listed


class Agenda:
    """The ports that may take a step.

    Attributes:
        steps: Number of steps taken.
    """

    __slots__ = ("_listed", "_random", "_shut", "steps")

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._listed: list[Port[Any]] = []
        self._shut: list[Port[Any]] = []
        self.steps = 0

    def add(self, port: Port[Item]) -> None:
        """Add a port to the choice."""
        self._listed.append(port)

    def step(self) -> bool:
        """Let one port take a step; return False when none can."""
        if self._shut:
            self._reopen()
        listed = self._listed
        while listed:
            at = int(self._random.random() * len(listed))
            port = listed[at]
            done = port.step()
            if not done or port.leaves():
                # Ports are only ever appended, so the index is still that of this port.
                listed[at] = listed[-1]
                listed.pop()
            if done:
                self.steps += 1
                return True
            self._shut.append(port)
        return False

    def _reopen(self) -> None:
        """Return ports to the choice whose readers accept messages again."""
        shut, self._shut = self._shut, []
        for port in shut:
            (self._listed if port.readable() else self._shut).append(port)
