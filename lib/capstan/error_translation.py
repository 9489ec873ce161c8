"""What breaks from outside, told as an error of ours: full disks, missing rights, damaged files.

Spark, Delta, Arrow and the system tell of these in many ways, most of them a page long, and some
through two languages. What they have in common are a few words and the path; the words are
documented conditions of Spark and Delta (`FAILED_READ_FILE`, `DELTA_VERSIONS_NOT_CONTIGUOUS`) and
messages of the operating system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from capstan.errors import CapstanError, SystemFailureError

_AGAIN = "then the same command again goes on where this one stopped"
# The paths of files as Spark, Arrow and the system write them.
_PATH = r"(?:file:/*(?=/)|s3a?://)?(?P<path>/?[^\s\x1b:'\"]*/[^\s\x1b:'\"]+)"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A way to break: its code, what is said and to be done, and the words that give it away."""

    code: str
    what: str
    hint: str
    words: tuple[str, ...]


_KINDS = (
    _Kind(
        "CAP-DISK-FULL",
        "no space is left",
        f"make room, also for temporary files; {_AGAIN}",
        ("No space left on device", "Disk quota exceeded", "File too large"),
    ),
    _Kind(
        "CAP-NO-ACCESS",
        "no right to read or write there",
        f"let the user that runs this read and write there; {_AGAIN}",
        (
            "Read-only file system",
            "Permission denied",
            "AccessControlException",
            "DELTA_CANNOT_CREATE_LOG_PATH",
        ),
    ),
    _Kind(
        "CAP-NO-ACCESS",
        "a folder cannot be there, as a file is in the way",
        "give another place, or take the file away",
        ("Not a directory", "File exists"),
    ),
    _Kind(
        "CAP-DAMAGED",
        "the log of a table is damaged",
        "put what is missing of its _delta_log back from a copy",
        (
            rf"reading file {_PATH}_delta_log/",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
            "DELTA_TRUNCATED_TRANSACTION_LOG",
            "DELTA_STATE_RECOVER_ERROR",
            "Expected contiguous commit",
            "newer than log segment",
            "Truncated record whilst reading",
            # Of a commit that is no JSON.
            r"delta\.actions\.Action\$\.fromJson",
        ),
    ),
    _Kind(
        "CAP-DAMAGED",
        "a file cannot be read",
        "put it back from a copy; `capstan verify STREAM --deep` names all that a tape lacks",
        (
            "FAILED_READ_FILE",
            "CANNOT_READ_FILE_FOOTER",
            "is not a Parquet file",
            "Object at location",
            # Of Arrow, which says the same of each file in other words.
            "Could not open Parquet input source",
            r"Failed to open local file '[^']+\.parquet'\. Detail: \[errno 2\]",
            "Corrupt snappy compressed data",
            "Couldn't deserialize thrift",
            "Index not in dictionary bounds",
            "Unexpected end of stream",
        ),
    ),
)
# Where the path stands that a message is about.
_PLACES = tuple(
    re.compile(text)
    for text in (
        rf"reading file {_PATH}\.\s",
        rf"Object at location {_PATH} not found",
        rf"(?:Cannot (?:create|delete)|Failed to open)(?: directory|(?: local)? file)? '?{_PATH}",
        rf"{_PATH} \((?:No space left|Read-only|Permission denied)",
        rf"(?:denied|system|device|directory|exists): '?{_PATH}",
        rf'path: "{_PATH}"',
        # Within its table.
        r"Parquet input source '(?P<path>[^']+)'",
    )
)
_LONGEST = 300
_CALLING = re.compile(r"An error occurred while calling \S+$")
_PYTHON = "Return Message: Traceback (most recent call last):"
# Errors are named after what they leave to the caller: not all names end in "Error".
_RAISED = re.compile(r"^([A-Za-z_][\w.]*: .*)$", re.MULTILINE)


def translate(error: BaseException) -> CapstanError | None:
    """The error of ours that an exception stands for, or None if it is none that was foreseen.

    Returns:
        The exception itself where it is one of ours, else `SystemFailureError`: `CAP-DISK-FULL`,
        `CAP-NO-ACCESS`, or `CAP-DAMAGED` for a file or log that is gone or cannot be read; with the
        path in `fields` where the message names one.
    """
    if isinstance(error, CapstanError):
        return error
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.strerror}: {error.filename}"
    kind = next((each for each in _KINDS if re.search("|".join(each.words), text)), None)
    if kind is None:
        return None
    path = next((found["path"] for place in _PLACES if (found := place.search(text))), None)
    if path is None:
        return SystemFailureError(kind.code, kind.what, kind.hint)
    return SystemFailureError(kind.code, f"{kind.what}: {path}", kind.hint, path=path)


@contextmanager
def with_path(path: str) -> Iterator[None]:
    """Add the place to what was foreseen and breaks in here without saying where.

    Raises:
        SystemFailureError: As `translate` tells it, with `path`.
    """
    try:
        yield
    except Exception as error:
        found = translate(error)
        if found is None or found is error or "path" in found.fields:
            raise
        raise SystemFailureError(
            found.code, f"{found.message}: {path}", found.hint, path=path
        ) from error


def to_capstan_error(error: BaseException, hint: str = "") -> CapstanError:
    """The error that stands for any exception: of ours, foreseen, or `CAP-BROKEN` with its cause.

    Args:
        error: What was raised.
        hint: What to do about one that nobody foresaw.
    """
    found = translate(error)
    if found is not None:
        return found
    said = root_message(error)
    name = type(error).__name__
    return SystemFailureError("CAP-BROKEN", f"{name}: {said}" if said else name, hint)


def root_message(error: BaseException) -> str:
    """The line of an exception's message that says what is wrong, cut where it is very long.

    Frames of Java and Python stand around it, and of what a query raised in Python all of the
    traceback stands before it.
    """
    text = str(error)
    _, _, inside = text.partition(_PYTHON)
    raised = _RAISED.findall(inside)
    lines = (line.strip().removeprefix(": ") for line in raised[-1:] or text.splitlines())
    found = next((line for line in lines if line and not _CALLING.match(line)), "")
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
