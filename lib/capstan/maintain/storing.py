"""What it means when a lake cannot be written: one clear error, whoever has met it first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from capstan.errors import Broken

_REASONS = {
    "no space is left": (
        "No space left on device",
        "Disk quota exceeded",
        "File too large",
        "ENOSPC",
    ),
    "it must not be written": (
        "Permission denied",
        "AccessControlException",
        "AccessDenied",
        "Read-only file system",
        "Operation not permitted",
        "Mkdirs failed to create",
    ),
}


@contextmanager
def storing(path: str) -> Iterator[None]:
    """Say clearly what is wrong when what is below `path` cannot be written.

    Raises:
        Broken: `CAP-STORAGE`, with the reason; what was not committed counts for nothing.
    """
    try:
        yield
    except (OSError, DeltaError, Py4JError, PySparkException) as error:
        reason = _reason(str(error))
        if reason is None:
            raise
        raise Broken(
            "CAP-STORAGE",
            f"{path} cannot be written: {reason}",
            "make room, or give the right to write, then run the same command again: what was "
            "not committed counts for nothing, and is cleared away later",
            path=path,
        ) from error


def _reason(text: str) -> str | None:
    for reason, signs in _REASONS.items():
        if any(sign in text for sign in signs):
            return reason
    return None
