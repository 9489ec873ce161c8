"""The input of a micro-batch, from Structured Streaming's checkpoint.

For each micro-batch a checkpoint stores its start time and the end offset of each source; for a
source of files also the list of files. All of it is written before the micro-batch starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from capstan.core.config import Source
from capstan.core.config.sources import QUERY
from capstan.errors import CapstanError
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import dated_children, exists, read_if_any, read_text, sizes_of
from capstan.storage.tape.feed import Consumed

SELECT = "select"
"""The key of the selection's hash."""

_BYTES = 4
"""The fewest bytes per row in a file, given how formats compress."""
_MIN_ROWS = 100
"""Rows that even the smallest file may have."""

# Entries of sources' logs, by path: Spark writes each once.
_entries: VersionedCache[tuple[tuple[str, int], ...]] = VersionedCache(256)


def consumed(checkpoint: str, source: Source, batch: int) -> tuple[Consumed, ...]:
    """The parts of the source that a micro-batch consumed; one empty part if unknown."""
    # Each has the hash of the source's selection, if there is one: only a source that is read with
    # the same selection has the same records.
    parts = _consumed(checkpoint, source, batch)
    if source.selection is None:
        return parts
    return tuple(
        replace(part, detail={**(part.detail or {}), SELECT: source.selection}) for part in parts
    )


def _consumed(checkpoint: str, source: Source, batch: int) -> tuple[Consumed, ...]:
    if source.format == QUERY or source.function is not None:
        return consumed_by_query(checkpoint, batch)
    end = _offset(f"{checkpoint}/offsets/{batch}")
    begin = _offset(f"{checkpoint}/offsets/{batch - 1}")
    if not isinstance(end, Mapping):
        return (Consumed(),)
    if "logOffset" in end:
        first = -1 if begin is None else begin["logOffset"]
        entries = range(first + 1, end["logOffset"] + 1)
        files = dict(_files(f"{checkpoint}/sources/0", entries))
        sizes = _sizes(files)
        return (Consumed(files=tuple(files), detail={"kept": sizes} if sizes else None),)
    if source.format == "kafka":
        return _partitions(begin or _offset(f"{checkpoint}/sources/0/0") or {}, end)
    return (Consumed(detail={"offset": end}),)


def consumed_by_query(checkpoint: str, batch: int) -> tuple[Consumed, ...]:
    """The input of a micro-batch of a query with any number of sources: the end of each."""
    # Sources of files number their files anew after a loss of their log, so a hash of the names and
    # times of the files is added.
    ends = _ends(checkpoint, batch)
    if not ends:
        return (Consumed(),)
    begins = _ends(checkpoint, batch - 1)
    if len(begins) != len(ends):
        begins = [None] * len(ends)
    hashes = {
        str(source): digest
        for source, (begin, end) in enumerate(zip(begins, ends, strict=True))
        if (digest := _hash_of_files(f"{checkpoint}/sources/{source}", begin, end)) is not None
    }
    return (Consumed(detail={"offsets": ends} | ({"files": hashes} if hashes else {})),)


def _ends(checkpoint: str, batch: int) -> list[object]:
    """The end offset of each source, in the query's order; none for an unknown batch."""
    return _lines(f"{checkpoint}/offsets/{batch}")[1:]


def _lines(path: str) -> list[object]:
    """The lines of a log's file behind its version; none without the file.

    Of a batch's offsets these are Spark's metadata of the batch and the sources.
    """
    return [_json_or_text(line) for line in (read_if_any(path) or "").splitlines()[1:]]


def _json_or_text(line: str) -> object:
    """An offset as JSON; a source without any data yet has a dash."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _hash_of_files(log: str, begin: object, end: object) -> str | None:
    """A hash of the files between two offsets of a source; None for sources without files."""
    if not (isinstance(end, Mapping) and "logOffset" in end):
        return None
    first = begin["logOffset"] + 1 if isinstance(begin, Mapping) else 0
    entries = range(first, end["logOffset"] + 1)
    if not entries or not all(map(partial(_has_entry, log), entries)):
        return None
    lines = "\n".join(f"{modified} {path}" for path, modified in _files(log, entries))
    return hashlib.sha256(lines.encode()).hexdigest()


def max_rows(parts: Sequence[Consumed]) -> int | None:
    """An estimate of the most rows a micro-batch can have; None if its source gives no clue."""
    rows = 0
    for part in parts:
        if part.files is not None:
            sizes = (part.detail or {}).get("kept") if part.files else []
            if not isinstance(sizes, list):
                return None
            rows += sum(_MIN_ROWS + (size or 0) // _BYTES for size, _ in sizes)
        elif part.since is not None and part.until is not None:
            rows += part.until - part.since
        else:
            return None
    return rows


def started_at(checkpoint: str, batch: int) -> int | None:
    """The first attempt's start by the driver's clock, in microseconds since 1970, if known."""
    metadata = next(iter(_lines(f"{checkpoint}/offsets/{batch}")), None)
    moment = metadata.get("batchTimestampMs") if isinstance(metadata, Mapping) else None
    return 1000 * int(moment) if moment else None


def _offset(path: str) -> Mapping[str, Any] | None:
    """The offset of the one source, from the last line of a checkpoint file."""
    offset = next(reversed(_lines(path)), None)
    return offset if isinstance(offset, Mapping) else None


def logged_files(checkpoint: str) -> Iterator[tuple[str, int]]:
    """All files that a source of files has returned, with their modification times."""
    log = f"{checkpoint}/sources/0"
    found = {name: state for name, state in dated_children(log).items() if name[:1].isdecimal()}
    # Now and then Spark compacts the log; the newest compacted file has all earlier entries.
    compacted = max((_entry(name) for name in found if name.endswith(".compact")), default=-1)
    for name, state in found.items():
        path = f"{log}/{name}"
        if name == f"{compacted}.compact":
            yield from _files_in(path)
        elif _entry(name) > compacted:
            # Read before a capture, and after it.
            yield from _entries.get(path, state, partial(_files_in, path))


def _files_in(path: str) -> tuple[tuple[str, int], ...]:
    # A former source of the stream may have logged other items here.
    items = (item for item in _items(path) if "path" in item)
    return tuple((str(item["path"]), int(item["timestamp"])) for item in items)


def _has_entry(log: str, entry: int) -> bool:
    return exists(f"{log}/{entry}") or exists(f"{log}/{entry}.compact")


def _items(path: str, part: str = "") -> Iterator[dict[str, Any]]:
    """The items of a source's log file whose text has `part`."""
    return _parsed(read_text(path), part)


def _parsed(text: str, part: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines()[1:] if part in line)


def _entry(name: str) -> int:
    return int(name.partition(".")[0])


def _sizes(files: Mapping[str, int]) -> list[tuple[int | None, int]] | None:
    """The size of each file, and its modification time as the source saw it.

    Sizes are in bytes, None for a file that is already gone; times in milliseconds since 1970.
    Returns None if only the source can access the files.
    """
    try:
        sizes = sizes_of(list(files))
    except (CapstanError, OSError):
        return None
    return [(sizes[path], modified) for path, modified in files.items()]


def _files(log: str, entries: range) -> Iterator[tuple[str, int]]:
    """The files of some entries of a log, in order, and when modified (milliseconds since 1970)."""
    for entry in entries:
        text = read_if_any(f"{log}/{entry}")
        if text is None:
            # Now and then Spark compacts all earlier entries into one file.
            text = read_text(f"{log}/{entry}.compact")
        # A compacted file lists all files that the source has ever returned: few are parsed.
        for item in _parsed(text, str(entry)):
            if item["batchId"] == entry:
                yield str(item["path"]), int(item["timestamp"])


def _partitions(begin: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Consumed, ...]:
    """Consumed offsets by partition; a newly discovered partition is read from its beginning."""
    before, after = dict(_offsets(begin)), dict(_offsets(end))
    return tuple(
        Consumed(part, before.get(part), until)
        for part, until in sorted(after.items())
        if before.get(part) != until
    ) or (Consumed(),)


def _offsets(topics: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, int]]:
    for topic, partitions in topics.items():
        for partition, offset in partitions.items():
            yield f"{topic}/{partition}", offset
