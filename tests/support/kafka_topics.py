"""Kafka topics for tests: numbered records, and a stream of them with one worker per partition."""

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
"""Default name of the stream."""

HASTY = {
    "kafka.default.api.timeout.ms": "3000",
    "kafka.request.timeout.ms": "2000",
    "kafkaConsumer.pollTimeoutMs": "3000",
    "fetchOffset.numRetries": "1",
}
"""Options of a source that is to notice a missing broker soon."""


def send(address: str, frame: DataFrame) -> None:
    """Send rows `topic, partition, value`; the partition is optional."""
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
    """Send records with a number as `id`, which selects the partition.

    Args:
        spark: The session.
        address: Address of the broker.
        topic: The topic; the broker creates it if it does not exist.
        numbers: Numbers of the records.
        partitions: Number of partitions to use.
        at: Time of all records; by default number n is half an hour after number n - 1.
    """
    rows = [
        (topic, n % partitions, json.dumps({"id": n, "at": (at or _moment(n)).isoformat()}))
        for n in numbers
    ]
    frame = spark.createDataFrame(rows, "topic STRING, partition INT, value STRING")
    send(address, frame.coalesce(1))


def _moment(number: int) -> datetime:
    return START + number * timedelta(minutes=30)


def stream_of(address: str, *topics: str, name: str = NAME, **options: str) -> Stream:
    """A stream of topics by partition: hourly event times, two hours of lateness."""
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
    """The numbers of all records on the tape, in order."""
    values = pl.read_delta(lake.stream(name).records)["data"].struct.field("value")
    return sorted(json.loads(value)["id"] for value in values)
