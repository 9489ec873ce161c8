"""Where everything lies: the folders of a lake, and file operations that are not Delta's."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import punctuation
from urllib.parse import quote
from uuid import uuid4

from pyarrow import NativeFile, fs

from capstan.core.config import READ_OTHERWISE, check_name, is_name
from capstan.errors import InvalidRequestError, SystemFailureError

LEDGERS = (
    "runs", "coverage", "claims", "verified", "findings", "metrics", "snapshots", "retired",
    "changes",
)  # fmt: skip

# Hadoop's names for S3.
_S3 = frozenset({"s3", "s3a", "s3n"})
_OWN = frozenset({"streams", "ledger", "staging", "state", "aside"})


@dataclass(frozen=True, slots=True)
class TapePaths:
    """The tables of one stream's tape."""

    root: str

    @property
    def events(self) -> str:
        """The index: one row per event."""
        return f"{self.root}/events"

    @property
    def records(self) -> str:
        """The payload: one row per record."""
        return f"{self.root}/records"

    @property
    def workers(self) -> str:
        """Captured workers and their labels."""
        return f"{self.root}/workers"

    @property
    def late(self) -> str:
        """Raw rows that were not put on tape, each with its reason."""
        return f"{self.root}/late"

    @property
    def feed(self) -> str:
        """What each batch is made of; not there before the first capture."""
        return f"{self.root}/feed"

    @property
    def totals(self) -> str:
        """What the index amounts to at some commits; it may be deleted."""
        return f"{self.root}/totals"

    @property
    def checkpoint(self) -> str:
        """Structured Streaming's own folder."""
        return f"{self.root}/checkpoint"


@dataclass(frozen=True, slots=True)
class Lake:
    """A folder or object-store URI that holds tapes, tables, staging and ledgers.

    Names become paths only here, and only after they were checked.
    """

    root: str

    @classmethod
    def at(cls, place: str | os.PathLike[str]) -> Lake:
        """A lake at a local folder (made absolute) or at a URI such as `s3a://bucket/lake`."""
        text = os.fspath(place)
        if not text:
            raise InvalidRequestError(
                "CAP-LAKE", "the lake's place is empty", "give --lake or CAPSTAN_LAKE"
            )
        root = text.rstrip("/") if "://" in text else str(Path(text).absolute())
        if READ_OTHERWISE.search(root):
            raise InvalidRequestError(
                "CAP-LAKE",
                f"a lake cannot be at {root!r}: Delta's readers take a backslash, and a '%' with "
                "two digits, for another character",
                "give another folder by --lake or CAPSTAN_LAKE",
            )
        return cls(root)

    def stream(self, name: str) -> TapePaths:
        """The paths of stream `name`."""
        return TapePaths(f"{self.root}/streams/{check_name('stream', name)}")

    def table(self, target: str) -> str:
        """The path of a downstream table: a name of this lake, or any other Delta path as given."""
        if "/" in target:
            return target.rstrip("/")
        return f"{self.root}/tables/{check_name('table', target)}"

    def target(self, target: str) -> str:
        """The path of a table that replays may write: like `table`, but nothing of the lake's own.

        Raises:
            InvalidRequestError: `CAP-NAME` for a place that tapes, ledgers or what is staged have,
                for one within another table, and for one that the lake lies in: what is tidied up
                there would be the lake's.
        """
        path = self.table(target)
        around = f"{self.root}/".startswith(f"{path}/")
        inside = path.removeprefix(f"{self.root}/").split("/")
        own = path.startswith(f"{self.root}/") and (
            inside[0] in _OWN or (inside[0] == "tables" and len(inside) != 2)
        )
        if around or own:
            raise InvalidRequestError(
                "CAP-NAME",
                f"{target[:80]!r} cannot be a target: "
                + ("the lake lies in it" if around else "it is a part of the lake"),
                "give a table's name, or another path",
                kind="target",
                name=target,
            )
        return path

    def staging(self, run: str) -> str:
        """The path of the staged output of a run."""
        return f"{self.root}/staging/{run}"

    def aside(self, pipeline: str) -> str:
        """The path of the rows that runs of a pipeline have put aside."""
        return f"{self.root}/aside/{check_name('pipeline', pipeline)}"

    def state(self, pipeline: str) -> str:
        """The path of the state that runs of a pipeline go on from."""
        return f"{self.root}/state/{check_name('pipeline', pipeline)}"

    def ledger(self, name: str) -> str:
        """The path of one of the ledgers, `LEDGERS`."""
        if name not in LEDGERS:
            raise ValueError(name)
        return f"{self.root}/ledger/{name}"

    def streams(self) -> list[str]:
        """Names of the streams that have a tape here, sorted."""
        return [n for n in self._named("streams") if is_table(self.stream(n).events)]

    def states(self) -> list[str]:
        """Names of the pipelines that have a table of state here, sorted."""
        return [name for name in self._named("state") if is_table(self.state(name))]

    def asides(self) -> list[str]:
        """Names of the pipelines that have put rows aside here, sorted."""
        return [name for name in self._named("aside") if is_table(self.aside(name))]

    def _named(self, folder: str) -> list[str]:
        """What in a folder of the lake can be a name: others may have left files of theirs."""
        return [name for name in children(f"{self.root}/{folder}") if is_name(name)]

    def require(self) -> None:
        """Check that the lake is there.

        Raises:
            InvalidRequestError: `CAP-LAKE` when there is no such folder.
        """
        if not exists(self.root):
            raise InvalidRequestError(
                "CAP-LAKE",
                f"there is no lake at {self.root}",
                "give --lake or CAPSTAN_LAKE, or make one with `capstan demo` or `capstan capture`",
                lake=self.root,
            )


def _open(path: str) -> tuple[fs.FileSystem, str]:
    # A path of this machine as Hadoop prints it is no URI to Arrow.
    path = re.sub("^file:/(?!/)", "file:///", path)
    scheme, there, inside = path.partition("://")
    if not there:
        # Of a path, as anybody else takes it: from the folder that the process is in.
        path = str(Path(path).absolute())
    try:
        if scheme in _S3:
            # A key is taken as it is: a URI would read `%` and `?` in the names of files.
            return _bucket(inside.partition("/")[0]), inside
        # Spark writes letters of any alphabet into a URI as they are; Arrow refuses such.
        path = f"{scheme}://{quote(inside, safe=punctuation)}" if there else path
        filesystem, inside = fs.FileSystem.from_uri(path)
    except (OSError, ValueError) as error:
        raise SystemFailureError(
            "CAP-LAKE", f"cannot reach {path}: {error}", "check the URI"
        ) from error
    return filesystem, inside


@cache
def _bucket(name: str) -> fs.FileSystem:
    """The file system of a bucket of S3, asked once where it is."""
    filesystem, _ = fs.FileSystem.from_uri(f"s3://{name}")
    return filesystem


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`."""
    filesystem, inside = _open(path)
    return bool(filesystem.get_file_info(inside).type != fs.FileType.NotFound)


def is_table(path: str) -> bool:
    """Whether there is a Delta table at `path`, from its log folder alone."""
    # A writer that is just making the table has a temporary file there, and no commit yet.
    return any(name[:1].isdecimal() for name in children(f"{path}/_delta_log"))


def children(path: str) -> list[str]:
    """Names of what lies directly in the folder `path`, sorted; none if it is not there."""
    filesystem, inside = _open(path)
    if isinstance(filesystem, fs.LocalFileSystem):
        # Names alone: of a log with many commits Arrow would look at each entry.
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(each.name for each in Path(inside).iterdir())
        return []
    selector = fs.FileSelector(inside, allow_not_found=True)
    return sorted(info.base_name for info in filesystem.get_file_info(selector))


def newest_entry(table: str) -> str:
    """The newest entry of a table's log and its moment: another one after each commit.

    Of a table that was deleted and made again it is another one too. Empty where there is none.
    """
    log = f"{table}/_delta_log"
    name = max((name for name in children(log) if name[:1].isdecimal()), default="")
    if not name:
        return ""
    filesystem, inside = _open(f"{log}/{name}")
    (info,) = filesystem.get_file_info([inside])
    return f"{name} {info.mtime_ns}"


def size_of(path: str) -> int:
    """How many bytes the files have that lie anywhere below the folder `path`; 0 without one."""
    return sum(int(info.size or 0) for info in list_files(path))


def list_files(path: str) -> list[fs.FileInfo]:
    """The files anywhere below the folder `path`, or the file itself; none if it is not there.

    Raises:
        OSError: When a folder may not be read.
    """
    filesystem, inside = _open(path)
    found = filesystem.get_file_info(inside)
    if found.type == fs.FileType.File:
        return [found]
    selector = fs.FileSelector(inside, allow_not_found=True, recursive=True)
    return [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]


def sizes_of(paths: Sequence[str]) -> dict[str, int | None]:
    """How many bytes each of these files of one place has; None for one that is not there."""
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
    """The folder at `path` as a file system of its own."""
    filesystem, inside = _open(path)
    return fs.SubTreeFileSystem(inside, filesystem)


def open_file(path: str) -> NativeFile:
    """Open the file at `path` to read any part of it.

    Raises:
        OSError: When it is not there, or may not be read.
    """
    filesystem, inside = _open(path)
    return filesystem.open_input_file(inside)


def read_head(path: str, size: int = 1 << 16) -> bytes:
    """The first bytes of the file at `path`, unpacked where its name says that it is packed."""
    filesystem, inside = _open(path)
    with filesystem.open_input_stream(inside) as stream:
        return bytes(stream.read(size))


def read_text(path: str) -> str:
    """The text of the file at `path`."""
    filesystem, inside = _open(path)
    with filesystem.open_input_stream(inside) as stream:
        return bytes(stream.read()).decode("utf-8")


def write_text(path: str, text: str) -> None:
    """Write the file at `path`, with the folders it needs."""
    filesystem, inside = _open(path)
    filesystem.create_dir(inside.rsplit("/", 1)[0], recursive=True)
    with filesystem.open_output_stream(inside) as stream:
        stream.write(text.encode("utf-8"))


def write_whole(path: str, content: bytes) -> None:
    """Write the file at `path`, with the folders it needs: who reads it has all of it, or none."""
    filesystem, inside = _open(path)
    where, _, name = inside.rpartition("/")
    unfinished = f"{where}/.{name}.{uuid4().hex}"
    filesystem.create_dir(where, recursive=True)
    with filesystem.open_output_stream(unfinished) as stream:
        stream.write(content)
    filesystem.move(unfinished, inside)


def delete_file(path: str) -> None:
    """Delete the file at `path`; it may be gone already."""
    filesystem, inside = _open(path)
    if exists(path):
        filesystem.delete_file(inside)


def delete_folder(path: str) -> None:
    """Delete the folder `path` and all in it; it may be gone already."""
    filesystem, inside = _open(path)
    if exists(path):
        filesystem.delete_dir(inside)
