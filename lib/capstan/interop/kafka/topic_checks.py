"""Checks messages of topics before they are put on a tape: complete, and sound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from capstan.core.protocol import Release
from capstan.core.times import Antichain, Box, TimeType, complete
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.interop.kafka.export_topics import RECORD, recording_tag
from capstan.interop.kafka.topic_layout import TopicHeader, Topics, mixed_recordings
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.schema import time_struct, updates_array
from capstan.storage.tape.time_columns import coordinate
from capstan.verify.event_columns import COLUMNS
from capstan.verify.event_fold import FoldResult, ResumePoint
from capstan.verify.run import check_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVENT = ["worker", "seq"]


@dataclass(frozen=True, slots=True)
class TopicBatch:
    """Messages to put on a tape, numbered like their future events."""

    messages: DataFrame  # columns `message, worker, first`: the worker's next `seq`
    header: TopicHeader
    ends: Mapping[int, int]  # by worker, the `seq` after its last event
    batch: int  # of each worker's next event; later events count up from it

    @property
    def number(self) -> Column:
        """The batch of an event: unique per worker, and beyond all batches on the tape."""
        return (F.col("seq") - F.col("first") + F.lit(self.batch)).alias("batch")

    def events(self) -> DataFrame:
        """Events as input of `counted_events`, with `h1, h2` and `stamp`; each once.

        The stamp is null if it has one element.
        """
        time_type = self.header.time_type
        update = F.transform(
            "updates",
            lambda pair: F.struct(
                _time(pair.getField("time"), time_type).alias("time"), pair.getField("diff")
            ),
        )
        stamp = F.col("stamp")
        if self.header.release is Release.V031:
            stamp = F.when(F.col("time").isNotNull(), F.array("time"))
        times = F.transform(stamp, lambda element: _time(element, time_type))
        times = times.cast(ArrayType(time_struct(time_type)))
        return (
            self.messages.where("kind <> 'record'")
            .dropDuplicates(_EVENT)
            .select(
                *_EVENT,
                "kind",
                F.get(times, F.lit(0)).alias("time"),
                update.cast(updates_array(time_type)).alias("updates"),
                self.number,
                "records",
                "h1",
                "h2",
                F.when(F.size(times) != 1, times).alias("stamp"),
            )
        )

    def records(self) -> DataFrame:
        """Records with the `seq`, batch, time and stamp of their event; each content once."""
        rows = self.messages.where("kind = 'record'").select(*_EVENT, "pos", "data", self.number)
        h1, h2 = record_hashes(rows)
        hashed = rows.withColumn("record_h1", h1).withColumn("record_h2", h2)
        once = hashed.dropDuplicates([*_EVENT, "pos", "record_h1", "record_h2"])
        return once.join(self.events().select(*_EVENT, "time", "stamp"), _EVENT, "left")


def _time(numbers: Column, time_type: TimeType) -> Column:
    return F.struct(*(coordinate(numbers[i], c) for i, c in enumerate(time_type.coordinates)))


def require_own(messages: DataFrame, header: TopicHeader, topics: Topics) -> None:
    """Check that every message belongs to this recording."""
    known = ", ".join(f"'{kind}'" for kind in ("progress", "messages", RECORD))
    of = F.lit(recording_tag(header))
    foreign = f"kind IS NULL OR kind NOT IN ({known}) OR seq IS NULL"
    timed = header.release is Release.V031
    stated, other = ("time", "stamp") if timed else ("stamp", "time")
    misstated = f"kind = 'messages' AND ({stated} IS NULL OR {other} IS NOT NULL)"
    counts = messages.agg(
        F.count_if(F.expr(foreign)).alias("foreign"),
        F.count_if(F.col("of") != of).alias("others"),
        F.count_if(F.expr(misstated)).alias("misstated"),
    ).collect()[0]
    if counts["foreign"]:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"{counts['foreign']} messages of topics {topics.prefix}-* are not events",
            "topics of recordings hold nothing else; export to separate topics",
        )
    if counts["others"]:
        raise mixed_recordings(f"{topics.prefix}-*")
    if counts["misstated"]:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"{counts['misstated']} messages of topics {topics.prefix}-* do not have a {stated} "
            f"alone, as those of timely {header.release} have",
            "only `capstan export` writes topics of a recording; delete them and export again",
            topic=topics.prefix,
        )


def ends_of(
    events: DataFrame, states: Mapping[int, index.WorkerState], topics: Topics
) -> dict[int, int]:
    """By worker, the `seq` after its last event; checks that no event is missing before it."""
    fields = ["kind", "time", "stamp", "updates", "records", "h1", "h2"]
    rows = (
        events.groupBy("worker", "first")
        .agg(
            F.count_distinct("seq").alias("count"),
            F.max("seq").alias("last"),
            F.count_distinct(F.struct("seq", F.to_json(F.struct(*fields)))).alias("different"),
        )
        .collect()
    )
    for row in sorted(rows, key=lambda row: row["worker"]):
        if row["different"] > row["count"]:
            raise _wrong(topics, row["worker"], "has two different events with the same number")
        missing = row["last"] + 1 - row["first"] - row["count"]
        if missing:
            first = _first_missing(events, row["worker"], row["first"])
            raise _gap(topics, row["worker"], f"lacks {missing} events, the first is {first}")
    assert all(row["first"] == states[row["worker"]].events for row in rows if row["first"])
    return {row["worker"]: row["last"] + 1 for row in rows}


def require_registered(ends: Mapping[int, int], known: Collection[int], topics: Topics) -> None:
    """Check that all workers with new events are on the roster, or in the header."""
    for worker in sorted(ends.keys() - known):
        raise CheckFailedError(
            "CAP-TOPIC",
            f"topic {topics.topic(worker)} has events, but topic {topics.prefix} names no worker "
            f"{worker}",
            "import again once the export is done; delete the topic if it is not of this stream",
            worker=worker,
            topic=topics.topic(worker),
        )


def require_all(batch: TopicBatch, topics: Topics) -> int:
    """Check that each event has exactly its records; returns their number."""
    zero = F.lit(0).cast("bigint")
    content = fingerprint(F.col("record_h1"), F.col("record_h2"))
    received = (
        batch.records()
        .groupBy(*_EVENT)
        .agg(F.count(F.lit(1)).alias("received"), content.alias("content"))
    )
    promised = batch.events().select(*_EVENT, "kind", "records", "h1", "h2")
    both = promised.join(received, _EVENT, "full_outer")
    expected, present = F.coalesce("records", zero), F.coalesce("received", zero)
    same = (F.coalesce("h1", zero) == F.coalesce("content.h1", zero)) & (
        F.coalesce("h2", zero) == F.coalesce("content.h2", zero)
    )
    absent = F.col("kind").isNull()
    fault = F.when(absent | (present < expected), "gap").when((present > expected) | ~same, "wrong")
    checked = both.select(
        *_EVENT, fault.alias("fault"), present.alias("present"), expected.alias("expected")
    )
    first = F.min(F.when(F.col("fault").isNotNull(), F.struct(*checked.columns)))
    row = checked.agg(first.alias("first"), F.sum("present").alias("records")).collect()[0]
    if row["first"] is None:
        return int(row["records"] or 0)
    worker, seq, kind, count, promised_count = row["first"]
    if kind == "gap" and not promised_count:
        raise _gap(topics, worker, f"lacks event {seq}, but has {count} of its records")
    if kind == "gap":
        missing = promised_count - count
        raise _gap(topics, worker, f"lacks {missing} of {promised_count} records of event {seq}")
    raise _wrong(topics, worker, f"has other records of event {seq} than those written")


def require_sound(
    batch: TopicBatch, states: Mapping[int, index.WorkerState], time_type: TimeType, name: str
) -> dict[int, FoldResult]:
    """Check that recordings obey the rules before writing; returns the fold of each worker."""
    commit = F.lit(0).cast("bigint")
    # The contents were compared before, where a hash may be absent for 0.
    hashes = (F.coalesce(name, commit).alias(name) for name in ("h1", "h2"))
    content = F.when(F.col("kind") == "messages", F.struct(*hashes))
    events = batch.events().withColumns({"commit": commit, "fingerprint": content})
    starts = {
        worker: ResumePoint(-1, state.events, state.records, state.holdings)
        for worker, state in states.items()
    }
    for worker in batch.ends:
        starts.setdefault(worker, ResumePoint())
    folds = check_events(events.select(*COLUMNS, "stamp"), time_type, starts)
    for worker, outcome in sorted(folds.items()):
        violation = outcome.violation
        if violation is not None:
            raise CheckFailedError(
                "CAP-VIOLATION",
                f"stream {name}, worker {worker} breaks {violation.rule.value}: "
                f"{violation.describe(time_type)}",
                "nothing was written; the writer of the topics did not write a sound recording",
                stream=name,
                worker=worker,
                seq=violation.seq,
                rule=violation.rule.value,
            )
    return folds


def require_ahead(
    batch: TopicBatch,
    frontier: Antichain,
    outcomes: Mapping[int, FoldResult],
    known: Collection[int],
    name: str,
) -> None:
    """Check that new workers neither send nor hold anything at times already complete here."""
    # A replay of those times would never have seen their records.
    fresh = batch.ends.keys() - known
    behind = {
        worker
        for worker in fresh
        if any(count > 0 and complete(frontier, t) for t, count in outcomes[worker].holdings)
    }
    if fresh:
        sent = batch.events().where((F.col("kind") == "messages") & F.col("worker").isin(*fresh))
        past = sent.where(_complete(frontier, batch.header.time_type))
        behind |= {row["worker"] for row in past.select("worker").distinct().collect()}
    if behind:
        worker = min(behind)
        raise CheckFailedError(
            "CAP-BEHIND",
            f"stream {name}: worker {worker}, {batch.header.workers[worker]}, has records at "
            "times that are already complete here without it",
            "import the topics, with all workers, under another name; earlier replays of this "
            "stream contain nothing of that worker",
            stream=name,
            worker=worker,
        )


def _complete(frontier: Antichain, time_type: TimeType) -> str:
    """The condition that an element of a stamp is complete: then nothing more can come under it."""
    past = Region(Box.everything(time_type), below=frontier)
    condition = region_sql(time_type, past, [f"each.{name}" for name in time_type.names])
    return f"exists(coalesce(stamp, array(time)), each -> {condition})"


def _first_missing(events: DataFrame, worker: int, first: int) -> int:
    numbers = events.where(F.col("worker") == worker).select("seq").distinct()
    rank = F.expr("row_number() OVER (ORDER BY seq)") - 1 + first
    ranked = numbers.withColumn("rank", rank)
    row = ranked.where("seq <> rank").agg(F.min("rank").alias("rank")).collect()[0]
    return int(row["rank"])


def _gap(topics: Topics, worker: int, detail: str) -> CheckFailedError:
    return CheckFailedError(
        "CAP-TOPIC-GAP",
        f"topic {topics.topic(worker)} {detail}",
        "wait until the export is done, or export again: duplicates count once; nothing was "
        "written",
        worker=worker,
        topic=topics.topic(worker),
    )


def _wrong(topics: Topics, worker: int, detail: str) -> CheckFailedError:
    return CheckFailedError(
        "CAP-TOPIC",
        f"topic {topics.topic(worker)} {detail}",
        "only `capstan export` writes topics of a recording; delete them and export again",
        worker=worker,
        topic=topics.topic(worker),
    )
