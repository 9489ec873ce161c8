"""One commit of a table at a time, where its store would let two writers win.

In a folder Delta looks whether the next version is there, and then renames its file to it. A rename
takes the place of whatever has come there in between: of two drivers at once both would win, and
one commit be lost. HDFS and object stores have writes that only one can win; folders have locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capstan.errors import RangeLockedError

LOCK = ".commit.lock"
"""In a table's folder. Hidden: Delta neither reads nor deletes it. It stays, and is empty."""

_POINTER = "_delta_log/._last_checkpoint.crc"

# What a file system says that cannot lock what is open to be read alone.
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOLCK})

PATIENCE = 600.0
"""How long another process may hold it, in seconds: a merge commits as a whole."""


@contextmanager
def committing(path: str, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only one who commits to the table at `path`, inside the `with` block.

    The system lets go of the lock when its process ends, however that ends. Writers that do not
    take it are not kept out.

    Args:
        path: The table, or where one is about to be made. One that is no folder is not locked.
        patience: How long to wait for another process, in seconds.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when another process has held the lock all that time.
        OSError: The folder cannot be written to.
    """
    folder = _folder(path)
    if folder is None:
        yield
        return
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, folder / LOCK, path, patience)
        # A checksum of Hadoop's that another writer has left: what comes in place of the file has
        # none, and would be held against it.
        (folder / _POINTER).unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def making(path: str, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only one who makes a table at `path`, inside the `with` block.

    The folder itself is the lock: Delta makes no table where there is a file already. A shared file
    system may know no locks of folders, and then nobody waits.

    Args:
        path: Where the table is to be.
        patience: How long to wait for another process, in seconds.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when another process has held the lock all that time.
        OSError: The folder cannot be made.
    """
    folder = _folder(path)
    if folder is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            _take(descriptor, folder, path, patience)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _folder(path: str) -> Path | None:
    """The folder of a table, made where it is not there; None for one in a bucket."""
    place = path.removeprefix("file://")
    if "://" in place:
        return None
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _take(descriptor: int, lock: Path, path: str, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        else:
            return
    raise RangeLockedError(
        "CAP-CONFLICT",
        f"another process has been committing to {path} for {patience:.0f} s",
        f"look which one has {lock} open, such as by `fuser`; end it if it hangs, and run the same "
        "command again",
        path=path,
    )
