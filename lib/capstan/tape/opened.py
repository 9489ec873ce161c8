"""Tables that stay open between two looks at them, in a process that shows pages.

To open a table is to read its log, and one page asks the same few tables many times. What was read
is of use as long as the newest entry of the log is the same; where it is not, all is read again.
Other processes keep nothing: what they read lies there as they read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from capstan.tape.kept import Kept
from capstan.tape.lake import newest_entry

Found = TypeVar("Found")

_MOST = 1024
_kept: Kept[object] | None = None


def keep() -> None:
    """From now on keep what is read of tables: the last 1,024."""
    global _kept  # noqa: PLW0603  (of the process, as the tables are)
    _kept = _kept or Kept(_MOST)


def let_go() -> None:
    """Keep nothing any more."""
    global _kept  # noqa: PLW0603
    _kept = None


def keeping() -> bool:
    """Whether what is read is kept."""
    return _kept is not None


def kept(what: str, table: str, read: Callable[[], Found]) -> Found:
    """What is read of a table, or was, while its log has had no other newest entry.

    Args:
        what: What is read of it: another word for each reader.
        table: Its path.
        read: Reads it; what it raises is not kept.
    """
    store = _kept
    # The log may grow before it is read: then this is newer than it says, and read once more.
    newest = newest_entry(table) if store is not None else ""
    if store is None or not newest:
        return read()
    found: Found = store.get((what, table), newest, read)  # type: ignore[assignment]
    return found
