"""What the processes of a user have read of tables, kept on disk for the next process.

A process that serves pages reads as much after its start as all earlier ones have read together.
So it keeps values in a folder that only its user can read, each under the newest log entry that it
was read at. Nothing there is needed: what is missing, of another format, damaged or not ours is
read from the tables again.
"""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from itertools import count
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from capstan.core.json_object import Json

FORMAT = 3
"""To be raised when a kept value means something else."""

_MOST_BYTES = 1 << 30
"""The folder's limit; the values that were written first are deleted."""
_MOST_VALUE = 128 << 20
_SWEEP = 64
"""The folder is looked through before the first value that a process keeps, and then rarely."""
_FACTS = "facts.json"
_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value of a table: facts, and Arrow tables by name."""

    facts: Json
    parts: Mapping[str, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptValues:
    """A folder of kept values, each of some kind and table; an unusable folder has none."""

    folder: Path
    _saves: Iterator[int] = field(default_factory=count, compare=False)

    def load(self, kind: str, table: str) -> tuple[str, KeptValue] | None:
        """The value of a kind (a distinct word) and a table, with the state it was read at."""
        if not self._is_private():
            return None
        try:
            with zipfile.ZipFile(BytesIO(self._place(kind, table).read_bytes())) as archive:
                # Each member is checked against its checksum as it is read.
                header = json.loads(archive.read(_FACTS))
                if header["of"] != _of(kind, table):
                    return None
                names = [name for name in archive.namelist() if name != _FACTS]
                parts = {n: pa.ipc.open_stream(archive.read(n)).read_all() for n in names}
                return str(header["state"]), KeptValue(header["facts"], parts)
        except _UNREADABLE:
            return None

    def save(self, kind: str, table: str, state: str, value: KeptValue) -> None:
        """Keep a value that was read at a state, in place of an earlier one, if that is possible.

        A value that is too large is not kept.
        """
        sink = BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            header = {"of": _of(kind, table), "state": state, "facts": value.facts}
            archive.writestr(_FACTS, json.dumps(header))
            for name, part in value.parts.items():
                buffer = pa.BufferOutputStream()
                with pa.ipc.new_stream(buffer, part.schema, options=_IPC) as writer:
                    writer.write_table(part)
                archive.writestr(name, buffer.getvalue())
        content = sink.getbuffer()
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if len(content) <= _MOST_VALUE and self._is_private():
                self._make_room()
                place = self._place(kind, table)
                unfinished = place.with_name(f".{uuid4().hex}")
                unfinished.touch(0o600, exist_ok=False)
                unfinished.write_bytes(content)
                unfinished.replace(place)

    def of_state(self, kind: str, table: str, state: str, read: Callable[[], Json]) -> Json:
        """The facts of a table at a state; read, and kept, unless they were."""
        found = self.load(kind, table)
        if found is not None and found[0] == state:
            return found[1].facts
        facts = read()
        self.save(kind, table, state, KeptValue(facts))
        return facts

    def _place(self, kind: str, table: str) -> Path:
        # Neither names nor paths become part of a path.
        return self.folder / f"{sha256(f'{kind} {table}'.encode()).hexdigest()}.zip"

    def _is_private(self) -> bool:
        """Whether the folder is this user's own, and nobody else may look into it."""
        try:
            found = self.folder.lstat()
        except OSError:
            return False
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not stat.S_IMODE(found.st_mode) & 0o077
        )

    def _make_room(self) -> None:
        """Delete the values that were written first, if there are too many; not at each save."""
        if next(self._saves) % _SWEEP:
            return
        files = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # Another process or thread deletes, or renames, it.
                found = entry.stat()
                files.append((found.st_mtime_ns, found.st_size, entry.name))
        total = sum(size for _, size, _ in files)
        for _, size, name in sorted(files):
            if total <= _MOST_BYTES:
                return
            (self.folder / name).unlink(missing_ok=True)
            total -= size


def _of(kind: str, table: str) -> list[object]:
    return [FORMAT, _version(), kind, table]


@cache
def _version() -> str:
    try:
        return version("capstan-replay")
    except PackageNotFoundError:
        return ""
