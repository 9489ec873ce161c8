"""Export of a tape to Kafka topics, one per worker. No record passes through Python.

The messages are those of `docs/protocol.md`, section 18.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

from capstan.capture.source.errors import broker_gone
from capstan.core.protocol import Release
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.interop.kafka.topic_layout import TopicHeader, Topics, TopicTransfer, newest_header
from capstan.interop.transfer.export_files import (
    cell_place,
    integer_stamps,
    integer_times,
    release_in,
)
from capstan.storage.delta.arrow_writer import struct
from capstan.storage.ledger.retirements import WHOLE, require_records
from capstan.storage.tape import index
from capstan.storage.tape.tape import (
    Cut,
    Tape,
    read_events,
    read_records,
    require_products,
    stored_payload,
)
from capstan.storage.tape.time_columns import JSON
from capstan.telemetry.instrumentation import emit
from capstan.verify import verify
from capstan.verify.content_check import require_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.storage.lake import Lake

Answer = TypeVar("Answer")
RECORD = "record"
_STAMPED = "give --timely 0.32, for topics whose messages have stamps, or times that are pairs"
IN_ORDER = {"kafka.max.in.flight.requests.per.connection": "1"}
"""Producer option that allows one request at a time.

A broker that is just creating a topic may reject the first request and accept the second. It then
rejects the first for good, as its numbers are out of order, and the producer gives up after two
minutes (KAFKA-15591).
"""
_TIME = ArrayType(LongType())


def message(columns: StructType) -> StructType:
    """The columns of a message of either kind, for records of these columns."""
    updates = ArrayType(struct(time=_TIME, diff="long"))
    return struct(
        kind="string", of="string", seq="long", time=_TIME, updates=updates, records="long",
        h1="long", h2="long", pos="long", data=columns, stamp=ArrayType(_TIME),
    )  # fmt: skip


def export_topics(
    spark: SparkSession,
    lake: Lake,
    tape: Tape,
    topics: Topics,
    *,
    workers: Iterable[int],
    cut: Cut,
    timely: str | None = None,
) -> TopicTransfer:
    """Write workers' recordings to topics, repeatably; the broker must create missing topics.

    Without a release of `timely`, in the form that the topics or the imported recordings have.
    """
    chosen = sorted(workers)
    release = release_in(tape, timely)
    verify(spark, lake, tape, workers=chosen, cut=cut).raise_for_violations()
    everything = Region(Box.everything(tape.time_type))
    require_records(lake, tape, cut, chosen, everything, "a whole recording", WHOLE)
    texts = call_broker(topics.prefix, lambda: _texts(spark, topics))
    existing = newest_header(texts, topics.prefix) if texts else None
    if timely is None and existing is not None:
        release = existing.release
    if release is Release.V031:
        # No pair either: all that the form of timely 0.31 has.
        require_products(tape, "an export to topics in the form of timely 0.31", _STAMPED)
        why = "where topics in the form of timely 0.31 need one time"
        index.require_one_time(tape, cut, chosen, why, _STAMPED)
    payload = stored_payload(tape)
    for column in payload.fields:
        _require_readable(column.name, column.dataType)
    labels = index.worker_labels(tape, cut)
    header = TopicHeader(
        tape.name,
        tape.identity,
        cut.commit,
        tape.time_type,
        payload.json(),
        {worker: labels[worker] for worker in chosen},
        release,
    )

    _require_same(existing, header, topics)
    # Messages cannot be taken back, and none passes through Python, where it would be counted.
    require_counts(spark, tape, cut, chosen)

    def write() -> None:
        text = spark.createDataFrame([(header.to_text(),)], "value STRING")
        _send(text.withColumn("topic", F.lit(topics.prefix)), topics)
        emit("export.head", stream=tape.name, topic=topics.prefix)
        _send(_messages(spark, tape, cut, chosen, topics, header), topics)

    call_broker(tape.name, write)
    states = [s for s in index.worker_states(tape, cut) if s.worker in header.workers]
    events = sum(state.events for state in states)
    emit("export.topics", stream=tape.name, events=events)
    records = sum(state.records for state in states)
    return TopicTransfer(tape.name, topics.url, cut.commit, len(chosen), events, records, release)


def _require_readable(name: str, kind: DataType) -> None:
    """Check that a column survives the conversion to JSON and back."""
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise InvalidRequestError(
                "CAP-TYPE",
                f"column {name} has type {kind.simpleString()}; messages have only text as keys",
                "replay the stream into a table with a transform that drops the column, or turns "
                "its keys into text; declare a stream over that table, then capture and export it",
                column=name,
            )
        _require_readable(name, kind.valueType)
    elif isinstance(kind, ArrayType):
        _require_readable(name, kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            _require_readable(f"{name}.{field.name}", field.dataType)


def _require_same(existing: TopicHeader | None, header: TopicHeader, topics: Topics) -> None:
    """Check that topics are new, or already hold this recording in this form."""
    if existing is None:
        return
    if existing.tape == header.tape and existing.release is not header.release:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"topics {topics.prefix}-* hold this recording in the form of timely "
            f"{existing.release}, not {header.release}",
            "leave out --timely, or export to another prefix",
            topic=topics.prefix,
        )
    if existing.tape != header.tape:
        raise CheckFailedError(
            "CAP-TOPIC",
            f"topics {topics.prefix}-* hold another recording, of stream {existing.stream}",
            "export to another prefix, or delete these topics first",
            topic=topics.prefix,
        )


def _send(messages: DataFrame, topics: Topics) -> None:
    options = {"kafka.bootstrap.servers": topics.servers, **IN_ORDER}
    messages.write.format("kafka").options(**options).save()


def _messages(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: list[int],
    topics: Topics,
    header: TopicHeader,
) -> DataFrame:
    """All messages of these workers: `topic, key, value`; one per event and per record."""
    of = F.lit(recording_tag(header)).alias("of")
    events = read_events(spark, tape, cut, workers=workers)
    time, updates = integer_times(tape.time_type)
    event_messages = events.select(
        "worker",
        "seq",
        F.struct(
            "kind",
            of,
            "seq",
            time if header.release is Release.V031 else integer_stamps(tape),
            updates,
            "records",
            F.col("fingerprint.h1").alias("h1"),
            F.col("fingerprint.h2").alias("h2"),
        ).alias("message"),
    )
    cell = "worker", "batch", cell_place(tape)
    cells = events.where("kind = 'messages'").select(*cell, "seq")
    records = read_records(spark, tape, cut, workers=workers).select(*cell, "pos", "data")
    record_messages = records.join(cells, ["worker", "batch", "place"]).select(
        "worker",
        "seq",
        F.struct(F.lit(RECORD).alias("kind"), of, "seq", "pos", "data").alias("message"),
    )
    rows = [
        part.select("worker", "seq", F.to_json("message", JSON).alias("value"))
        for part in (event_messages, record_messages)
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


def recording_tag(header: TopicHeader) -> str:
    """Identifier of the recording in each of its messages."""
    return header.tape[:8]


def read_header(spark: SparkSession, topics: Topics) -> TopicHeader:
    """The header of topics."""
    texts = call_broker(topics.prefix, lambda: _texts(spark, topics))
    return newest_header(texts, topics.prefix)


def _texts(spark: SparkSession, topics: Topics) -> list[str]:
    rows = _read(spark, topics, {"subscribe": topics.prefix})
    try:
        return [row["value"] for row in rows.select("value").distinct().collect()]
    except Exception as error:
        if "UnknownTopicOrPartition" in str(error):
            return []
        raise


def read_messages(spark: SparkSession, topics: Topics, header: TopicHeader) -> DataFrame:
    """The present messages of all workers: `worker INT` and the columns of `message`."""
    columns = StructType.fromJson(json.loads(header.columns))
    rows = _read(spark, topics, {"subscribePattern": topics.pattern})
    parsed = F.from_json("value", message(columns), JSON).alias("message")
    worker = F.regexp_extract("topic", r"-(\d+)$", 1).cast("int").alias("worker")
    return rows.select(worker, parsed).select("worker", "message.*")


def _read(spark: SparkSession, topics: Topics, subscription: Mapping[str, str]) -> DataFrame:
    options = {"kafka.bootstrap.servers": topics.servers, **subscription}
    rows = spark.read.format("kafka").options(**options).load()
    return rows.select("topic", F.col("value").cast("string").alias("value"))


def call_broker(name: str, call: Callable[[], Answer]) -> Answer:
    """The result of a call to the broker."""
    try:
        return call()
    except CapstanError:
        raise
    except Exception as error:
        raise (broker_gone(name, error) or error) from error
