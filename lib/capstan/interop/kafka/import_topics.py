"""From Kafka's topics onto a tape: duplicates and order put right, gaps refused by name.

What the topics have beyond the tape is one commit. Which events those are is written down with
their records; so an import that was cut off is finished with the same ones, whatever came since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.interop.kafka.export_topics import asked, read_head, read_messages
from capstan.interop.kafka.topic_checks import (
    Taken,
    ends_of,
    require_ahead,
    require_all,
    require_named,
    require_own,
    require_sound,
)
from capstan.interop.kafka.topic_layout import Head, Topics
from capstan.interop.transfer.destination_tape import enrol_named, existing_tape, forgotten
from capstan.interop.transfer.import_files import counted_events
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.tape import (
    Tape,
    append_events,
    create_tape,
    newest_cut,
    stored_payload,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENT = ["worker", "seq"]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What an import from topics did.

    Attributes:
        stream: The stream.
        place: The topics.
        cut: The newest commit of its tape.
        workers: How many workers it has.
        events: Events that are on tape now and were not before.
        records: Their records.
        stood: Whether nothing was new.
    """

    stream: str
    place: str
    cut: int
    workers: int
    events: int
    records: int
    stood: bool


def import_topics(spark: SparkSession, lake: Lake, name: str, topics: Topics) -> TakenOver:
    """Put on the tape of a stream what its topics have beyond it, in one commit.

    Raises:
        InvalidRequestError: `CAP-TOPIC`, the topics are no recording; `CAP-EXISTS`, the stream came
            from elsewhere; `CAP-SCHEMA`.
        CheckFailedError: `CAP-TOPIC-GAP`, events or records are missing; `CAP-TOPIC`, they are not
            what was written; `CAP-VIOLATION`, they are no sound recording; `CAP-BEHIND`, a new
            worker has records at times that are complete here. Nothing was written.
        SystemFailureError: `CAP-BROKER`, the broker does not answer.
        FencedError: `CAP-FENCED`, another process records onto the tape.
    """
    head = read_head(spark, topics)
    tape = _tape(spark, lake, name, head)
    commit = newest_cut(tape).commit + 1
    states = {s.worker: s for s in index.worker_states(tape, newest_cut(tape))}
    messages = read_messages(spark, topics, head).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        asked(name, messages.count)
        require_own(messages, head, topics)
        new = _beyond(messages, {w: s.events for w, s in states.items()}, _pinned(tape, commit))
        ends = ends_of(new.where("kind <> 'record'"), states, topics)
        if not ends:
            return _told(tape, topics, events=0, records=0)
        require_named(ends, head.workers.keys() | states.keys(), topics)
        taken = Taken(new, head, ends, newest_cut(tape).batch + 1)
        records = require_all(taken, topics)
        outcomes = require_sound(taken, states, tape.time_type, name)
        require_ahead(taken, index.frontier_of(tape, states.values()), outcomes, states, name)
        _write(spark, tape, taken, commit)
    finally:
        messages.unpersist()
    events = sum(end - (states[w].events if w in states else 0) for w, end in ends.items())
    return _told(tape, topics, events=events, records=records)


def _tape(spark: SparkSession, lake: Lake, name: str, head: Head) -> Tape:
    fixed = {"domain": "topics", "of": {"stream": head.stream, "tape": head.tape}}
    settings = {"fixed": fixed, "free": {}}
    payload = StructType.fromJson(json.loads(head.columns))
    tape = existing_tape(lake, name)
    if tape is None:
        tape = create_tape(spark, lake, name, head.time_type, payload, settings)
    elif tape.settings != settings:
        raise InvalidRequestError(
            "CAP-EXISTS",
            f"there is a stream {name} already, which did not come from these topics",
            "import them under another name",
            stream=name,
        )
    check_payload(name, stored_payload(tape), payload)
    return tape


def _beyond(
    messages: DataFrame, events: Mapping[int, int], ends: Mapping[int, int] | None
) -> DataFrame:
    """What is not on tape yet, with `first`, the next `seq` of its worker; up to `ends`."""
    spark = messages.sparkSession
    firsts = spark.createDataFrame([*events.items()], "worker INT, known BIGINT")
    found = messages.join(F.broadcast(firsts), "worker", "left").withColumn(
        "first", F.coalesce("known", F.lit(0))
    )
    new = found.drop("known").where("seq >= first")
    if ends is None:
        return new
    rows = spark.createDataFrame([*ends.items()], "worker INT, end BIGINT")
    return new.join(F.broadcast(rows), "worker").where("seq < end").drop("end")


def _write(spark: SparkSession, tape: Tape, taken: Taken, commit: int) -> None:
    """Workers, then records, then the events that promise them: one commit of the tape."""
    fresh = enrol_named(tape, taken.head.workers, commit)
    emit("topics.workers", stream=tape.name, workers=fresh)
    records = taken.records().select("worker", "batch", "time", "pos", "data")
    note = {"stream": tape.name, "ends": {str(worker): end for worker, end in taken.ends.items()}}
    delta.append(
        records, tape.paths.records, txn=_transaction(tape, commit), note=note, merge_schema=True
    )
    emit("topics.records", stream=tape.name, commit=commit)
    stored = spark.read.format("delta").load(tape.paths.records).where(f"batch >= {taken.batch}")
    events = counted_events(taken.events().drop("h1", "h2"), stored, commit).coalesce(1)
    append_events(tape, events, commit, {"stream": tape.name, "topics": True})
    emit("topics.events", stream=tape.name, commit=commit)


def _transaction(tape: Tape, commit: int) -> Txn:
    return Txn(f"topics:{tape.name}", commit)


def _pinned(tape: Tape, commit: int) -> dict[int, int] | None:
    """Where the events end of an import that was cut off after their records; None for none."""
    table = delta.open_table(tape.paths.records)
    if table.transaction_version(_transaction(tape, commit).app) != commit:
        return None
    for entry in delta.history(tape.paths.records):
        ends = delta.note_of(entry).get("ends")
        if isinstance(ends, Mapping):
            return {int(worker): int(str(end)) for worker, end in ends.items()}
    raise forgotten(tape)


def _told(tape: Tape, topics: Topics, *, events: int, records: int) -> TakenOver:
    cut = newest_cut(tape)
    workers = len(index.worker_labels(tape, cut))
    return TakenOver(tape.name, topics.place, cut.commit, workers, events, records, not events)
