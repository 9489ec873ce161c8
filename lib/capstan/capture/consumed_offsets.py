"""What a micro-batch has consumed of its source, as Structured Streaming has written it down.

A checkpoint keeps, by micro-batch, when it was begun, and where each source stands at its end; of a
source of files also which files it consists of. All are there before the micro-batch begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from capstan.core.config import Source
from capstan.errors import CapstanError
from capstan.storage.lake import children, exists, read_text, sizes_of
from capstan.storage.tape.feed import Consumed

_BYTES = 4
"""What a row takes in a file at the least, as formats compress."""
_LEAST = 100
"""Rows that a file may have however small it is."""


def consumed(checkpoint: str, source: Source, batch: int) -> tuple[Consumed, ...]:
    """What a micro-batch has consumed, a part each; one of no attributes where that is not told.

    Args:
        checkpoint: The folder of the checkpoint.
        source: The declared source; a stream has one.
        batch: The checkpoint's number of the micro-batch.
    """
    end = _offset(f"{checkpoint}/offsets/{batch}")
    begin = _offset(f"{checkpoint}/offsets/{batch - 1}") if batch else None
    if not isinstance(end, Mapping):
        return (Consumed(),)
    if "logOffset" in end:
        first = -1 if begin is None else int(str(begin["logOffset"]))
        listed = range(first + 1, int(str(end["logOffset"])) + 1)
        found = dict(_files(f"{checkpoint}/sources/0", listed))
        kept = _kept(found)
        return (Consumed(files=tuple(found), detail={"kept": kept} if kept else None),)
    if source.format == "kafka":
        return _partitions(begin or _offset(f"{checkpoint}/sources/0/0") or {}, end)
    return (Consumed(detail={"offset": end}),)


def most_rows(parts: Sequence[Consumed]) -> int | None:
    """About how many rows a micro-batch has at the most; None where its source does not tell.

    Args:
        parts: What it consumed.
    """
    rows = 0
    for part in parts:
        if part.files is not None:
            kept = (part.detail or {}).get("kept") if part.files else []
            if not isinstance(kept, list):
                return None
            rows += sum(_LEAST + (size or 0) // _BYTES for size, _ in kept)
        elif part.since is not None and part.until is not None:
            rows += part.until - part.since
        else:
            return None
    return rows


def begun_at(checkpoint: str, batch: int) -> int | None:
    """When a micro-batch was begun, in microseconds since 1970; of one tried again the first time.

    Args:
        checkpoint: The folder of the checkpoint.
        batch: The checkpoint's number of the micro-batch.

    Returns:
        The moment by the clock of the driver, or None where that is not told.
    """
    path = f"{checkpoint}/offsets/{batch}"
    if not exists(path):
        return None
    # A version, what Spark knew when it began, and the sources.
    lines = read_text(path).splitlines()[1:]
    known = json.loads(lines[0]) if lines else None
    moment = known.get("batchTimestampMs") if isinstance(known, dict) else None
    return 1000 * int(moment) if moment else None


def _offset(path: str) -> Mapping[str, object] | None:
    """The last line of a file of the checkpoint: where its one source stands."""
    if not exists(path):
        return None
    found = json.loads(read_text(path).splitlines()[-1])
    return found if isinstance(found, dict) else None


def logged_files(checkpoint: str) -> Iterator[tuple[str, int]]:
    """All files that a source of files has given, each with when it was changed last.

    Args:
        checkpoint: The folder of the checkpoint.
    """
    log = f"{checkpoint}/sources/0"
    names = [name for name in children(log) if name[:1].isdecimal()]
    # What was so far is in the newest of the files into which Spark writes all, now and then.
    whole = max((_entry(name) for name in names if name.endswith(".compact")), default=-1)
    for name in names:
        if _entry(name) > whole or name == f"{whole}.compact":
            for line in read_text(f"{log}/{name}").splitlines()[1:]:
                found = json.loads(line)
                # Another source, as the stream may have had before, logs other things there.
                if "path" in found:
                    yield str(found["path"]), int(found["timestamp"])


def _entry(name: str) -> int:
    return int(name.partition(".")[0])


def _kept(files: Mapping[str, int]) -> list[tuple[int | None, int]] | None:
    """Of each file its size, and when it was changed last as the source has seen it.

    In bytes, None for a file that is gone already, and milliseconds since 1970. None where nobody
    but the source can look at them.
    """
    try:
        sizes = sizes_of(list(files))
    except (CapstanError, OSError):
        return None
    return [(sizes[path], modified) for path, modified in files.items()]


def _files(log: str, listed: range) -> Iterator[tuple[str, int]]:
    """The files of some entries of a source's log, in the order in which they were found.

    Each with when it was changed last, in milliseconds since 1970.
    """
    for entry in listed:
        single = f"{log}/{entry}"
        # Now and then Spark writes all that were so far into one.
        path = single if exists(single) else f"{single}.compact"
        for line in read_text(path).splitlines()[1:]:
            found = json.loads(line)
            if found["batchId"] == entry:
                yield str(found["path"]), int(found["timestamp"])


def _partitions(begin: Mapping[str, object], end: Mapping[str, object]) -> tuple[Consumed, ...]:
    """Offsets by partition; one that has just been found is read from its beginning."""
    before, after = dict(_offsets(begin)), dict(_offsets(end))
    return tuple(
        Consumed(part, before.get(part), until)
        for part, until in sorted(after.items())
        if before.get(part) != until
    ) or (Consumed(),)


def _offsets(of: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for topic, partitions in of.items():
        assert isinstance(partitions, Mapping)
        for partition, offset in partitions.items():
            yield f"{topic}/{partition}", int(str(offset))
