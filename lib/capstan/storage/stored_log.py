"""Delta logs in an object store, read without a listing.

A store lists a log in pages of 1,000 keys, so a log with the commits of a month would cost hundreds
of requests. A look at one key is one request.
"""

from __future__ import annotations

import json

from pyarrow import fs

# The newest version that this process has seen of each log; a log only grows.
_seen: dict[str, int] = {}


def is_log(filesystem: fs.FileSystem, log: str) -> bool:
    """Whether a folder is the log of a table."""
    # It has its first commit, or names its last checkpoint: a clean-up deletes only older commits.

    # A table that was created again begins at its first commit, whatever was seen before.
    versions = dict.fromkeys((_seen.get(log, 0), 0))
    known = any(_commit(filesystem, log, version) for version in versions)
    return known or _last_checkpoint(filesystem, log) is not None


def newest_commit(filesystem: fs.FileSystem, log: str) -> str | None:
    """Name and tag of the newest commit in a log; None when the place to begin is not known."""
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
