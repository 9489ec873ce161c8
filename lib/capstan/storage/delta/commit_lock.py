"""Lock for commits to a table in a folder, where two concurrent commits could both succeed.

In a folder Delta checks whether the next version exists and then renames its file to it. A rename
overwrites a file that appeared in between, so two concurrent drivers would both succeed and one
commit would be lost. HDFS and object stores have conditional writes; folders need a lock.
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
from capstan.storage.stored_log import own_commit

LOCK = ".commit.lock"
"""The lock file in a table's folder. It is hidden from Delta, empty, and never deleted."""

_POINTER = "_delta_log/._last_checkpoint.crc"

# Errors of file systems that cannot lock a file opened for reading.
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOLCK})

TIMEOUT = 600.0
"""The maximum wait for another process, in seconds: a merge holds the lock as a whole."""


@contextmanager
def committing(path: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """Hold the commit lock of a table, which may not exist yet; object stores are not locked.

    The operating system releases the lock when its process ends in any way. Writers that do not use
    the lock are not excluded. The timeout is in seconds.
    """
    folder = _folder(path)
    if folder is None:
        # A commit there finds out by itself whether it is the next one.
        with own_commit():
            yield
        return
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(descriptor, folder / LOCK, path, timeout)
        # Delete the Hadoop checksum that another writer has left. The file is replaced by one
        # without a checksum, and the old checksum would not match.
        (folder / _POINTER).unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def making(path: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """Hold the creation lock of a table at `path` inside the `with` block; timeout in seconds."""
    # The folder itself is locked, because Delta creates no table in a folder with files. A shared
    # file system may not support locks of folders; then nothing is locked.
    folder = _folder(path)
    if folder is None:
        with own_commit():
            yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            _acquire(descriptor, folder, path, timeout)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _folder(path: str) -> Path | None:
    """The folder of a table, created if needed; None for an object store."""
    local = path.removeprefix("file://")
    if "://" in local:
        return None
    folder = Path(local)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _acquire(descriptor: int, lock: Path, path: str, timeout: float) -> None:
    end = time.monotonic() + timeout
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
        f"another process has been committing to {path} for {timeout:.0f} s",
        f"find the process that has {lock} open, for example with `fuser`; end it if it hangs, and "
        "repeat the command",
        path=path,
    )
