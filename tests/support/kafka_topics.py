"""Topics of Kafka for tests: numbered records, and a stream of them with a worker a partition."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl

from capstan.core.config import ByPartition, EventTime, Source, Stream
from capstan.core.config.models import Watermark
from capstan.interop.kafka.export_topics import IN_ORDER
from capstan.storage.lake import Lake
from tests.support.sample_streams import HOUR, START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "clicks"
"""What the stream is called unless it is told otherwise."""

HASTY = {
    "kafka.default.api.timeout.ms": "3000",
    "kafka.request.timeout.ms": "2000",
    "kafkaConsumer.pollTimeoutMs": "3000",
    "fetchOffset.numRetries": "1",
}
"""Options of a source whose broker is gone, and which is to be told soon."""


def send(address: str, frame: DataFrame) -> None:
    """Send rows `topic, partition, value`, or without a partition."""
    options = {"kafka.bootstrap.servers": address, **IN_ORDER}
    frame.write.format("kafka").options(**options).save()


def click(
    spark: SparkSession,
    address: str,
    topic: str,
    numbers: Iterable[int],
    *,
    partitions: int = 2,
    at: datetime | None = None,
) -> None:
    """Send records with a number as `id`, dealt to partitions by it.

    Args:
        spark: The session.
        address: Of the broker.
        topic: Made by the broker where it is not there.
        numbers: Of the records.
        partitions: How many of the topic's get some.
        at: The time of all; by default number n is half an hour after number n - 1.
    """
    told = [
        (topic, n % partitions, json.dumps({"id": n, "at": (at or _moment(n)).isoformat()}))
        for n in numbers
    ]
    frame = spark.createDataFrame(told, "topic STRING, partition INT, value STRING")
    send(address, frame.coalesce(1))


def _moment(number: int) -> datetime:
    return START + number * timedelta(minutes=30)


def stream_of(address: str, *topics: str, name: str = NAME, **options: str) -> Stream:
    """A stream of topics: hours of event time, two of them of lateness, by partition."""
    given = {"kafka.bootstrap.servers": address, "subscribe": ",".join(topics)}
    return Stream(
        name=name,
        source=Source(format="kafka", options={**given, **options}),
        workers=ByPartition(),
        time=EventTime(
            expression="get_json_object(cast(value AS string), '$.at')",
            every=HOUR,
            lateness=2 * HOUR,
            watermark=Watermark.WORKER,
        ),
    )


def ids(lake: Lake, name: str = NAME) -> list[int]:
    """The numbers of all records on tape, in order."""
    values = pl.read_delta(lake.stream(name).records)["data"].struct.field("value")
    return sorted(json.loads(value)["id"] for value in values)
