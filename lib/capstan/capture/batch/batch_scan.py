"""Pre-scan of a micro-batch: its labels and its range of times, from at most one read.

Every read goes back to the source. So labels and times are gathered together, and later checks use
them instead of reading again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture.batch import classify
from capstan.core.config import MAX_WORKERS, ByColumn, ByKey, ByPartition, EventTime, Stream
from capstan.storage.tape.feed import Consumed


@dataclass(frozen=True, slots=True)
class BatchScan:
    """Labels and event times of a micro-batch."""

    labels: frozenset[str]  # incomplete if there are more than a stream can have
    least: int | None  # of labelled records, in microseconds, truncated
    greatest: int | None

    def has_none_ahead(self, time: EventTime, seen: int | None, started: int | None) -> bool:
        """Whether no record of a worker can be more than `max_ahead` after all times before it.

        Both are in microseconds: `seen` is the greatest time on tape, `started` the batch's start.
        """
        assert time.max_ahead is not None
        latest = max((moment for moment in (seen, started) if moment is not None), default=None)
        if self.greatest is None:
            return True
        return latest is not None and self.greatest <= latest + classify.micros(time.max_ahead)

    def has_none_late(self, frontiers: Collection[int]) -> bool:
        """Whether no record of a worker can precede an event time that a worker holds."""
        return self.least is None or self.least >= max(frontiers, default=classify.NEVER)


def scan_batch(
    prepared: DataFrame, stream: Stream, consumed: Collection[Consumed], known: Collection[str]
) -> BatchScan | None:
    """Read a micro-batch once if its rows may have new labels; else None."""
    if not _may_have_new(stream, consumed, known):
        return None
    # Records without a label belong to no worker, whatever their times; nor do malformed ones.
    by_label = prepared.where("label IS NOT NULL AND raw IS NULL").groupBy("label")
    event_time = F.lit(None).cast("bigint")
    if isinstance(stream.time, EventTime):
        event_time = classify.truncated(F.col("at"), stream.time)
    ranges = by_label.agg(F.min(event_time).alias("least"), F.max(event_time).alias("greatest"))
    # One label over the limit is enough to know that there are too many.
    rows = ranges.limit(max(MAX_WORKERS, len(known)) + 1).collect()
    return BatchScan(
        frozenset(row["label"] for row in rows),
        min((row["least"] for row in rows if row["least"] is not None), default=None),
        max((row["greatest"] for row in rows if row["greatest"] is not None), default=None),
    )


def _may_have_new(stream: Stream, consumed: Collection[Consumed], known: Collection[str]) -> bool:
    by = stream.workers
    if isinstance(by, ByKey) or (isinstance(by, ByColumn) and by.labels):
        return False
    if isinstance(by, ByPartition) and by.column is None:
        # Kafka's offsets name the partitions. An empty partition opens no worker, so new ones are
        # read.
        return any(piece.part is None or piece.part not in known for piece in consumed)
    return True
