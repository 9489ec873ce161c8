"""What topics give is looked at before any of it is put on a tape: all is there, and sound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.core.times import Antichain, Box, TimeType, complete
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.interop.kafka.export_topics import RECORD, short
from capstan.interop.kafka.topic_layout import Head, Topics, mixed
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.schema import time_struct, updates_array
from capstan.storage.tape.time_columns import coordinate
from capstan.verify.event_columns import Fingerprint
from capstan.verify.event_fold import FoldResult, ResumePoint
from capstan.verify.run import check_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVENT = ["worker", "seq"]


@dataclass(frozen=True, slots=True)
class Taken:
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


def require_own(messages: DataFrame, head: Head, topics: Topics) -> None:
    """Check that every message is one of this recording."""
    known = ", ".join(f"'{kind}'" for kind in ("progress", "messages", RECORD))
    of, foreign = F.lit(short(head)), f"kind IS NULL OR kind NOT IN ({known}) OR seq IS NULL"
    found = messages.agg(
        F.count_if(F.expr(foreign)).alias("foreign"), F.count_if(F.col("of") != of).alias("others")
    ).collect()[0]
    if found["foreign"]:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"{found['foreign']} messages of topics {topics.prefix}-* are no events",
            "topics of recordings take nothing else; export to topics of their own",
        )
    if found["others"]:
        raise mixed(f"{topics.prefix}-*")


def ends_of(
    events: DataFrame, states: Mapping[int, index.WorkerState], topics: Topics
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


def require_named(ends: Mapping[int, int], named: Collection[int], topics: Topics) -> None:
    """Check that all whose events are to be put on tape are on its roster, or will be."""
    for worker in sorted(ends.keys() - named):
        raise CheckFailedError(
            "CAP-TOPIC",
            f"topic {topics.of(worker)} has events, and topic {topics.prefix} names no worker "
            f"{worker}",
            "import again once the export is done; delete the topic if it is none of this stream's",
            worker=worker,
            topic=topics.of(worker),
        )


def require_all(taken: Taken, topics: Topics) -> int:
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


def require_sound(
    taken: Taken, states: Mapping[int, index.WorkerState], time_type: TimeType, name: str
) -> dict[int, FoldResult]:
    """Check that recordings obey the rules, before anything is written; how far each comes."""
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
        worker: ResumePoint(-1, state.events, state.records, state.holdings)
        for worker, state in states.items()
    }
    for worker in taken.ends:
        starts.setdefault(worker, ResumePoint())
    found = check_events(sorted_, time_type, starts)
    for worker, outcome in sorted(found.items()):
        violation = outcome.violation
        if violation is not None:
            raise CheckFailedError(
                "CAP-VIOLATION",
                f"stream {name}, worker {worker} breaks {violation.rule.value}: "
                f"{violation.describe(time_type)}",
                "nothing was written; whoever wrote the topics wrote no sound recording",
                stream=name,
                worker=worker,
                seq=violation.seq,
                rule=violation.rule.value,
            )
    return found


def require_ahead(
    taken: Taken,
    frontier: Antichain,
    outcomes: Mapping[int, FoldResult],
    known: Collection[int],
    name: str,
) -> None:
    """Check that workers which are new to the tape send and hold nothing at times complete there.

    Whoever has played those times would never see what came to them.
    """
    fresh = taken.ends.keys() - known
    behind = {
        worker
        for worker in fresh
        if any(count > 0 and complete(frontier, t) for t, count in outcomes[worker].holdings)
    }
    if fresh:
        sent = taken.events().where((F.col("kind") == "messages") & F.col("worker").isin(*fresh))
        past = sent.where(_complete(frontier, taken.head.time_type))
        behind |= {row["worker"] for row in past.select("worker").distinct().collect()}
    if behind:
        worker = min(behind)
        raise CheckFailedError(
            "CAP-BEHIND",
            f"stream {name}: worker {worker}, {taken.head.workers[worker]}, has records at times "
            "that are complete here without it",
            "import the topics, with all workers, under another name; what was played of this "
            "stream has nothing of that worker",
            stream=name,
            worker=worker,
        )


def _complete(frontier: Antichain, time_type: TimeType) -> str:
    past = Region(Box.everything(time_type), below=frontier)
    return region_sql(time_type, past, [f"time.{name}" for name in time_type.names])


def _first_missing(events: DataFrame, worker: int, first: int) -> int:
    own = events.where(F.col("worker") == worker).select("seq").distinct()
    placed = own.withColumn("place", F.expr("row_number() OVER (ORDER BY seq)") - 1 + first)
    row = placed.where("seq <> place").agg(F.min("place").alias("place")).collect()[0]
    return int(row["place"])


def _gap(topics: Topics, worker: int, what: str) -> CheckFailedError:
    return CheckFailedError(
        "CAP-TOPIC-GAP",
        f"topic {topics.of(worker)} {what}",
        "wait until the export is done, or export again: what is there twice counts once; nothing "
        "was written",
        worker=worker,
        topic=topics.of(worker),
    )


def _wrong(topics: Topics, worker: int, what: str) -> CheckFailedError:
    return CheckFailedError(
        "CAP-TOPIC",
        f"topic {topics.of(worker)} {what}",
        "topics of a recording are written by `capstan export` alone; delete them and export again",
        worker=worker,
        topic=topics.of(worker),
    )
