"""What a micro-batch has consumed of its source, as Structured Streaming has written it down.

A checkpoint keeps, by micro-batch, when it was begun, and where each source stands at its end; of a
source of files also which files it consists of. All are there before the micro-batch begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from capstan.declare import Source
from capstan.tape.feed import Consumed
from capstan.tape.lake import exists, read_text


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
        return (Consumed(files=tuple(_files(f"{checkpoint}/sources/0", listed))),)
    if source.format == "kafka":
        return _partitions(begin or _offset(f"{checkpoint}/sources/0/0") or {}, end)
    return (Consumed(detail={"offset": end}),)


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


def _files(log: str, listed: range) -> Iterator[str]:
    """The files of some entries of a source's log, in the order in which they were found."""
    for entry in listed:
        single = f"{log}/{entry}"
        # Now and then Spark writes all that were so far into one.
        path = single if exists(single) else f"{single}.compact"
        for line in read_text(path).splitlines()[1:]:
            found = json.loads(line)
            if found["batchId"] == entry:
                yield str(found["path"])


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
