"""Re-capture: the output of a replay goes on another tape, for any number of workers.

What a replay puts out is a stream again, with a frontier that only moves on. So it can be recorded:
each new worker holds the frontier that was reached, receives its share of the records whose times
became complete since, and then moves on. The new tape is its own cursor: a second re-capture goes
on where it stands, and plays what is new alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.progress_events import CLOSING, Statement, numbered_events
from capstan.core.config import check_name
from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, IncompleteError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.interop.transfer.destination_tape import enrol, existing_tape, forgotten
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import WHOLE, require_kept
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.index import ContentSummary, WorkerState
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.tape import (
    Cut,
    Tape,
    append_events,
    create_tape,
    newest_cut,
    open_tape,
    read_records,
    stored_payload,
)
from capstan.verify import verify
from capstan.verify.content_check import require_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class RecaptureRequest:
    """What is to be re-captured.

    Attributes:
        stream: The stream to play; all its complete times.
        into: The stream that records it; made when it is not there.
        workers: Labels or numbers of captured workers; None for all.
        peers: How many workers the new stream has; None for as many as are chosen, or as it has.
        as_of: The cut; None for the newest.
    """

    stream: str
    into: str
    workers: tuple[str, ...] | None = None
    peers: int | None = None
    as_of: int | None = None

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        check_name("stream", self.into)
        if self.into == self.stream:
            raise InvalidRequestError(
                "CAP-INTO-STREAM", "a stream cannot be recorded onto itself", "name another stream"
            )
        if self.peers is not None and not 1 <= self.peers <= _MOST:
            raise InvalidRequestError(
                "CAP-PEERS", f"{self.peers} workers are not possible", f"choose 1 to {_MOST}"
            )


@dataclass(frozen=True, slots=True)
class Recaptured:
    """What a re-capture did.

    Attributes:
        stream: The stream that was played.
        cut: Its commit.
        into: The stream that records it.
        workers: How many workers that has.
        commit: Its newest commit.
        records: Records that were played now.
        frontier: What is complete on it now, as JSON times; empty when it is closed.
        stood: Whether nothing was new.
    """

    stream: str
    cut: int
    into: str
    workers: int
    commit: int
    records: int
    frontier: list[object]
    stood: bool


def recapture(spark: SparkSession, lake: Lake, request: RecaptureRequest) -> Recaptured:
    """Record what became complete of a stream since the last time, in one commit.

    Cut off anywhere, the same request finishes what was begun.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, the recording that is played is not sound; `CAP-TAPE`, an
            event of it has not the records that it says; `CAP-AUDIT`, what was recorded is not
            what was played.
        InvalidRequestError: `CAP-DECLARED`, the new stream came from another one, from other
            workers, or has another number of workers; `CAP-CLOSED`, it is closed; `CAP-CUT`, it is
            further than the cut; `CAP-RETIRED`, records that it needs were deleted.
        FencedError: `CAP-FENCED`, another process records onto it.
        IncompleteError: `CAP-INCOMPLETE`, the stream that is played has no worker yet.
    """
    tape = open_tape(lake, request.stream)
    cut = index.find_cut(tape, request.as_of)
    workers = index.resolve_workers(tape, cut, request.workers)
    if not workers:
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {tape.name} has no worker yet, so nothing of it is complete",
            "capture it first",
            stream=tape.name,
        )
    verify(spark, lake, tape, workers=tuple(workers), cut=cut).require_valid(tape)
    copy = _copy(spark, lake, request, tape, len(workers))
    commit = newest_cut(copy).commit + 1
    cut = _pinned(copy, commit, cut, tape)
    states = [s for s in index.worker_states(tape, cut) if s.worker in workers]
    after = index.frontier_of(tape, states)
    # Before the first commit its workers are written down, and hold the minimum.
    holders = index.worker_states(copy, Cut(max(commit - 1, 0), commit - 1))
    before = index.frontier_of(copy, holders)
    if after == before and commit:
        return _told(request, cut, copy, records=0, stood=True)
    _require_onward(tape, cut, copy, before, after)
    region = Region(Box.everything(tape.time_type), after, before if commit else None)
    require_kept(lake, tape, cut, tuple(workers), region, "the re-capture", WHOLE)
    source = _Source(tape, cut, tuple(workers), region)
    records = _record(spark, source, copy, commit, holders, _moves(holders, before, after))
    verify(spark, lake, copy).require_valid(copy)
    return _told(request, cut, copy, records=records, stood=False)


@dataclass(frozen=True, slots=True)
class _Source:
    """What is played: workers and times of a tape at a cut."""

    tape: Tape
    cut: Cut
    workers: tuple[int, ...]
    region: Region


def _record(
    spark: SparkSession,
    source: _Source,
    copy: Tape,
    commit: int,
    holders: Sequence[WorkerState],
    moves: list[Statement],
) -> int:
    """Write records, then events: one commit of the new tape; how many records it has."""
    note = {"stream": copy.name, "of": source.tape.name, "cut": source.cut.commit}
    records = read_records(
        spark, source.tape, source.cut, workers=source.workers, region=source.region
    )
    # What a commit has taken from a tape that lacks some it would keep, once they are put back.
    require_counts(spark, source.tape, source.cut, source.workers, source.region)
    dealt = _dealt(records, commit, len(holders))
    transaction = _transaction(copy, commit)
    delta.append(dealt, copy.paths.records, txn=transaction, note=note, merge_schema=True)
    emit("recapture.records", stream=copy.name, commit=commit)
    stored = _stored(spark, copy, commit)
    promised = index.content_summary(source.tape, source.cut, source.workers, source.region)
    found = _require_all(promised, stored, copy, commit)
    positions = {state.worker: state.events for state in holders}
    events = numbered_events(stored, copy, moves, positions, batch=commit, commit=commit)
    append_events(copy, events, commit, note)
    emit("recapture.events", stream=copy.name, commit=commit)
    return found


def _copy(
    spark: SparkSession, lake: Lake, request: RecaptureRequest, tape: Tape, chosen: int
) -> Tape:
    """The tape that records; made, with its workers, when it is not there."""
    copy = existing_tape(lake, request.into)
    count = request.peers or (chosen if copy is None else _count(copy))
    source = delta.open_table(tape.paths.events).metadata().id
    fixed = {
        "domain": "recapture",
        "of": {"stream": tape.name, "tape": str(source)},
        "workers": None if request.workers is None else sorted(request.workers),
        "count": count,
    }
    settings = {"fixed": fixed, "free": {}}
    payload = stored_payload(tape)
    if copy is None:
        copy = create_tape(spark, lake, request.into, tape.time_type, payload, settings)
    elif copy.settings != settings:
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {copy.name} does not record {count} workers of stream {tape.name} in this way",
            "re-capture as before, or into another stream",
            stream=copy.name,
        )
    check_payload(copy.name, stored_payload(copy), payload)
    if newest_cut(copy).commit < 0:
        enrol(copy, range(count))
    emit("recapture.workers", stream=copy.name, workers=count)
    return copy


def _count(copy: Tape) -> int:
    fixed = copy.settings.get("fixed")
    count = fixed.get("count") if isinstance(fixed, Mapping) else None
    return int(str(count)) if count is not None else 0


def _transaction(copy: Tape, commit: int) -> Txn:
    return Txn(f"recapture:{copy.name}", commit)


def _pinned(copy: Tape, commit: int, cut: Cut, tape: Tape) -> Cut:
    """The cut that a re-capture which was cut off had played; else the one that is wanted."""
    table = delta.open_table(copy.paths.records)
    if table.transaction_version(_transaction(copy, commit).app) != commit:
        return cut
    # Not the newest: what maintenance has written since has a note of its own.
    notes = map(delta.note_of, delta.history(copy.paths.records))
    played = next((int(str(note["cut"])) for note in notes if "cut" in note), None)
    if played is None:
        raise forgotten(copy)
    return index.find_cut(tape, played)


def _dealt(records: DataFrame, commit: int, count: int) -> DataFrame:
    """Played records, dealt to `count` new workers by their content, in the order of replay."""
    share = F.pmod(record_hashes(records)[0], F.lit(count)).cast("int")
    return (
        records.withColumn("share", share)
        .repartition("share")
        .sortWithinPartitions("share", "time", "worker", "batch", "pos")
        .select(
            F.col("share").alias("worker"),
            F.lit(commit).cast("bigint").alias("batch"),
            "time",
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
    )


def _require_onward(tape: Tape, cut: Cut, copy: Tape, before: Antichain, after: Antichain) -> None:
    """Check that the frontier only moves on: a commit that takes it back could not be undone."""
    if before.dominates(after):
        return
    if before.is_empty:
        raise InvalidRequestError(
            "CAP-CLOSED",
            f"stream {copy.name} is closed: no record of stream {tape.name} can come any more",
            "re-capture into another stream",
            stream=copy.name,
        )
    stands, reaches = (
        json.dumps([tape.time_type.render(time) for time in each]) for each in (before, after)
    )
    raise InvalidRequestError(
        "CAP-CUT",
        f"stream {copy.name} stands at {stands}, and at commit {cut.commit} stream {tape.name} "
        f"had come to {reaches}",
        "leave out --as-of, or re-capture into another stream",
        stream=copy.name,
    )


def _moves(holders: Sequence[WorkerState], before: Antichain, after: Antichain) -> list[Statement]:
    """Each new worker moves from the one frontier on to the other, after its messages."""
    moved = [(time, -1) for time in before if time not in after.elements]
    moved += [(time, 1) for time in after if time not in before.elements]
    return [(state.worker, CLOSING, moved) for state in holders]


def _stored(spark: SparkSession, copy: Tape, commit: int) -> DataFrame:
    stored = delta.load(spark, copy.paths.records).where(f"batch = {commit}")
    h1, h2 = record_hashes(stored)
    return stored.select(
        F.col("worker").alias("_worker"),
        F.col("time").alias("_time"),
        h1.alias("_h1"),
        h2.alias("_h2"),
    )


def _require_all(promised: ContentSummary, stored: DataFrame, copy: Tape, commit: int) -> int:
    """Check that what is stored is what the index of the other tape promises; how many records."""
    content = fingerprint(F.col("_h1"), F.col("_h2")).alias("content")
    found = stored.agg(F.count(F.lit(1)).alias("records"), content).collect()[0]
    parts = [found["content"][name] or 0 for name in ("h1", "h2")]
    hashed = "".join(f"{part % 2**64:016x}" for part in parts)
    if (promised.records, promised.fingerprint) != (found["records"], hashed):
        raise CheckFailedError(
            "CAP-AUDIT",
            f"stream {copy.name}, commit {commit}: {found['records']} records are stored, and "
            f"{promised.records} were promised, with another content",
            "see `capstan verify --deep` of the stream that is played for what is damaged",
            stream=copy.name,
        )
    return promised.records


def _told(
    request: RecaptureRequest, cut: Cut, copy: Tape, *, records: int, stood: bool
) -> Recaptured:
    newest = newest_cut(copy)
    states = index.worker_states(copy, newest)
    return Recaptured(
        request.stream,
        cut.commit,
        copy.name,
        len(states),
        newest.commit,
        records,
        [copy.time_type.render(time) for time in index.frontier_of(copy, states)],
        stood,
    )
