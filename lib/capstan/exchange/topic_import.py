"""From Kafka's topics onto a tape: duplicates and order put right, gaps refused by name.

What the topics have beyond the tape is one commit. Which events those are is written down with
their records; so an import that was cut off is finished with the same ones, whatever came since.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.errors import AnswerIsNo, BadRequest
from capstan.exchange.importing import counted_events
from capstan.exchange.onto import enrol_named, existing_tape, forgotten
from capstan.exchange.topics import RECORD, asked, read_head, read_messages, short
from capstan.interop.topics import Head, Topics, mixed
from capstan.steps import reached
from capstan.tape import delta, summary
from capstan.tape.columns import coordinate
from capstan.tape.fingerprint import fingerprint, record_hashes
from capstan.tape.lake import Lake
from capstan.tape.schema import check_payload, time_struct, updates_array
from capstan.tape.tape import (
    Tape,
    append_events,
    create_tape,
    newest_cut,
    stored_payload,
)
from capstan.tape.transaction import Txn
from capstan.times import TimeType
from capstan.verify.columns import Fingerprint
from capstan.verify.fold import Start
from capstan.verify.run import judge_events

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
        BadRequest: `CAP-TOPIC`, the topics are no recording; `CAP-EXISTS`, the stream came from
            elsewhere; `CAP-SCHEMA`.
        AnswerIsNo: `CAP-TOPIC-GAP`, events or records are missing; `CAP-TOPIC`, they are not what
            was written; `CAP-VIOLATION`, they are no sound recording. Nothing was written.
        Broken: `CAP-BROKER`, the broker does not answer.
        Fenced: `CAP-FENCED`, another process records onto the tape.
    """
    head = read_head(spark, topics)
    tape = _tape(spark, lake, name, head)
    commit = newest_cut(tape).commit + 1
    states = {s.worker: s for s in summary.worker_states(tape, newest_cut(tape))}
    messages = read_messages(spark, topics, head).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        asked(name, messages.count)
        _require_own(messages, head, topics)
        new = _beyond(messages, {w: s.events for w, s in states.items()}, _pinned(tape, commit))
        ends = _ends(new.where("kind <> 'record'"), states, topics)
        if not ends:
            return _told(tape, topics, events=0, records=0)
        _require_named(ends, head.workers.keys() | states.keys(), topics)
        taken = _Taken(new, head, ends, newest_cut(tape).batch + 1)
        records = _require_all(taken, topics)
        _require_sound(taken, states, tape.time_type, name)
        _write(spark, tape, taken, commit)
    finally:
        messages.unpersist()
    events = sum(end - (states[w].events if w in states else 0) for w, end in ends.items())
    return _told(tape, topics, events=events, records=records)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Messages that are to be put on tape, numbered as their events will be.

    Attributes:
        messages: Columns of `message`, `worker` and `first`, the next `seq` of the worker.
        head: What they are.
        ends: By worker, the `seq` after its last event.
        batch: The batch of a worker's next event; each one after it has one more.
    """

    messages: DataFrame
    head: Head
    ends: Mapping[int, int]
    batch: int

    @property
    def number(self) -> Column:
        """The batch of an event: unique for its worker, and beyond all that are on tape."""
        return (F.col("seq") - F.col("first") + F.lit(self.batch)).alias("batch")

    def events(self) -> DataFrame:
        """Events as `counted_events` takes them, and their `h1, h2`; each once."""
        time_type = self.head.time_type
        update = F.transform(
            "updates",
            lambda each: F.struct(
                _time(each.getField("time"), time_type).alias("time"), each.getField("diff")
            ),
        )
        time = F.when(F.col("time").isNotNull(), _time(F.col("time"), time_type))
        return (
            self.messages.where("kind <> 'record'")
            .dropDuplicates(_EVENT)
            .select(
                *_EVENT,
                "kind",
                time.cast(time_struct(time_type)).alias("time"),
                update.cast(updates_array(time_type)).alias("updates"),
                self.number,
                "records",
                "h1",
                "h2",
            )
        )

    def records(self) -> DataFrame:
        """Records with the `seq` of their event, its batch and time; each content once."""
        rows = self.messages.where("kind = 'record'").select(*_EVENT, "pos", "data", self.number)
        h1, h2 = record_hashes(rows)
        hashed = rows.withColumn("found_h1", h1).withColumn("found_h2", h2)
        once = hashed.dropDuplicates([*_EVENT, "pos", "found_h1", "found_h2"])
        return once.join(self.events().select(*_EVENT, "time"), _EVENT, "left")


def _time(numbers: Column, time_type: TimeType) -> Column:
    return F.struct(*(coordinate(numbers[i], c) for i, c in enumerate(time_type.coordinates)))


def _tape(spark: SparkSession, lake: Lake, name: str, head: Head) -> Tape:
    fixed = {"domain": "topics", "of": {"stream": head.stream, "tape": head.tape}}
    settings = {"fixed": fixed, "free": {}}
    payload = StructType.fromJson(json.loads(head.columns))
    tape = existing_tape(lake, name)
    if tape is None:
        tape = create_tape(spark, lake, name, head.time_type, payload, settings)
    elif tape.settings != settings:
        raise BadRequest(
            "CAP-EXISTS",
            f"there is a stream {name} already, which did not come from these topics",
            "import them under another name",
            stream=name,
        )
    check_payload(name, stored_payload(spark, tape), payload)
    return tape


def _require_own(messages: DataFrame, head: Head, topics: Topics) -> None:
    """Check that every message is one of this recording."""
    known = ", ".join(f"'{kind}'" for kind in ("progress", "messages", RECORD))
    of, foreign = F.lit(short(head)), f"kind IS NULL OR kind NOT IN ({known}) OR seq IS NULL"
    found = messages.agg(
        F.count_if(F.expr(foreign)).alias("foreign"), F.count_if(F.col("of") != of).alias("others")
    ).collect()[0]
    if found["foreign"]:
        raise AnswerIsNo(
            "CAP-TOPIC",
            f"{found['foreign']} messages of topics {topics.prefix}-* are no events",
            "topics of recordings take nothing else; export to topics of their own",
        )
    if found["others"]:
        raise mixed(f"{topics.prefix}-*")


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


def _ends(
    events: DataFrame, states: Mapping[int, summary.WorkerState], topics: Topics
) -> dict[int, int]:
    """By worker the `seq` after its last event; all from the first on are there."""
    told = ["kind", "time", "updates", "records", "h1", "h2"]
    found = (
        events.groupBy("worker", "first")
        .agg(
            F.count_distinct("seq").alias("count"),
            F.max("seq").alias("last"),
            F.count_distinct(F.struct("seq", F.to_json(F.struct(*told)))).alias("different"),
        )
        .collect()
    )
    for row in sorted(found, key=lambda row: row["worker"]):
        if row["different"] > row["count"]:
            raise _wrong(topics, row["worker"], "has two different events of one number")
        missing = row["last"] + 1 - row["first"] - row["count"]
        if missing:
            first = _first_missing(events, row["worker"], row["first"])
            raise _gap(topics, row["worker"], f"lacks {missing} events, the first is {first}")
    assert all(row["first"] == states[row["worker"]].events for row in found if row["first"])
    return {row["worker"]: row["last"] + 1 for row in found}


def _require_named(ends: Mapping[int, int], named: Collection[int], topics: Topics) -> None:
    """Check that all whose events are to be put on tape are on its roster, or will be."""
    for worker in sorted(ends.keys() - named):
        raise AnswerIsNo(
            "CAP-TOPIC",
            f"topic {topics.of(worker)} has events, and topic {topics.prefix} names no worker "
            f"{worker}",
            "import again once the export is done; delete the topic if it is none of this stream's",
            worker=worker,
            topic=topics.of(worker),
        )


def _first_missing(events: DataFrame, worker: int, first: int) -> int:
    own = events.where(F.col("worker") == worker).select("seq").distinct()
    placed = own.withColumn("place", F.expr("row_number() OVER (ORDER BY seq)") - 1 + first)
    row = placed.where("seq <> place").agg(F.min("place").alias("place")).collect()[0]
    return int(row["place"])


def _require_all(taken: _Taken, topics: Topics) -> int:
    """Check that each event has exactly its records; how many there are."""
    zero = F.lit(0).cast("bigint")
    content = fingerprint(F.col("found_h1"), F.col("found_h2"))
    stored = (
        taken.records()
        .groupBy(*_EVENT)
        .agg(F.count(F.lit(1)).alias("stored"), content.alias("found"))
    )
    promised = taken.events().select(*_EVENT, "kind", "records", "h1", "h2")
    both = promised.join(stored, _EVENT, "full_outer")
    held, there = F.coalesce("records", zero), F.coalesce("stored", zero)
    same = (F.coalesce("h1", zero) == F.coalesce("found.h1", zero)) & (
        F.coalesce("h2", zero) == F.coalesce("found.h2", zero)
    )
    absent = F.col("kind").isNull()
    kind = F.when(absent | (there < held), "gap").when((there > held) | ~same, "wrong")
    judged = both.select(*_EVENT, kind.alias("wrong"), there.alias("there"), held.alias("held"))
    first = F.min(F.when(F.col("wrong").isNotNull(), F.struct(*_EVENT, "wrong", "there", "held")))
    row = judged.agg(first.alias("first"), F.sum("there").alias("records")).collect()[0]
    if row["first"] is None:
        return int(row["records"] or 0)
    worker, seq, what, there_, held_ = row["first"]
    if what == "gap" and not held_:
        raise _gap(topics, worker, f"lacks event {seq}, of which it has {there_} records")
    if what == "gap":
        raise _gap(topics, worker, f"lacks {held_ - there_} of {held_} records of event {seq}")
    raise _wrong(topics, worker, f"has other records of event {seq} than were written")


def _require_sound(
    taken: _Taken, states: Mapping[int, summary.WorkerState], time_type: TimeType, name: str
) -> None:
    """Check that recordings obey the rules, before anything is written."""
    whole, none = Fingerprint.WHOLE.value, Fingerprint.NONE.value
    content = F.when(F.col("kind") == "messages", whole).otherwise(none).cast("tinyint")
    events = taken.events().select(
        *_EVENT,
        F.lit(0).cast("bigint").alias("commit"),
        "kind",
        "time",
        "updates",
        "records",
        content.alias("fingerprint"),
    )
    sorted_ = events.repartition("worker").sortWithinPartitions(*events.columns)
    starts = {
        worker: Start(-1, state.events, state.records, state.holdings)
        for worker, state in states.items()
    }
    for worker in taken.ends:
        starts.setdefault(worker, Start())
    for worker, outcome in sorted(judge_events(sorted_, time_type, starts).items()):
        violation = outcome.violation
        if violation is not None:
            raise AnswerIsNo(
                "CAP-VIOLATION",
                f"stream {name}, worker {worker} breaks {violation.rule.value}: "
                f"{violation.describe(time_type)}",
                "nothing was written; whoever wrote the topics wrote no sound recording",
                stream=name,
                worker=worker,
                seq=violation.seq,
                rule=violation.rule.value,
            )


def _write(spark: SparkSession, tape: Tape, taken: _Taken, commit: int) -> None:
    """Workers, then records, then the events that promise them: one commit of the tape."""
    fresh = enrol_named(spark, tape, taken.head.workers, commit)
    reached("topics.workers", stream=tape.name, workers=fresh)
    records = taken.records().select("worker", "batch", "time", "pos", "data")
    note = {"stream": tape.name, "ends": {str(worker): end for worker, end in taken.ends.items()}}
    delta.append(
        records, tape.paths.records, txn=_transaction(tape, commit), note=note, merge_schema=True
    )
    reached("topics.records", stream=tape.name, commit=commit)
    stored = spark.read.format("delta").load(tape.paths.records).where(f"batch >= {taken.batch}")
    events = counted_events(taken.events().drop("h1", "h2"), stored, commit).coalesce(1)
    append_events(tape, events, commit, {"stream": tape.name, "topics": True})
    reached("topics.events", stream=tape.name, commit=commit)


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


def _gap(topics: Topics, worker: int, what: str) -> AnswerIsNo:
    return AnswerIsNo(
        "CAP-TOPIC-GAP",
        f"topic {topics.of(worker)} {what}",
        "wait until the export is done, or export again: what is there twice counts once; nothing "
        "was written",
        worker=worker,
        topic=topics.of(worker),
    )


def _wrong(topics: Topics, worker: int, what: str) -> AnswerIsNo:
    return AnswerIsNo(
        "CAP-TOPIC",
        f"topic {topics.of(worker)} {what}",
        "topics of a recording are written by `capstan export` alone; delete them and export again",
        worker=worker,
        topic=topics.of(worker),
    )


def _told(tape: Tape, topics: Topics, *, events: int, records: int) -> TakenOver:
    cut = newest_cut(tape)
    workers = len(summary.worker_labels(tape, cut))
    return TakenOver(tape.name, topics.place, cut.commit, workers, events, records, not events)
