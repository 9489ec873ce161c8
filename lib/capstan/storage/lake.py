"""The layout of a lake, and file operations outside Delta."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from string import punctuation
from urllib.parse import quote
from uuid import uuid4

from pyarrow import NativeFile, fs

from capstan.core.config.names import (
    READ_OTHERWISE,
    check_attempt,
    check_name,
    is_catalog_name,
    is_name,
    normalised,
    one_spelling,
)
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.errors.translation import root_message
from capstan.storage import s3_access
from capstan.storage.stored_log import has_commit, is_log, newest_commit

# URI schemes for S3 in Hadoop.
_S3 = frozenset({"s3", "s3a", "s3n"})
_LOCAL = fs.LocalFileSystem()
_RESERVED = frozenset({"streams", "ledger", "staging", "state", "aside", "jobs", "kept"})


@dataclass(frozen=True, slots=True)
class TapePaths:
    """The paths of one stream's tape."""

    root: str
    events: str  # the index: one row per event
    records: str  # the payload: one row per record
    workers: str  # the roster: captured workers and their labels
    late: str  # rejected raw rows, each with its reason
    feed: str  # the input of each batch; created by the first capture
    settled: str  # rows of `late` that were settled one by one; created by the first that are
    totals: str  # totals of the index at some commits; a cache that may be deleted
    checkpoint: str  # the checkpoint folder of Structured Streaming

    @classmethod
    def below(cls, root: str) -> TapePaths:
        """The paths of a tape in a folder, by their names there."""
        return cls(root, *(f"{root}/{field.name}" for field in fields(cls)[1:]))


@dataclass(frozen=True, slots=True)
class Lake:
    """A folder or object-store URI with tapes, tables, staged output and ledgers.

    Only this class turns names into paths, and it validates them first.
    """

    root: str

    @classmethod
    def at(cls, place: str | os.PathLike[str]) -> Lake:
        """A lake at a local folder (made absolute) or at a URI such as `s3a://bucket/lake`."""
        text = os.fspath(place)
        if not text:
            raise InvalidRequestError(
                "CAP-LAKE", "the lake's path is empty", "give --lake or CAPSTAN_LAKE"
            )
        root = one_spelling(text).rstrip("/") if "://" in text else str(Path(text).absolute())
        if READ_OTHERWISE.search(root):
            raise InvalidRequestError(
                "CAP-LAKE",
                f"a lake cannot be at {root!r}: delta-rs does not take a backslash, one of []^|, a "
                "control character or a '%' with two digits as it is",
                "give another folder with --lake or CAPSTAN_LAKE",
            )
        return cls(root)

    def stream(self, name: str) -> TapePaths:
        """The paths of a stream's tape."""
        return TapePaths.below(f"{self.root}/streams/{check_name('stream', name)}")

    def table(self, target: str) -> str:
        """The path of a downstream table: a name in this lake, or any other Delta path as given.

        That of a name in a catalog is where the table is made if the catalog does not have it.
        """
        if "/" in target:
            return one_spelling(target).rstrip("/")
        if is_catalog_name(target):
            # No other name has dots, so it is not the folder of another table.
            return f"{self.root}/tables/{normalised(target)}"
        return f"{self.root}/tables/{check_name('table', target)}"

    def target(self, target: str) -> str:
        """The path of a table that replays may write: as `table`, except reserved paths."""
        path = self.table(target)
        contains_lake = f"{self.root}/".startswith(f"{path}/")
        parts = path.removeprefix(f"{self.root}/").split("/")
        reserved = path.startswith(f"{self.root}/") and (
            parts[0] in _RESERVED or (parts[0] == "tables" and len(parts) != 2)
        )
        if contains_lake or reserved:
            raise InvalidRequestError(
                "CAP-NAME",
                f"{target[:80]!r} cannot be a target: "
                + ("it contains the lake" if contains_lake else "it is part of the lake"),
                "give a table name, or another path",
                kind="target",
                name=target,
            )
        return path

    def staging(self, run: str) -> str:
        """The path of a run's staged output."""
        return f"{self.root}/staging/{run}"

    def kept_changes(self, target: str) -> str:
        """The path of the changes kept beside a table of the lake that merges by sequence."""
        name = target.removeprefix(f"{self.root}/tables/")
        if not is_name(name):
            # No name has a hyphen, so no table of the lake has the same place.
            name = f"at-{sha256(target.encode()).hexdigest()}"
        return f"{self.root}/kept/{name}"

    def side_outputs(self, pipeline: str) -> str:
        """The path of the table of a pipeline's side outputs."""
        return f"{self.root}/aside/{check_name('pipeline', pipeline)}"

    def state(self, pipeline: str) -> str:
        """The path of the state snapshots of a pipeline."""
        return f"{self.root}/state/{check_name('pipeline', pipeline)}"

    def job(self, attempt: str) -> str:
        """The folder of an attempt of a job."""
        return f"{self.root}/jobs/{check_attempt(attempt)}"

    def ledger(self, name: str) -> str:
        """The path of a ledger."""
        return f"{self.root}/ledger/{check_name('ledger', name)}"

    def streams(self) -> list[str]:
        """Names of the streams that have a tape here, sorted."""
        return [name for name in self._names("streams") if is_table(self.stream(name).events)]

    def states(self) -> list[str]:
        """Names of the pipelines that have state snapshots here, sorted."""
        return [name for name in self._names("state") if is_table(self.state(name))]

    def side_output_tables(self) -> list[str]:
        """Names of the pipelines that have a table of side outputs here, sorted."""
        return [name for name in self._names("aside") if is_table(self.side_outputs(name))]

    def _names(self, folder: str) -> list[str]:
        """Valid names in a folder of the lake; foreign files are ignored."""
        return [name for name in children(f"{self.root}/{folder}") if is_name(name)]

    def require(self) -> None:
        """Check that the lake exists."""
        if not exists(self.root):
            raise InvalidRequestError(
                "CAP-LAKE",
                f"there is no lake at {self.root}",
                "give --lake or CAPSTAN_LAKE, or create one with `capstan demo` or "
                "`capstan capture`",
                lake=self.root,
            )


def _open(path: str) -> tuple[fs.FileSystem, str]:
    # Hadoop prints local paths as file:/path, which Arrow does not accept as a URI.
    path = re.sub("^file:/(?!/)", "file:///", path)
    scheme, separator, inside = path.partition("://")
    if not separator:
        return _LOCAL, str(Path(path).absolute())
    try:
        if scheme in _S3:
            # The key is used as it is: a URI would decode `%` and `?` in file names.
            return s3_access.bucket(inside.partition("/")[0]), inside
        # Spark writes non-ASCII letters into a URI unquoted; Arrow rejects them.
        path = f"{scheme}://{quote(inside, safe=punctuation)}"
        filesystem, inside = fs.FileSystem.from_uri(path)
    except (OSError, ValueError) as error:
        raise SystemFailureError(
            "CAP-LAKE", f"cannot reach {path}: {root_message(error)}", "check the URI"
        ) from error
    return filesystem, inside


def is_stored(path: str) -> bool:
    """Whether `path` is in an object store, where each look is a request."""
    return "://" in path.removeprefix("file://")


def exists(path: str) -> bool:
    """Whether a file or folder exists at `path`."""
    filesystem, inside = _open(path)
    return bool(filesystem.get_file_info(inside).type != fs.FileType.NotFound)


def is_table(path: str) -> bool:
    """Whether a Delta table exists at `path`, judged by its log folder alone."""
    filesystem, log = _open(f"{path}/_delta_log")
    if not isinstance(filesystem, fs.LocalFileSystem):
        return is_log(filesystem, log)
    # While a writer creates the table, the folder has a temporary file but no commit.
    return bool(_log_entries(path))


def children(path: str) -> list[str]:
    """Names of the files and folders in the folder `path`, sorted; none if it does not exist."""
    filesystem, inside = _open(path)
    if isinstance(filesystem, fs.LocalFileSystem):
        # Names suffice. Arrow would stat each entry, which is slow for a log with many commits.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(inside) as entries:
            return sorted(entry.name for entry in entries)
        return []
    selector = fs.FileSelector(inside, allow_not_found=True)
    return sorted(info.base_name for info in filesystem.get_file_info(selector))


def dated_children(path: str) -> dict[str, str]:
    """Names of the files in the folder `path`, sorted, each with its size and modification time."""
    filesystem, inside = _open(path)
    selector = fs.FileSelector(inside, allow_not_found=True)
    found = filesystem.get_file_info(selector)
    return {info.base_name: f"{info.size} {info.mtime_ns}" for info in sorted(found, key=_name)}


def _name(info: fs.FileInfo) -> str:
    return str(info.base_name)


def newest_entry(table: str, own: int | None = None) -> str:
    """Name and identity of the newest entry in a table's log; empty without a table.

    The identity is the modification time, or the tag in an object store. The value changes with
    each commit, and when a table is deleted and created again. In an object store, that of `own`, a
    version that this process has just committed, needs no look at later ones.
    """
    filesystem, log = _open(f"{table}/_delta_log")
    if not isinstance(filesystem, fs.LocalFileSystem) and (
        newest := newest_commit(filesystem, log, own)
    ):
        return newest
    entries = _log_entries(table)
    if not entries:
        return ""
    return _entry(filesystem, log, entries[-1])


def has_entry(table: str, entry: str) -> bool:
    """Whether a table's log still has what was its newest entry, as `newest_entry` gives it."""
    filesystem, log = _open(f"{table}/_delta_log")
    if not isinstance(filesystem, fs.LocalFileSystem) and ".json " in entry:
        return has_commit(filesystem, log, entry)
    return _entry(filesystem, log, entry.partition(" ")[0]) == entry


def _entry(filesystem: fs.FileSystem, log: str, name: str) -> str:
    info = filesystem.get_file_info(f"{log}/{name}")
    return f"{name} {info.mtime_ns}"


def _log_entries(table: str) -> list[str]:
    """Names of the commits and checkpoints in a table's log, sorted; none without a table."""
    return [name for name in children(f"{table}/_delta_log") if name[:1].isdecimal()]


def size_of(path: str) -> int:
    """Total size in bytes of all files below the folder `path`; 0 if it does not exist."""
    return sum(int(info.size or 0) for info in list_files(path))


def list_files(path: str) -> list[fs.FileInfo]:
    """All files below the folder `path`, or the file itself; none if it does not exist."""
    filesystem, inside = _open(path)
    info = filesystem.get_file_info(inside)
    if info.type == fs.FileType.File:
        return [info]
    selector = fs.FileSelector(inside, allow_not_found=True, recursive=True)
    return [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]


def sizes_of(paths: Sequence[str]) -> dict[str, int | None]:
    """Size in bytes of each file, all on one file system; None for a file that does not exist."""
    if not paths:
        return {}
    filesystem, _ = _open(paths[0])
    infos = filesystem.get_file_info([_open(path)[1] for path in paths])
    missing = fs.FileType.NotFound
    return {
        path: None if info.type == missing else info.size
        for path, info in zip(paths, infos, strict=True)
    }


def folder(path: str) -> fs.FileSystem:
    """The folder at `path` as a separate file system."""
    filesystem, inside = _open(path)
    return fs.SubTreeFileSystem(inside, filesystem)


def open_file(path: str) -> NativeFile:
    """Open the file at `path` for random access."""
    filesystem, inside = _open(path)
    return filesystem.open_input_file(inside)


def read_head(path: str, size: int = 1 << 16) -> bytes:
    """The first bytes of the file at `path`, decompressed according to its extension."""
    filesystem, inside = _open(path)
    with filesystem.open_input_stream(inside) as stream:
        return bytes(stream.read(size))


def read_text(path: str) -> str:
    """The text of the file at `path`."""
    filesystem, inside = _open(path)
    with filesystem.open_input_stream(inside) as stream:
        return bytes(stream.read()).decode("utf-8")


def read_if_any(path: str) -> str | None:
    """The text of the file at `path`; None without one."""
    try:
        return read_text(path)
    except FileNotFoundError:
        return None


def write_text(path: str, text: str) -> None:
    """Write the file at `path`, and create its folders."""
    filesystem, inside = _open(path)
    _write(filesystem, inside, text.encode("utf-8"))


def write_whole(path: str, content: bytes) -> None:
    """Write the file at `path` atomically, and create its folders."""
    filesystem, inside = _open(path)
    if isinstance(filesystem, fs.S3FileSystem):
        # A put is atomic there, and a move is a copy.
        _write(filesystem, inside, content)
        return
    parent, _, name = inside.rpartition("/")
    temporary = f"{parent}/.{name}.{uuid4().hex}"
    _write(filesystem, temporary, content)
    filesystem.move(temporary, inside)


def move_file(path: str, to: str) -> None:
    """Move the file at `path` within its file system, and create its folders."""
    filesystem, inside = _open(path)
    _, there = _open(to)
    _make_parent(filesystem, there)
    filesystem.move(inside, there)


def _make_parent(filesystem: fs.FileSystem, inside: str) -> None:
    # S3 has no folders; Arrow would put an empty object in place of each.
    if not isinstance(filesystem, fs.S3FileSystem):
        filesystem.create_dir(inside.rsplit("/", 1)[0], recursive=True)


def _write(filesystem: fs.FileSystem, inside: str, content: bytes) -> None:
    _make_parent(filesystem, inside)
    with filesystem.open_output_stream(inside) as stream:
        stream.write(content)


def delete_file(path: str) -> None:
    """Delete the file at `path` if it exists."""
    filesystem, inside = _open(path)
    if exists(path):
        filesystem.delete_file(inside)


def delete_folder(path: str) -> None:
    """Delete the folder `path` with its contents if it exists."""
    filesystem, inside = _open(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        filesystem.delete_dir(inside)
