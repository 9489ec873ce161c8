"""Delta logs in an object store, read without a listing.

A store lists a log in pages of 1,000 keys, so a log with the commits of a month would cost hundreds
of requests. A look at one key is one request.

A command looks at the same few logs over and over. Inside `remembering`, a look is not repeated as
long as no look at any log has brought anything new, and this process has written nothing. What is
known then is what all looks would give if they were made at one moment, so an order in which two
tables have to be read is kept. `look_again` begins another moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pyarrow import fs

# The newest version that this process has seen of each log; a log only grows.
_seen: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class _Looks:
    """The looks of a command, by log: the newest commit; None for no table."""

    now: dict[str, str | None] = field(default_factory=dict)  # of this moment
    last: dict[str, str | None] = field(default_factory=dict)

    def keep(self, log: str, newest: str | None) -> None:
        """Keep a look; one that brings something new makes all earlier ones outdated."""
        if log not in self.last or self.last[log] != newest:
            self.now.clear()
        self.now[log] = self.last[log] = newest


_looks: ContextVar[_Looks | None] = ContextVar("looks at logs", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Repeat no look at a log of an object store inside, in this thread, unless it may differ."""
    token = _looks.set(_looks.get() or _Looks())
    try:
        yield
    finally:
        _looks.reset(token)


def look_again() -> None:
    """Look at all logs again: somebody may have written something, or this process has."""
    looks = _looks.get()
    if looks is not None:
        looks.now.clear()


def is_log(filesystem: fs.FileSystem, log: str) -> bool:
    """Whether a folder is the log of a table."""
    looks = _looks.get()
    if looks is not None and log in looks.now:
        return looks.now[log] is not None
    # It has its first commit, or names its last checkpoint: a clean-up deletes only older commits.
    # A table that was created again begins at its first commit, whatever was seen before.
    versions = dict.fromkeys((_seen.get(log, 0), 0))
    known = any(_commit(filesystem, log, version) for version in versions)
    if known or _last_checkpoint(filesystem, log) is not None:
        return True
    if looks is not None:
        looks.keep(log, None)
    return False


def newest_commit(filesystem: fs.FileSystem, log: str, known: int = 0) -> str | None:
    """Name and tag of the newest commit in a log; None when the place to begin is not known.

    `known` is a version that the log has.
    """
    if known > _seen.get(log, 0):
        _seen[log] = known
    looks = _looks.get()
    if looks is None:
        return _newest_commit(filesystem, log)
    if looks.now.get(log) is None:
        newest = _newest_commit(filesystem, log)
        if newest is None:
            return None
        looks.keep(log, newest)
    return looks.now[log]


def _newest_commit(filesystem: fs.FileSystem, log: str) -> str | None:
    # The tag differs when a table was deleted and created again. Commits have no gaps since the
    # last checkpoint, so the newest is found by bisection, from there or from the newest one seen
    # before.
    low, newest = _start(filesystem, log)
    step = 1
    while newest and (later := _commit(filesystem, log, low + step)):
        newest, low, step = later, low + step, 2 * step
    while newest and step > 1:
        step //= 2
        if later := _commit(filesystem, log, low + step):
            newest, low = later, low + step
    if newest:
        _seen[log] = low
    return newest


def _start(filesystem: fs.FileSystem, log: str) -> tuple[int, str | None]:
    """A version from which on all commits are there, with name and tag of its commit."""
    seen = _seen.get(log)
    if seen is not None and (commit := _commit(filesystem, log, seen)):
        return seen, commit
    checkpoint = _last_checkpoint(filesystem, log) or 0
    return checkpoint, _commit(filesystem, log, checkpoint)


def _last_checkpoint(filesystem: fs.FileSystem, log: str) -> int | None:
    """The version that a table names as its last checkpoint; None without one."""
    try:
        with filesystem.open_input_stream(f"{log}/_last_checkpoint") as stream:
            return int(json.loads(stream.read())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # Delta does without this file as well when it cannot read it.
        return None


def _commit(filesystem: fs.FileSystem, log: str, version: int) -> str | None:
    name = f"{version:020}.json"
    try:
        # One request. A question for the file's information would also ask for a folder.
        with filesystem.open_input_stream(f"{log}/{name}") as stream:
            facts = stream.metadata() or {}
    except FileNotFoundError:
        return None
    return f"{name} {facts.get(b'ETag', b'').decode()}"
