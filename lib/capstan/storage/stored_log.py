"""Delta logs in an object store, read without a listing.

A store lists a log in pages of 1,000 keys, so a log with the commits of a month would cost hundreds
of requests. A look at one key is one request.

A command looks at the same few logs over and over. Inside `remembering`, a look is not repeated
until a later one shows what may have come after it: then those that began before are outdated. What
is known is what all looks would give if they were made at one moment, so an order in which two
tables have to be read is kept. A commit of this process is a look at its log, and `look_again`
begins another moment. Threads that run in copies of one context share what it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from threading import Lock

from pyarrow import fs

# Moments of this process, in order.
_moments = count(1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What this process has last seen of a log."""

    version: int
    newest: str | None  # the commit; empty if only the last checkpoint is known, None for no table
    since: int  # the moment from which on it is known to be there


_seen: dict[str, _Seen] = {}
_NOTHING = _Seen(0, None, 0)


@dataclass(slots=True)
class _Looks:
    """The looks of a command, by log: the moment at which one began, and what it showed."""

    kept: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)  # had no table at some look
    commit: int = 0  # the moment at which this thread's last commit began
    latest: int = 0  # from which moment on all that was shown is known to be there
    lock: Lock = field(default_factory=Lock)
    locks: dict[str, Lock] = field(default_factory=dict)  # by log

    def keep(self, log: str, began: int, seen: _Seen) -> None:
        """Keep a look; those that began before what it shows was there are outdated."""
        with self.lock:
            # What has not changed since this process saw it before was there during all looks
            # between.
            for other in [name for name, (at, _) in self.kept.items() if at < seen.since]:
                del self.kept[other]
            # Another thread may have been shown something that came after this look began.
            if began >= self.latest:
                self.kept[log] = began, seen.newest
            self.latest = max(self.latest, seen.since)
            if seen.newest is None:
                self.absent.add(log)
            else:
                self.absent.discard(log)


_looks: ContextVar[_Looks | None] = ContextVar("looks at logs", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Repeat no look at a log of an object store inside, in this context, unless it may differ."""
    token = _looks.set(_looks.get() or _Looks())
    try:
        yield
    finally:
        _looks.reset(token)


def look_again() -> None:
    """Look at all logs again: somebody may have written something, or this process has."""
    looks = _looks.get()
    if looks is not None:
        looks.kept.clear()


@contextmanager
def own_commit() -> Iterator[None]:
    """Look at all logs again after the commit inside, which may have changed one."""
    looks = _looks.get()
    if looks is not None:
        looks.commit = next(_moments)
    try:
        yield
    finally:
        look_again()


def is_log(filesystem: fs.FileSystem, log: str) -> bool:
    """Whether a folder is the log of a table."""
    if _looks.get() is not None:
        return _look(filesystem, log) is not None
    # It has its first commit, or names its last checkpoint: a clean-up deletes only older commits.
    # A table that was created again begins at its first commit, whatever was seen before.
    versions = dict.fromkeys((_seen.get(log, _NOTHING).version, 0))
    known = any(_commit(filesystem, log, version) for version in versions)
    return known or _last_checkpoint(filesystem, log) is not None


def newest_commit(filesystem: fs.FileSystem, log: str, own: int | None = None) -> str | None:
    """Name and tag of the newest commit in a log; None when the place to begin is not known.

    That of `own`, a version that this process has just committed, is what a look at that moment
    would have shown.
    """
    return _look(filesystem, log, own) or None


def has_commit(filesystem: fs.FileSystem, log: str, commit: str) -> bool:
    """Whether a log has a commit of this name and tag."""
    return _commit(filesystem, log, int(commit.partition(".")[0])) == commit


def _look(filesystem: fs.FileSystem, log: str, own: int | None = None) -> str | None:
    """The newest commit in a log: empty when the place to begin is not known, None for no log."""
    looks = _looks.get()
    if looks is None:
        return _look_now(filesystem, log, None, own)
    # Of several threads, one looks.
    with looks.locks.setdefault(log, Lock()):
        if own is None and (kept := looks.kept.get(log)) is not None:
            return kept[1]
        return _look_now(filesystem, log, looks, own)


def _look_now(
    filesystem: fs.FileSystem, log: str, looks: _Looks | None, own: int | None
) -> str | None:
    seen = _seen.get(log, _NOTHING)
    began = looks.commit if looks is not None and own is not None else next(_moments)
    # What has begun since a look that showed nothing begins at the first commit.
    begins = looks is not None and log in looks.absent
    version, newest = own or 0, None if own is None else _commit(filesystem, log, own)
    if newest is None:
        low = seen.version if seen.newest else None
        version, newest = _find(filesystem, log, low, begins=begins)
    if not seen.since or newest != seen.newest:
        seen = _seen[log] = _Seen(version, newest, next(_moments))
    if looks is not None:
        looks.keep(log, began, seen)
    return newest


def _find(
    filesystem: fs.FileSystem, log: str, low: int | None, *, begins: bool
) -> tuple[int, str | None]:
    """The newest commit in a log and its version, by bisection, from a version that it had on."""
    # The tag differs when a table was deleted and created again. Commits have no gaps since the
    # last checkpoint.
    newest = None if low is None else _commit(filesystem, log, low)
    if low is None or newest is None:
        checkpoint = None if begins else _last_checkpoint(filesystem, log)
        low = checkpoint or 0
        newest = _commit(filesystem, log, low)
        if newest is None:
            return 0, None if checkpoint is None else ""
    # Most often there is none or one.
    step, next_step = 1, 1
    while later := _commit(filesystem, log, low + step):
        newest, low = later, low + step
        step, next_step = next_step, 2 * next_step
    while step > 1:
        step //= 2
        if later := _commit(filesystem, log, low + step):
            newest, low = later, low + step
    return low, newest


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
