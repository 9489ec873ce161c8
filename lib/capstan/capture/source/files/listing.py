"""File listing of a source, compared with the files that captures have read.

Structured Streaming skips some files silently: names that begin with `_` or `.`, files that its
options exclude, files modified after they were read, links to nothing. Here each skipped file is
counted by reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from os import DirEntry, scandir
from os.path import normpath, realpath
from pathlib import Path
from urllib.parse import unquote

from capstan.capture.source.errors import moved
from capstan.capture.source.files import consumed_offsets, path_patterns
from capstan.core.config import Source
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.lake import is_table, list_files
from capstan.storage.tape.tape import Tape

FILES = frozenset({"parquet", "orc", "avro", "csv", "json", "xml", "text", "binaryfile"})
"""Spark formats that read a folder of files."""

_PARTITION = re.compile(r"[^/=]+=[^/]*")
# Files without records that writers leave beside their output.
_MARKS = re.compile(
    r"_SUCCESS|_started_.*|_committed_.*|_metadata|_common_metadata|\..*\.crc|.*\._COPYING_"
)
_FOLDERS_OF_WRITERS = frozenset({"_temporary", "_spark_metadata", "_delta_log"})
# Options that exclude files by age.
_BY_AGE = frozenset({"modifiedbefore", "modifiedafter", "maxfileage"})
_SAMPLE = 3
_MS = 1_000_000


class Reason(StrEnum):
    """Why a capture has skipped a file."""

    HIDDEN = "hidden"
    """Its name, or the name of one of its folders, begins with `_` or `.`."""
    CHANGED = "changed"
    """It was read before, but its size or modification time has changed since."""
    EXCLUDED = "excluded"
    """The declared `source.options` exclude it."""
    DANGLING = "dangling"
    """It is a symbolic link to a file that does not exist or cannot be reached."""
    UNREAD = "unread"
    """Nothing excludes it, but no capture has read it."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The state of a file, now or when it was read."""

    size: int | None  # bytes; None if only the time was stored
    modified: int  # milliseconds since 1970

    def matches(self, now: SourceFile) -> bool:
        """Whether the file may be unchanged, as far as its stored state shows."""
        return self == UNKNOWN or (self.modified == now.modified and self.size in (None, now.size))


UNKNOWN = SourceFile(None, -1)
"""The state of a file for which only the path was stored."""

FilesRead = dict[str, SourceFile]
"""The state of files when they were read, by path."""


@dataclass(frozen=True, slots=True)
class SourceListing:
    """The files of a source."""

    scheme: str  # such as `s3a://`; empty for local files
    root: str
    files: Mapping[str, SourceFile]
    rule: re.Pattern[str] | None = None  # that files must match if the path has wildcards
    dangling: Sequence[str] = ()  # symbolic links to nothing

    @classmethod
    def of(cls, source: Source) -> SourceListing | None:
        """List the files at any depth; None without files, or if Arrow cannot access them."""
        if source.path is None or source.format.lower() not in FILES:
            return None
        folder = (
            path_patterns.fixed_part(source.path)
            if path_patterns.is_glob(source.path)
            else source.path
        )
        root, rule = path_of(folder if ":/" in folder else str(Path(folder).absolute())), None
        if folder != source.path:
            rule = path_patterns.rule_of(
                f"{root.rstrip('/')}/{source.path.removeprefix(folder).lstrip('/')}"
            )
        try:
            if Path(root).is_absolute() and Path(root).is_dir():
                found = dict(_local_files(root))
            else:
                found = {
                    path_of(info.path): SourceFile(
                        int(info.size or 0), int(info.mtime_ns or 0) // _MS
                    )
                    for info in list_files(folder)
                }
        except (SystemFailureError, OSError):
            return None
        if rule is not None:
            found = {path: file for path, file in found.items() if rule.fullmatch(path)}
        files = {path: file for path, file in found.items() if file is not None}
        dangling = sorted(found.keys() - files.keys())
        scheme = source.path.partition("://")[0] + "://" if "://" in source.path else ""
        return cls("" if scheme == "file://" else scheme, root, files, rule, dangling)

    @property
    def partitioned(self) -> bool:
        """Whether folders are named like partitions: `day=2024-05-01`."""
        return bool(self.partition_columns())

    def partition_columns(self) -> list[str]:
        """The columns that the names of folders define."""
        names = (name for path in self.files for name in self.partitions(path))
        return list(dict.fromkeys(names))

    def partitions(self, path: str) -> list[str]:
        """The partition columns of a file's folders, outermost first."""
        folders = self.below(path)[:-1]
        return [name.partition("=")[0] for name in folders if _PARTITION.fullmatch(name)]

    def place(self, path: str) -> str:
        """The location of a file, as Arrow and Spark open it."""
        return self.scheme + path

    def relative(self, path: str) -> str:
        """A file's path below the folder."""
        return path.removeprefix(self.root).lstrip("/")

    def below(self, path: str) -> list[str]:
        """The names of a file's folders and of the file, below the source's own path."""
        match = None if self.rule is None else self.rule.fullmatch(path)
        if match is None:
            return self.relative(path).split("/")
        return (match["below"] or path.rpartition("/")[2]).lstrip("/").split("/")


@dataclass(frozen=True, slots=True)
class SkippedFiles:
    """Files that captures have skipped, by reason."""

    counts: Mapping[str, int]
    files: Mapping[str, list[str]]  # a sample: paths below the source's folder

    @property
    def text(self) -> str:
        """The summary for people; empty when no file was skipped."""
        return "; ".join(
            f"{count:,} {reason} ({', '.join(self.files[reason])}"
            + (", ...)" if count > len(self.files[reason]) else ")")
            for reason, count in self.counts.items()
        )


def path_of(uri: str) -> str:
    """The normalized path of a location given as a path or as a URI in Spark's form."""
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return normpath(uri)
    if scheme == "file":
        return normpath(f"/{unquote(rest).lstrip('/')}")
    return unquote(rest).removeprefix("//").rstrip("/")


def captured_files(tape: Tape) -> FilesRead | None:
    """The files in a tape's feed; None if it has batches from before the feed recorded files."""
    # For files read before the feed stored sizes, only the path is known.
    if not is_table(tape.paths.feed):
        return {}
    rows = read_columns(tape.paths.feed, ["batch", "number", "files", "detail"]).to_pylist()
    captured = [row for row in rows if row["number"] is not None]
    if captured and min(row["batch"] for row in captured) > 0:
        return None
    files: dict[str, SourceFile] = {}
    for row in sorted(captured, key=lambda row: int(row["batch"])):
        files.update(_files_in(row["files"], row["detail"]))
    return files


def seen_files(tape: Tape) -> FilesRead:
    """The files that a tape's checkpoint has seen, without their sizes."""
    # Spark keeps them in a log of few files, whatever their number.
    logged = consumed_offsets.logged_files(tape.paths.checkpoint)
    return {path_of(path): SourceFile(None, modified) for path, modified in logged}


def fresh_files(source: Source, listing: SourceListing, read: FilesRead) -> list[str]:
    """The paths of files that the next capture may read, in no order."""
    skipped = _skipped(source, listing, read, aged=Reason.UNREAD)
    return [path for path, reason in skipped if reason is Reason.UNREAD]


def skipped_files(source: Source, listing: SourceListing, read: FilesRead) -> SkippedFiles:
    """The files of a listing that no capture has read in their present state, by reason."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in sorted(_skipped(source, listing, read)):
        by_reason.setdefault(str(reason), []).append(listing.relative(path))
    counts = {reason: len(paths) for reason, paths in by_reason.items()}
    return SkippedFiles(counts, {reason: paths[:_SAMPLE] for reason, paths in by_reason.items()})


def require_same_place(listing: SourceListing, seen: FilesRead, tape: Tape) -> None:
    """Check that no file was already read from another folder, such as one that was copied."""
    # Spark knows files by their whole paths, and would read all of them once more.
    inside = f"{listing.root.rstrip('/')}/"
    elsewhere: dict[str, list[str]] = {}
    for path in seen:
        if not path.startswith(inside):
            elsewhere.setdefault(path.rpartition("/")[2], []).append(path)
    pairs = [
        (path, former)
        for path in listing.files
        if path not in seen
        for former in elsewhere.get(path.rpartition("/")[2], ())
        if former.endswith(f"/{listing.relative(path)}")
    ]
    # Only the feed has the sizes of files.
    read = (captured_files(tape) or {}) if pairs else {}
    for path, former in pairs:
        if read.get(former, UNKNOWN).size in (None, listing.files[path].size):
            raise moved(tape.name, listing.root, former.removesuffix(f"/{listing.relative(path)}"))


def require_none_renamed(listing: SourceListing, seen: FilesRead, tape: Tape) -> None:
    """Check that no file was already read under a former name."""
    # The tape is read only if a new file may be one of `seen`, the checkpoint's, that is missing.
    fresh = {path: file for path, file in listing.files.items() if path not in seen}
    gone = {path for path in seen if path not in listing.files}
    moments = {seen[path].modified for path in gone}
    if not any(file.modified in moments for file in fresh.values()):
        return
    # Only the feed has the sizes of files.
    read = {path: file for path, file in (captured_files(tape) or {}).items() if path in gone}
    former_paths = {file: path for path, file in read.items() if file.size}
    for path, file in fresh.items():
        former = former_paths.get(file)
        if former is not None:
            raise InvalidRequestError(
                "CAP-RENAMED",
                f"stream {tape.name}: {listing.relative(path)} is the renamed file "
                f"{listing.relative(former)}, with the same size and modification time, which was "
                "already captured",
                "rename it back; or, if it is a different file, touch it; then run again",
                stream=tape.name,
                path=path,
            )


def _skipped(
    source: Source, listing: SourceListing, read: FilesRead, aged: Reason = Reason.EXCLUDED
) -> Iterator[tuple[str, Reason]]:
    """The skipped files, with their reasons; `aged` for those that options may exclude by age."""
    options = source.options_by_name
    # In a folder with partitions the option has no effect.
    flat = options.get("recursivefilelookup", "").lower() == "false" and not listing.partitioned
    name_filter = path_patterns.rule_of(options.get("pathglobfilter", "*"))
    found: dict[str, SourceFile | None] = {**listing.files, **dict.fromkeys(listing.dangling)}
    for path, file in found.items():
        names = listing.below(path)
        if _FOLDERS_OF_WRITERS.intersection(names) or _MARKS.fullmatch(names[-1]):
            continue
        if path in read:
            # A link to a file that was read and is gone is no longer a file of the source.
            if file is not None and not read[path].matches(file):
                yield path, Reason.CHANGED
        elif any(name[:1] in "._" and "=" not in name for name in names):
            yield path, Reason.HIDDEN
        elif not name_filter.fullmatch(names[-1]) or (flat and len(names) > 1):
            yield path, Reason.EXCLUDED
        elif file is None:
            yield path, Reason.DANGLING
        else:
            yield path, aged if _BY_AGE & options.keys() else Reason.UNREAD


def _files_in(paths: Sequence[str] | None, detail: str | None) -> Iterator[tuple[str, SourceFile]]:
    """The files of a batch, by two columns of the feed."""
    kept = json.loads(detail or "{}").get("kept")
    for number, path in enumerate(paths or ()):
        yield path_of(path), SourceFile(*kept[number]) if kept else UNKNOWN


def _local_files(
    folder: str, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, SourceFile | None]]:
    """The files below a local folder, and None for each symbolic link to nothing."""
    # A link back to its own folder is refused, as it would never end.
    here = realpath(folder)
    if here in above:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"{folder} is a link to one of its parent folders: its files would be read endlessly",
            "remove the link from the source's folder",
            path=folder,
        )
    # Files and folders may be deleted meanwhile.
    with suppress(FileNotFoundError), scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and _is_dangling(entry):
                yield entry.path, None
            elif entry.is_dir():
                yield from _local_files(entry.path, above | {here})
            elif entry.is_file():
                with suppress(FileNotFoundError):
                    state = entry.stat()
                    yield entry.path, SourceFile(state.st_size, state.st_mtime_ns // _MS)


def _is_dangling(link: DirEntry[str]) -> bool:
    """Whether a symbolic link leads to nothing, to itself, or where this process may not look."""
    try:
        link.stat()
    except OSError:
        return True
    return False
