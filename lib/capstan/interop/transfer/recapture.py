"""Re-capture: record the output of a replay on another tape, for any number of workers.

`docs/protocol.md`, section 16, says what each worker receives. The new tape is its own cursor: a
second re-capture continues from it and plays only new records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.batch.commit_events import CLOSING, Statement, hashed, numbered_events
from capstan.core.config import check_name
from capstan.core.parallelism import check_parallelism
from capstan.core.protocol import Release
from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, IncompleteError, InvalidRequestError
from capstan.interop.transfer.destination_tape import add_workers, existing_tape, interrupted_commit
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.ledger.retirements import WHOLE, require_records
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.index import ContentSummary, WorkerState
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.settings import TapeSettings
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
from capstan.storage.tape.upgrade import take_stamps
from capstan.storage.tape.worker_choice import resolve_workers
from capstan.telemetry.instrumentation import emit
from capstan.verify import verify
from capstan.verify.content_check import require_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class RecaptureRequest:
    """Request for a re-capture of all complete times of a stream; a missing `into` is created."""

    stream: str
    into: str
    workers: tuple[str, ...] | None = None  # labels or numbers; None for all
    peers: int | None = None  # None for the present number, or for one per chosen worker
    as_of: int | None = None  # commit; None for the newest
    timely: str | None = None  # the form of its exports; None as before, or as the stream's

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        check_name("stream", self.into)
        if self.into == self.stream:
            raise InvalidRequestError(
                "CAP-INTO-STREAM", "a stream cannot be recorded onto itself", "name another stream"
            )
        if self.peers is not None:
            check_parallelism(self.peers)
        if self.timely is not None:
            Release.of(self.timely)


@dataclass(frozen=True, slots=True)
class RecaptureResult:
    """Result of a re-capture."""

    stream: str
    cut: int
    into: str
    workers: int
    commit: int
    records: int
    frontier: list[object]  # JSON times; empty when it is closed
    unchanged: bool  # there was nothing new

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        return asdict(self)


def recapture(spark: SparkSession, lake: Lake, request: RecaptureRequest) -> RecaptureResult:
    """Record in one commit what is complete since the last; repeating finishes interrupted work."""
    tape = open_tape(lake, request.stream, stamps=True)
    cut = index.find_cut(tape, request.as_of)
    workers = resolve_workers(tape, cut, request.workers)
    if not workers:
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {tape.name} has no worker yet, so none of its times is complete",
            "capture it first",
            stream=tape.name,
        )
    verify(spark, lake, tape, workers=tuple(workers), cut=cut).raise_for_violations()
    timely = _form(lake, request, tape)
    if Release.V031 in (timely, request.timely):
        why = "and the re-capture is declared as one of timely 0.31, with one time each"
        hint = "re-capture it into another stream, with --timely 0.32"
        index.require_one_time(tape, cut, tuple(workers), why, hint)
    if existing_tape(lake, request.into) is None:
        # What is refused makes no stream.
        _require_playable(lake, _source(tape, cut, workers))
    copy = _copy(spark, lake, request, tape, len(workers), timely)
    commit = newest_cut(copy).commit + 1
    played = interrupted_commit(copy, _transaction(copy, commit), "cut")
    cut = cut if played is None else index.find_cut(tape, played)
    # The new workers are on the roster before the first commit, and hold the minimum.
    holders = index.worker_states(copy, Cut(max(commit - 1, 0), commit - 1))
    before = index.frontier_of(copy, holders)
    source = _source(tape, cut, workers, before if commit else None)
    after = source.region.below
    assert after is not None
    if after == before and commit:
        return _result(request, cut, copy, records=0, unchanged=True)
    _require_advance(tape, cut, copy, before, after)
    _require_playable(lake, source)
    records = _record(spark, source, copy, commit, holders, _moves(holders, before, after))
    verify(spark, lake, copy).raise_for_violations()
    return _result(request, cut, copy, records=records, unchanged=False)


@dataclass(frozen=True, slots=True)
class _Source:
    """The input of a re-capture: workers and times of a tape at a cut."""

    tape: Tape
    cut: Cut
    workers: tuple[int, ...]
    region: Region


def _source(
    tape: Tape, cut: Cut, workers: Mapping[int, str], before: Antichain | None = None
) -> _Source:
    """What is complete of some workers at a cut, and was not under an earlier frontier."""
    states = [state for state in index.worker_states(tape, cut) if state.worker in workers]
    region = Region(Box.everything(tape.time_type), index.frontier_of(tape, states), before)
    return _Source(tape, cut, tuple(workers), region)


def _record(
    spark: SparkSession,
    source: _Source,
    copy: Tape,
    commit: int,
    holders: Sequence[WorkerState],
    moves: list[Statement],
) -> int:
    """Write records, then events: one commit of the new tape. Returns the number of records."""
    note = {"stream": copy.name, "of": source.tape.name, "cut": source.cut.commit}
    records = read_records(
        spark, source.tape, source.cut, workers=source.workers, region=source.region
    )
    if source.tape.stamped:
        # The time on tape, not the place in the region.
        records = records.withColumn("time", F.coalesce(F.get("stamp", F.lit(0)), "time"))
    # Records missing from the tape now may be put back later; this commit would never get them.
    require_counts(spark, source.tape, source.cut, source.workers, source.region)
    shares = _distributed(records, commit, len(holders), source.tape)
    transaction = _transaction(copy, commit)
    delta.append(shares, copy.paths.records, txn=transaction, note=note, merge_schema=True)
    emit("recapture.records", stream=copy.name, commit=commit)
    stored = hashed(delta.load(spark, copy.paths.records).where(f"batch = {commit}"))
    promised = index.content_summary(source.tape, source.cut, source.workers, source.region)
    count = _require_all(promised, stored, copy, commit)
    positions = {state.worker: state.events for state in holders}
    events = numbered_events(stored, copy, moves, positions, batch=commit, commit=commit)
    append_events(copy, events, commit, note)
    emit("recapture.events", stream=copy.name, commit=commit)
    return count


def _form(lake: Lake, request: RecaptureRequest, tape: Tape) -> str | None:
    """The release in whose form it is exported: as asked for, as before, or as the source is."""
    copy = existing_tape(lake, request.into)
    known = (tape if copy is None else copy).settings.timely
    if copy is not None and known is None and request.timely == Release.V031:
        return None  # it need not be stated
    return request.timely or known


def _copy(
    spark: SparkSession,
    lake: Lake,
    request: RecaptureRequest,
    tape: Tape,
    chosen: int,
    timely: str | None,
) -> Tape:
    """The tape to record on; created, with its workers, if it does not exist."""
    copy = existing_tape(lake, request.into)
    count = request.peers or (chosen if copy is None else copy.settings.fixed.get("count", 0))
    source = tape.identity
    fixed = {
        "domain": "recapture",
        "of": {"stream": tape.name, "tape": str(source)},
        "workers": None if request.workers is None else sorted(request.workers),
        "count": count,
    }
    if timely is not None:
        fixed["timely"] = timely
    settings = TapeSettings(fixed)
    payload = stored_payload(tape)
    stamped = tape.stamped
    if copy is None:
        of = tape.time_type
        copy = create_tape(spark, lake, request.into, of, payload, settings, stamped=stamped)
    elif copy.settings != settings:
        _require_form(copy, fixed, timely)
        raise InvalidRequestError(
            "CAP-DECLARED",
            f"stream {copy.name} does not record {count} workers of stream {tape.name} in this way",
            "repeat the earlier re-capture, or choose another stream",
            stream=copy.name,
        )
    check_payload(copy.name, stored_payload(copy), payload)
    if stamped:
        copy = take_stamps(copy)
    if newest_cut(copy).commit < 0:
        add_workers(copy, range(count))
    emit("recapture.workers", stream=copy.name, workers=count)
    return copy


def _require_form(copy: Tape, fixed: Mapping[str, object], timely: str | None) -> None:
    """Check that a release is that of the copy, if nothing else differs from it."""
    has = copy.settings.timely
    if has == timely or {**fixed, "timely": has} != {"timely": None, **copy.settings.fixed}:
        return
    raise InvalidRequestError(
        "CAP-DECLARED",
        f"stream {copy.name} has the form of timely {has or Release.V031}, which --timely {timely} "
        "cannot change",
        "leave --timely out, or re-capture into another stream",
        stream=copy.name,
    )


def _transaction(copy: Tape, commit: int) -> Txn:
    return Txn(f"recapture:{copy.name}", commit)


def _distributed(records: DataFrame, commit: int, count: int, tape: Tape) -> DataFrame:
    """Played records, distributed to `count` new workers by content, in replay order."""
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
            *tape.stamp,
        )
    )


def _require_playable(lake: Lake, source: _Source) -> None:
    """Check that no record was retired, or is left out because no element of a stamp places it."""
    tape, cut, workers, region = source.tape, source.cut, source.workers, source.region
    require_records(lake, tape, cut, workers, region, "the re-capture", WHOLE)
    # Nothing says when the last of them has come, so no later commit could have them either.
    left_out = not region.is_everything and any(
        records and not stamp for _, stamp, records in index.stamps(tape, cut, workers)
    )
    if left_out:
        raise InvalidRequestError(
            "CAP-STAMP",
            f"stream {tape.name} has records under stamps without elements, which are complete "
            "only when the stream has ended",
            "close the stream, and re-capture it into a new one",
            stream=tape.name,
        )


def _require_advance(tape: Tape, cut: Cut, copy: Tape, before: Antichain, after: Antichain) -> None:
    """Check that the frontier only advances: a commit that moves it back could not be undone."""
    if before.dominates(after):
        return
    if before.is_empty:
        raise InvalidRequestError(
            "CAP-CLOSED",
            f"stream {copy.name} is closed: no further records of stream {tape.name} can come",
            "re-capture into another stream",
            stream=copy.name,
        )
    copy_frontier, tape_frontier = (
        json.dumps([tape.time_type.render(time) for time in frontier])
        for frontier in (before, after)
    )
    raise InvalidRequestError(
        "CAP-CUT",
        f"stream {copy.name} is at {copy_frontier}, but at commit {cut.commit} stream {tape.name} "
        f"was only at {tape_frontier}",
        "leave out --as-of, or re-capture into another stream",
        stream=copy.name,
    )


def _moves(holders: Sequence[WorkerState], before: Antichain, after: Antichain) -> list[Statement]:
    """Statements that move each new worker between the frontiers, after its messages."""
    moved = [(time, -1) for time in before if time not in after.elements]
    moved += [(time, 1) for time in after if time not in before.elements]
    return [(state.worker, CLOSING, moved) for state in holders]


def _require_all(promised: ContentSummary, stored: DataFrame, copy: Tape, commit: int) -> int:
    """Check the stored records against the index of the source; returns their number."""
    content = fingerprint(F.col("h1"), F.col("h2")).alias("content")
    stored_content = stored.agg(F.count(F.lit(1)).alias("records"), content).collect()[0]
    parts = [stored_content["content"][name] or 0 for name in ("h1", "h2")]
    content_hash = "".join(f"{part % 2**64:016x}" for part in parts)
    if (promised.records, promised.fingerprint) != (stored_content["records"], content_hash):
        raise CheckFailedError(
            "CAP-AUDIT",
            f"stream {copy.name}, commit {commit}: {stored_content['records']} records are stored, "
            f"but {promised.records} were expected, or their content differs",
            "run `capstan verify --deep` on the source stream to see which records are damaged",
            stream=copy.name,
        )
    return promised.records


def _result(
    request: RecaptureRequest, cut: Cut, copy: Tape, *, records: int, unchanged: bool
) -> RecaptureResult:
    newest = newest_cut(copy)
    states = index.worker_states(copy, newest)
    return RecaptureResult(
        request.stream,
        cut.commit,
        copy.name,
        len(states),
        newest.commit,
        records,
        [copy.time_type.render(time) for time in index.frontier_of(copy, states)],
        unchanged,
    )
