"""Import from Kafka topics: removes duplicates, restores the order, and rejects gaps.

All new events of the topics are one commit. Its end is stored with the records, so an interrupted
import is finished with the same events, whatever has arrived since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.protocol import Release
from capstan.errors import InvalidRequestError
from capstan.interop.kafka.export_topics import call_broker, read_header, read_messages
from capstan.interop.kafka.topic_checks import (
    TopicBatch,
    ends_of,
    require_ahead,
    require_all,
    require_own,
    require_registered,
    require_sound,
)
from capstan.interop.kafka.topic_layout import TopicHeader, Topics, TopicTransfer
from capstan.interop.transfer.destination_tape import (
    add_new_workers,
    existing_tape,
    interrupted_commit,
)
from capstan.interop.transfer.import_files import counted_events
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.schema import check_payload
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Tape, append_events, create_tape, newest_cut, stored_payload
from capstan.storage.tape.upgrade import take_stamps
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def import_topics(
    spark: SparkSession, lake: Lake, name: str, topics: Topics, *, timely: str | None = None
) -> TopicTransfer:
    """Put the new events of topics on the tape of a stream, in one commit."""
    header = read_header(spark, topics)
    if timely is not None and Release.of(timely) is not header.release:
        raise InvalidRequestError(
            "CAP-TIMELY",
            f"topics {topics.prefix}-* were exported in the form of timely {header.release}, and "
            f"are to be read as timely {timely}",
            f"leave out --timely, or give --timely {header.release}",
            topic=topics.prefix,
        )
    tape = _tape(spark, lake, name, header)
    commit = newest_cut(tape).commit + 1
    states = {s.worker: s for s in index.worker_states(tape, newest_cut(tape))}
    messages = read_messages(spark, topics, header).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        call_broker(name, messages.count)
        require_own(messages, header, topics)
        new = _new_rows(messages, {w: s.events for w, s in states.items()}, _pinned(tape, commit))
        ends = ends_of(new.where("kind <> 'record'"), states, topics)
        if not ends:
            return _result(tape, topics, header, events=0, records=0)
        require_registered(ends, header.workers.keys() | states.keys(), topics)
        batch = TopicBatch(new, header, ends, newest_cut(tape).batch + 1)
        records = require_all(batch, topics)
        outcomes = require_sound(batch, states, tape.time_type, name)
        require_ahead(batch, index.frontier_of(tape, states.values()), outcomes, states, name)
        tape = _write(spark, tape, batch, commit)
    finally:
        messages.unpersist()
    events = sum(end - (states[w].events if w in states else 0) for w, end in ends.items())
    return _result(tape, topics, header, events=events, records=records)


def _tape(spark: SparkSession, lake: Lake, name: str, header: TopicHeader) -> Tape:
    fixed: dict[str, object] = {
        "domain": "topics",
        "of": {"stream": header.stream, "tape": header.tape},
    }
    if header.release is Release.V032:
        fixed["timely"] = str(header.release)
    settings = TapeSettings(fixed)
    payload = StructType.fromJson(json.loads(header.columns))
    tape = existing_tape(lake, name)
    if tape is None:
        tape = create_tape(spark, lake, name, header.time_type, payload, settings)
    elif tape.settings != settings:
        raise InvalidRequestError(
            "CAP-EXISTS",
            f"stream {name} already exists and did not come from these topics",
            "import them under another name",
            stream=name,
        )
    check_payload(name, stored_payload(tape), payload)
    return tape


def _new_rows(
    messages: DataFrame, events: Mapping[int, int], ends: Mapping[int, int] | None
) -> DataFrame:
    """Messages not yet on tape, with `first`, the next `seq` of their worker; up to `ends`."""
    spark = messages.sparkSession
    firsts = spark.createDataFrame([*events.items()], "worker INT, known BIGINT")
    numbered = messages.join(F.broadcast(firsts), "worker", "left").withColumn(
        "first", F.coalesce("known", F.lit(0))
    )
    new = numbered.drop("known").where("seq >= first")
    if ends is None:
        return new
    rows = spark.createDataFrame([*ends.items()], "worker INT, end BIGINT")
    return new.join(F.broadcast(rows), "worker").where("seq < end").drop("end")


def _write(spark: SparkSession, tape: Tape, batch: TopicBatch, commit: int) -> Tape:
    """Write workers, then records, then the events that count them: one commit of the tape."""
    fresh = add_new_workers(tape, batch.header.workers, commit)
    emit("topics.workers", stream=tape.name, workers=fresh)
    rows = batch.events().drop("h1", "h2")
    if not tape.stamped and not rows.where("stamp IS NOT NULL").isEmpty():
        tape = take_stamps(tape)
    rows = rows if tape.stamped else rows.drop("stamp")
    records = batch.records().select("worker", "batch", "time", "pos", "data", *tape.stamp)
    note = {"stream": tape.name, "ends": {str(worker): end for worker, end in batch.ends.items()}}
    delta.append(
        records, tape.paths.records, txn=_transaction(tape, commit), note=note, merge_schema=True
    )
    emit("topics.records", stream=tape.name, commit=commit)
    stored = delta.load(spark, tape.paths.records).where(f"batch >= {batch.batch}")
    events = counted_events(rows, stored, commit).coalesce(1)
    append_events(tape, events, commit, {"stream": tape.name, "topics": True})
    emit("topics.events", stream=tape.name, commit=commit)
    return tape


def _transaction(tape: Tape, commit: int) -> Txn:
    return Txn(f"topics:{tape.name}", commit)


def _pinned(tape: Tape, commit: int) -> dict[int, int] | None:
    """By worker, the end of the events of an interrupted import; None without one."""
    ends = interrupted_commit(tape, _transaction(tape, commit), "ends")
    return None if ends is None else {int(worker): end for worker, end in ends.items()}


def _result(
    tape: Tape, topics: Topics, header: TopicHeader, *, events: int, records: int
) -> TopicTransfer:
    cut = newest_cut(tape)
    workers = len(index.worker_labels(tape, cut))
    counts = (cut.commit, workers, events, records)
    return TopicTransfer(tape.name, topics.url, *counts, header.release, unchanged=not events)
