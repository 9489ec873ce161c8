"""A tape to Kafka's topics and back, a topic per worker. No record passes through Python.

Messages are JSON: `{"kind", "of", "seq", ...}` with the fields of an event, or of one record of it.
The event says how many records it has, and their content hash; so what is put back on a tape is
what was taken off it, or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from capstan.capture.source import broker_gone
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.interop.kafka.topic_layout import Head, Topics, newest_head
from capstan.storage import delta
from capstan.storage.ledger.retirements import WHOLE, require_kept
from capstan.storage.tape import index
from capstan.storage.tape.tape import Cut, Tape, read_events, read_records, stored_payload
from capstan.storage.tape.time_columns import JSON, integers
from capstan.verify import verify
from capstan.verify.content_check import require_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.storage.lake import Lake

Found = TypeVar("Found")
RECORD = "record"
IN_ORDER = {"kafka.max.in.flight.requests.per.connection": "1"}
"""What a producer is told, so that one request follows upon the answer to the last.

A broker that is just making a topic may turn down the first request and take the second. It takes
the first no more then, as its numbers are out of order, and after two minutes the producer gives up
(KAFKA-15591).
"""
_TIME = ArrayType(LongType())
_UPDATE = StructType([StructField("time", _TIME), StructField("diff", LongType())])


@dataclass(frozen=True, slots=True)
class Published:
    """What an export to topics did.

    Attributes:
        stream: The stream.
        cut: The commit up to which it was written.
        place: The topics.
        workers: How many workers were written.
        events: Their events.
        records: Their records.
    """

    stream: str
    cut: int
    place: str
    workers: int
    events: int
    records: int


def message(columns: StructType) -> StructType:
    """The columns of a message, of whichever kind, for records of these columns."""
    return StructType(
        [
            StructField("kind", StringType()),
            StructField("of", StringType()),
            StructField("seq", LongType()),
            StructField("time", _TIME),
            StructField("updates", ArrayType(_UPDATE)),
            StructField("records", LongType()),
            StructField("h1", LongType()),
            StructField("h2", LongType()),
            StructField("pos", LongType()),
            StructField("data", columns),
        ]
    )


def export_topics(
    spark: SparkSession,
    lake: Lake,
    tape: Tape,
    topics: Topics,
    *,
    workers: Iterable[int],
    cut: Cut,
) -> Published:
    """Write the recordings of workers to their topics; written twice, they count once.

    The broker has to make topics that are not there.

    Args:
        spark: The session.
        lake: The lake with the ledger of verifications.
        tape: The tape.
        topics: Where to.
        workers: Whose recordings.
        cut: Up to which commit.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, a recording is not sound; `CAP-TOPIC`, the topics hold
            another recording; `CAP-TAPE`, an event has not the records that it says.
        InvalidRequestError: `CAP-RETIRED`, records were deleted; `CAP-TYPE`, a column cannot come
            back from a topic; `CAP-TOPIC`, what is there is no recording. Nothing is written then.
        SystemFailureError: `CAP-BROKER`, the broker does not answer.
    """
    chosen = sorted(workers)
    verify(spark, lake, tape, workers=chosen, cut=cut).require_valid(tape)
    everything = Region(Box.everything(tape.time_type))
    require_kept(lake, tape, cut, chosen, everything, "a whole recording", WHOLE)
    payload = stored_payload(tape)
    for column in payload.fields:
        _require_readable(column.name, column.dataType)
    labels = index.worker_labels(tape, cut)
    head = Head(
        tape.name,
        str(delta.open_table(tape.paths.events).metadata().id),
        cut.commit,
        tape.time_type,
        payload.json(),
        {worker: labels[worker] for worker in chosen},
    )

    _require_same(asked(topics.prefix, lambda: _texts(spark, topics)), head, topics)
    # No message can be taken back, and none passes through Python, where it would be counted.
    require_counts(spark, tape, cut, chosen)

    def write() -> None:
        text = spark.createDataFrame([(head.to_text(),)], "value STRING")
        _send(text.withColumn("topic", F.lit(topics.prefix)), topics)
        emit("export.head", stream=tape.name, topic=topics.prefix)
        _send(_messages(spark, tape, cut, chosen, topics, head), topics)

    asked(tape.name, write)
    states = [s for s in index.worker_states(tape, cut) if s.worker in head.workers]
    events = sum(state.events for state in states)
    emit("export.topics", stream=tape.name, events=events)
    return Published(
        tape.name,
        cut.commit,
        topics.place,
        len(chosen),
        events,
        sum(state.records for state in states),
    )


def _require_readable(name: str, kind: DataType) -> None:
    """Check that a column comes back as it was from the JSON that messages are."""
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise InvalidRequestError(
                "CAP-TYPE",
                f"column {name} has type {kind.simpleString()}, and messages have keys of text",
                "replay the stream with a transform that leaves the column out, or makes text of "
                "its keys, `--into` a table; declare a stream over that table, capture and export "
                "that one",
                column=name,
            )
        _require_readable(name, kind.valueType)
    elif isinstance(kind, ArrayType):
        _require_readable(name, kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            _require_readable(f"{name}.{field.name}", field.dataType)


def _require_same(texts: list[str], head: Head, topics: Topics) -> None:
    """Check that topics are new, or hold what is to be written to them."""
    if not texts:
        return
    held = newest_head(texts, topics.prefix)
    if held.tape != head.tape:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"topics {topics.prefix}-* hold another recording, of stream {held.stream}",
            "export to a prefix of its own, or delete these topics first",
            topic=topics.prefix,
        )


def _send(messages: DataFrame, topics: Topics) -> None:
    options = {"kafka.bootstrap.servers": topics.servers, **IN_ORDER}
    messages.write.format("kafka").options(**options).save()


def _messages(
    spark: SparkSession, tape: Tape, cut: Cut, workers: list[int], topics: Topics, head: Head
) -> DataFrame:
    """All messages of these workers: `topic, key, value`; a message per event and per record."""
    of = F.lit(short(head)).alias("of")
    events = read_events(spark, tape, cut, workers=workers)
    told = events.select(
        "worker",
        "seq",
        F.struct(
            "kind",
            of,
            "seq",
            F.when(F.col("time").isNotNull(), integers(F.col("time"), tape.time_type)).alias(
                "time"
            ),
            F.transform(
                "updates",
                lambda update: F.struct(
                    integers(update.getField("time"), tape.time_type).alias("time"),
                    update.getField("diff").alias("diff"),
                ),
            ).alias("updates"),
            "records",
            F.col("fingerprint.h1").alias("h1"),
            F.col("fingerprint.h2").alias("h2"),
        ).alias("message"),
    )
    named = events.where("kind = 'messages'").select("worker", "seq", "batch", "time")
    records = read_records(spark, tape, cut, workers=workers)
    each = records.join(named, ["worker", "batch", "time"]).select(
        "worker",
        "seq",
        F.struct(F.lit(RECORD).alias("kind"), of, "seq", "pos", "data").alias("message"),
    )
    rows = [
        part.select("worker", "seq", F.to_json("message", JSON).alias("value"))
        for part in (told, each)
    ]
    return (
        rows[0]
        .unionByName(rows[1])
        .select(
            F.concat_ws("-", F.lit(topics.prefix), "worker").alias("topic"),
            F.col("seq").cast("string").alias("key"),
            "value",
        )
    )


def short(head: Head) -> str:
    """What every message says of the recording that it belongs to."""
    return head.tape[:8]


def read_head(spark: SparkSession, topics: Topics) -> Head:
    """What the topics hold, as they say themselves.

    Raises:
        InvalidRequestError: `CAP-TOPIC`, there is no such topic, or it is none of a recording.
        CheckFailedError: `CAP-TOPIC`, two recordings were written to it.
        SystemFailureError: `CAP-BROKER`.
    """
    texts = asked(topics.prefix, lambda: _texts(spark, topics))
    return newest_head(texts, topics.prefix)


def _texts(spark: SparkSession, topics: Topics) -> list[str]:
    rows = _read(spark, topics, {"subscribe": topics.prefix})
    try:
        return [row["value"] for row in rows.select("value").distinct().collect()]
    except Exception as error:
        if "UnknownTopicOrPartition" in str(error):
            return []
        raise


def read_messages(spark: SparkSession, topics: Topics, head: Head) -> DataFrame:
    """What is in the topics of workers now: `worker INT` and the columns of `message`."""
    columns = StructType.fromJson(json.loads(head.columns))
    rows = _read(spark, topics, {"subscribePattern": topics.pattern})
    parsed = F.from_json("value", message(columns), JSON).alias("message")
    worker = F.regexp_extract("topic", r"-(\d+)$", 1).cast("int").alias("worker")
    return rows.select(worker, parsed).select("worker", "message.*")


def _read(spark: SparkSession, topics: Topics, which: Mapping[str, str]) -> DataFrame:
    options = {"kafka.bootstrap.servers": topics.servers, **which}
    rows = spark.read.format("kafka").options(**options).load()
    return rows.select("topic", F.col("value").cast("string").alias("value"))


def asked(name: str, what: Callable[[], Found]) -> Found:
    """What a broker answers.

    Raises:
        SystemFailureError: `CAP-BROKER`, it does not answer.
    """
    try:
        return what()
    except CapstanError:
        raise
    except Exception as error:
        raise (broker_gone(name, error) or error) from error
