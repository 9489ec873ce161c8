"""File integrity: finds missing or truncated files of a tape, by the logs of its tables."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from capstan.errors import SystemFailureError
from capstan.storage.delta import delta
from capstan.storage.lake import is_table, sizes_of
from capstan.storage.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class FileDamage:
    """A missing or truncated file; sizes in bytes."""

    path: str
    written: int
    present: int | None  # None if it is missing

    def __str__(self) -> str:
        if self.present is None:
            return f"{self.path} is missing"
        return f"{self.path} has {self.present:,} of {self.written:,} bytes"

    def to_json(self) -> dict[str, object]:
        """The damage as a JSON object."""
        return {"path": self.path, "written": self.written, "there": self.present}


def find_damage(tape: Tape) -> list[FileDamage]:
    """Files of a tape's tables whose length differs from the log, by table and path.

    Checks the newest version of each table, without a JVM and without opening a file.
    """
    damaged = []
    paths = tape.paths
    for table in (paths.workers, paths.events, paths.records, paths.late, paths.feed):
        if not is_table(table):
            continue  # Only captured tapes have a feed.
        files = pa.table(delta.open_table(table).get_add_actions(flatten=True))
        # Delta stores paths relative to the table, unless the file belongs to another table.
        locations = [delta.resolve_path(table, path) for path in files["path"].to_pylist()]
        expected = dict(zip(locations, files["size_bytes"].to_pylist(), strict=True))
        sizes = sizes_of(sorted(expected))
        damaged += [
            FileDamage(path, written, sizes[path])
            for path, written in sorted(expected.items())
            if sizes[path] != written
        ]
    return damaged


def require_whole(tape: Tape) -> None:
    """Check that every file of a tape is present with its full length."""
    damaged = find_damage(tape)
    if not damaged:
        return
    others = f"; {len(damaged) - 1} more files are damaged" if len(damaged) > 1 else ""
    raise SystemFailureError(
        "CAP-DAMAGED",
        f"stream {tape.name} is damaged: {damaged[0]}{others}",
        "restore these files from a backup, then verify again; --json lists all of them",
        stream=tape.name,
        files=[damage.to_json() for damage in damaged],
    )
