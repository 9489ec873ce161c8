"""The files of a source as a listing has them, held against those that captures have read.

Structured Streaming lists a folder as well, and passes over what its rules leave out without a
word: names that begin with `_` or `.`, files that its options exclude, what was changed after it
was read. Here each of them is counted, by its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from os import scandir
from os.path import normpath, realpath
from pathlib import Path
from urllib.parse import unquote

from pyarrow import fs

from capstan.capture import consumed_offsets, path_patterns
from capstan.core.config import Source
from capstan.errors import CapstanError, InvalidRequestError
from capstan.storage.arrow_scan import read_columns
from capstan.storage.lake import is_table, list_files
from capstan.storage.tape.tape import Tape

FILES = frozenset({"parquet", "orc", "avro", "csv", "json", "xml", "text", "binaryfile"})
"""Formats of Spark whose source is a folder of files."""

_PARTITION = re.compile(r"[^/=]+=[^/]*")
# What writers leave beside their files, and which holds no records.
_MARKS = re.compile(
    r"_SUCCESS|_started_.*|_committed_.*|_metadata|_common_metadata|\..*\.crc|.*\._COPYING_"
)
_FOLDERS_OF_WRITERS = frozenset({"_temporary", "_spark_metadata", "_delta_log"})
# Options that leave out files by their age.
_BY_AGE = frozenset({"modifiedbefore", "modifiedafter", "maxfileage"})
_SAMPLE = 3


class Reason(StrEnum):
    """Why a capture has passed over a file."""

    HIDDEN = "hidden"
    """Its name, or that of a folder of it, begins with `_` or `.`."""
    CHANGED = "changed"
    """It was read before, and has another size or another time of change since."""
    EXCLUDED = "excluded"
    """`source.options` of the declaration leave it out."""
    UNREAD = "unread"
    """Nothing leaves it out, and no capture has read it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is, or as it was when it was read.

    Attributes:
        size: In bytes; None where only the other was kept.
        modified: When it was changed last, in milliseconds since 1970.
    """

    size: int | None
    modified: int

    def became(self, now: File) -> bool:
        """Whether it may be the same file now, as far as is known of it."""
        return self == UNKNOWN or (self.modified == now.modified and self.size in (None, now.size))


UNKNOWN = File(None, -1)
"""A file of which no more than the path was kept."""

Read = dict[str, File]
"""Files that were read, as they were then, by their paths."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source.

    Attributes:
        scheme: What its places begin with: `s3a://`, or nothing on this machine.
        root: The folder, or the file.
        files: Each of them by its path.
        rule: Of a path with wildcards, which files are of the source; None of any other.
    """

    scheme: str
    root: str
    files: Mapping[str, File]
    rule: re.Pattern[str] | None = None

    @classmethod
    def of(cls, source: Source) -> Listing | None:
        """The files that a source has, however deep they lie; None where they cannot be listed.

        That is so for a source that is none of files, and for a place that Arrow does not reach.

        Raises:
            InvalidRequestError: `CAP-SOURCE` for a folder that a symbolic link leads back to from
                within.
        """
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
        if Path(root).is_absolute() and Path(root).is_dir():
            _require_no_loop(root)
        try:
            files = {path_of(info.path): _file(info) for info in list_files(folder)}
        except (CapstanError, OSError):
            return None
        if rule is not None:
            files = {path: file for path, file in files.items() if rule.fullmatch(path)}
        scheme = source.path.partition("://")[0] + "://" if "://" in source.path else ""
        return cls("" if scheme == "file://" else scheme, root, files, rule)

    @property
    def partitioned(self) -> bool:
        """Whether folders of it are named as partitions are: `day=2024-05-01`."""
        return any(self.partitions(path) for path in self.files)

    def folders_named(self) -> set[str]:
        """The columns that names of folders tell."""
        return {name for path in self.files for name in self.partitions(path)}

    def partitions(self, path: str) -> list[str]:
        """The names before the `=` in the names of a file's folders, from the outermost on."""
        folders = self.below(path)[:-1]
        return [name.partition("=")[0] for name in folders if _PARTITION.fullmatch(name)]

    def place(self, path: str) -> str:
        """Where a file lies, as Arrow and Spark open it."""
        return self.scheme + path

    def inside(self, path: str) -> str:
        """A file's path below the folder."""
        return path.removeprefix(self.root).lstrip("/")

    def below(self, path: str) -> list[str]:
        """The names of a file's folders and its own, without what the source's path says itself."""
        found = None if self.rule is None else self.rule.fullmatch(path)
        inside = self.inside(path) if found is None else (found["below"] or path.rpartition("/")[2])
        return inside.lstrip("/").split("/")


@dataclass(frozen=True, slots=True)
class Passed:
    """Files that were passed over.

    Attributes:
        counts: How many, by reason.
        files: Some of them, by reason: paths below the source's folder.
    """

    counts: Mapping[str, int]
    files: Mapping[str, list[str]]

    @property
    def text(self) -> str:
        """What people read of it; empty where none was passed over."""
        told = (
            f"{count:,} {reason} ({', '.join(self.files[reason])}"
            + (", ...)" if count > len(self.files[reason]) else ")")
            for reason, count in self.counts.items()
        )
        return "; ".join(told)


def path_of(uri: str) -> str:
    """The path of a place, however it is written: as a path, or as a URI as Spark writes it."""
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return normpath(uri)
    inside = unquote(rest).lstrip("/") if scheme == "file" else unquote(rest).removeprefix("//")
    return normpath(f"/{inside}") if scheme == "file" else inside.rstrip("/")


def read_files(tape: Tape) -> Read | None:
    """The files that captures of a tape have read, by its feed; None where that is unknown.

    Unknown is what batches have read that came before all were written down. Of files that were
    read before their sizes were kept there is no more than the path.
    """
    if not is_table(tape.paths.feed):
        return {}
    rows = read_columns(tape.paths.feed, ["batch", "number", "files", "detail"]).to_pylist()
    captured = [row for row in rows if row["number"] is not None]
    if captured and min(row["batch"] for row in captured) > 0:
        return None
    found: dict[str, File] = {}
    for row in sorted(captured, key=lambda row: int(row["batch"])):
        found.update(_read(row))
    return found


def seen_files(tape: Tape) -> Read:
    """The files that a tape's checkpoint has seen, by a log of few files, however many these are.

    How large they were it does not say.
    """
    found = consumed_offsets.logged_files(tape.paths.checkpoint)
    return {path_of(path): File(None, modified) for path, modified in found}


def fresh_files(source: Source, listing: Listing, read: Read) -> list[str]:
    """The files that the next capture may read, by their paths, in no order."""
    found = _passed(source, listing, read, aged=Reason.UNREAD)
    return [path for path, reason in found if reason is Reason.UNREAD]


def passed_over(source: Source, listing: Listing, read: Read) -> Passed:
    """The files of a listing that no capture has read as they are, by reason."""
    found: dict[str, list[str]] = {}
    for path, reason in sorted(_passed(source, listing, read)):
        found.setdefault(str(reason), []).append(listing.inside(path))
    counts = {reason: len(paths) for reason, paths in found.items()}
    return Passed(counts, {reason: paths[:_SAMPLE] for reason, paths in found.items()})


def require_none_renamed(listing: Listing, seen: Read, tape: Tape) -> None:
    """Check that no file of a listing has been read under another name, which is gone.

    Args:
        listing: The listing.
        seen: The files that the tape's checkpoint has seen.
        tape: The tape, which is asked only where a file may be one of those that are gone.

    Raises:
        InvalidRequestError: `CAP-RENAMED`, naming both.
    """
    fresh = {path: file for path, file in listing.files.items() if path not in seen}
    gone = {path for path in seen if path not in listing.files}
    moments = {seen[path].modified for path in gone}
    if not any(file.modified in moments for file in fresh.values()):
        return
    # How large they were the feed alone has kept.
    read = {path: file for path, file in (read_files(tape) or {}).items() if path in gone}
    before_by_file = {file: path for path, file in read.items() if file.size}
    for path, file in fresh.items():
        before = before_by_file.get(file)
        if before is not None:
            raise InvalidRequestError(
                "CAP-RENAMED",
                f"stream {tape.name}: {listing.inside(path)} is {listing.inside(before)} under "
                "another name, of the same size and time of change, and that was captured already",
                "give it its old name back; if it is another file, touch it; then run it again",
                stream=tape.name,
                path=path,
            )


def _passed(
    source: Source, listing: Listing, read: Read, aged: Reason = Reason.EXCLUDED
) -> Iterator[tuple[str, Reason]]:
    """Files with their reasons.

    Args:
        source: The declaration.
        listing: The files.
        read: Those that were read.
        aged: The reason of a file that options leave out or not, by its age.
    """
    options = {name.lower(): value for name, value in source.options.items()}
    # Said of a folder with partitions it would be without effect.
    flat = options.get("recursivefilelookup", "").lower() == "false" and not listing.partitioned
    named = path_patterns.rule_of(options.get("pathglobfilter", "*"))
    for path, file in listing.files.items():
        names = listing.below(path)
        if _FOLDERS_OF_WRITERS.intersection(names) or _MARKS.fullmatch(names[-1]):
            continue
        if path in read:
            if not read[path].became(file):
                yield path, Reason.CHANGED
        elif any(name[:1] in "._" and "=" not in name for name in names):
            yield path, Reason.HIDDEN
        elif not named.fullmatch(names[-1]) or (flat and len(names) > 1):
            yield path, Reason.EXCLUDED
        else:
            yield path, aged if _BY_AGE & options.keys() else Reason.UNREAD


def _read(row: Mapping[str, object]) -> Iterator[tuple[str, File]]:
    """The files of a batch, as the feed tells of them."""
    paths, detail = row["files"], json.loads(str(row["detail"] or "{}"))
    for number, path in enumerate(paths if isinstance(paths, list) else ()):
        yield path_of(path), File(*detail["kept"][number]) if "kept" in detail else UNKNOWN


def _require_no_loop(folder: str, above: frozenset[str] = frozenset()) -> None:
    """Check that no folder leads back to itself: it would be read again and again, without end."""
    here = realpath(folder)
    if here in above:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"{folder} is a link to a folder that it lies in: its files would be read again and "
            "again",
            "remove the link from the folder of the source",
            path=folder,
        )
    folders: list[str] = []
    # What may not be read is told by the listing.
    with suppress(OSError), scandir(folder) as entries:
        folders = [entry.path for entry in entries if entry.is_dir()]
    for each in folders:
        _require_no_loop(each, above | {here})


def _file(info: fs.FileInfo) -> File:
    return File(int(info.size or 0), int(info.mtime_ns or 0) // 1_000_000)
