"""The files of a tape against the logs of its tables: what is gone, and what was cut short."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from capstan.errors import SystemFailureError
from capstan.storage import delta
from capstan.storage.lake import is_table, sizes_of
from capstan.storage.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not as it was written.

    Attributes:
        path: Its place.
        written: How many bytes were written.
        there: How many are there; None if the file is gone.
    """

    path: str
    written: int
    there: int | None

    def __str__(self) -> str:
        if self.there is None:
            return f"{self.path} is gone"
        return f"{self.path} has {self.there:,} of {self.written:,} bytes"

    def to_json(self) -> dict[str, object]:
        """The damage as reports write it."""
        return {"path": self.path, "written": self.written, "there": self.there}


def damage_of(tape: Tape) -> list[Damage]:
    """Files of the newest state of a tape's tables that have not the length their log says.

    No JVM, and no file is opened. By table, then by path.

    Raises:
        SystemFailureError: `CAP-DAMAGED` where the log of a table cannot be read itself.
    """
    found = []
    paths = tape.paths
    for table in (paths.workers, paths.events, paths.records, paths.late, paths.feed):
        if not is_table(table):
            continue  # Only captures have a feed.
        files = pa.table(delta.open_table(table).get_add_actions(flatten=True))
        # Delta writes paths relative to the table, unless the file is another table's.
        places = [delta.place_of(table, path) for path in files["path"].to_pylist()]
        expected = dict(zip(places, files["size_bytes"].to_pylist(), strict=True))
        there = sizes_of(sorted(expected))
        found += [
            Damage(path, written, there[path])
            for path, written in sorted(expected.items())
            if there[path] != written
        ]
    return found


def require_whole(tape: Tape) -> None:
    """Check that every file of a tape is there, and as long as it was written.

    Raises:
        SystemFailureError: `CAP-DAMAGED`, with all such files as `files`.
    """
    damaged = damage_of(tape)
    if not damaged:
        return
    others = f"; so are {len(damaged) - 1} more files" if len(damaged) > 1 else ""
    raise SystemFailureError(
        "CAP-DAMAGED",
        f"stream {tape.name} is damaged: {damaged[0]}{others}",
        "put these files back from a copy, then verify again; --json lists all of them",
        stream=tape.name,
        files=[each.to_json() for each in damaged],
    )
