"""What is asked of a micro-batch before it is judged: one reading of its rows, or none.

Each reading reads the source anew. So labels and times are found together, and what they already
answer is not asked again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture import classify
from capstan.core.config import MOST_WORKERS, ByColumn, ByKey, ByPartition, EventTime, Stream
from capstan.storage.tape.feed import Consumed


@dataclass(frozen=True, slots=True)
class Survey:
    """What a micro-batch has.

    Attributes:
        labels: What its records' workers stand for; not all of them, where they are more than a
            stream can have.
        least: The least event time of these in microseconds, truncated; None without any.
        greatest: The greatest one.
    """

    labels: frozenset[str]
    least: int | None
    greatest: int | None

    def has_none_ahead(self, time: EventTime, seen: int | None, begun: int | None) -> bool:
        """Whether no record of a worker can be more than `max_ahead` after every time before it.

        Args:
            time: The declaration.
            seen: The greatest time on tape, in microseconds, or None.
            begun: When the micro-batch was begun, in microseconds; None where that is not known.
        """
        assert time.max_ahead is not None
        known = [each for each in (seen, begun) if each is not None]
        most = max(known, default=None)
        if self.greatest is None:
            return True
        return most is not None and self.greatest <= most + classify.micros(time.max_ahead)

    def has_none_late(self, frontiers: Collection[int]) -> bool:
        """Whether no record of a worker can be before any of the event times that workers hold."""
        return self.least is None or self.least >= max(frontiers, default=classify.NEVER)


def survey(
    prepared: DataFrame, stream: Stream, consumed: Collection[Consumed], known: Collection[str]
) -> Survey | None:
    """Read a micro-batch once, where its rows may have labels that are new.

    Args:
        prepared: Its rows.
        stream: The declaration.
        consumed: What it has consumed of its source.
        known: Labels of the workers that are open.

    Returns:
        What was found; None where there is no need to look.
    """
    if not _may_have_new(stream, consumed, known):
        return None
    # Records without a label belong to no worker, whatever their times are; nor do malformed ones.
    by_label = prepared.where("label IS NOT NULL AND raw IS NULL").groupBy("label")
    own = F.lit(None).cast("bigint")
    if isinstance(stream.time, EventTime):
        own = classify.truncated(F.col("at"), stream.time)
    found = by_label.agg(F.min(own).alias("least"), F.max(own).alias("greatest"))
    # One more than there can be is too many, however many there are.
    rows = found.limit(max(MOST_WORKERS, len(known)) + 1).collect()
    return Survey(
        frozenset(row["label"] for row in rows),
        min((row["least"] for row in rows if row["least"] is not None), default=None),
        max((row["greatest"] for row in rows if row["greatest"] is not None), default=None),
    )


def _may_have_new(stream: Stream, consumed: Collection[Consumed], known: Collection[str]) -> bool:
    by = stream.workers
    if isinstance(by, ByKey) or (isinstance(by, ByColumn) and by.labels):
        return False
    if isinstance(by, ByPartition) and by.column is None:
        # Of Kafka the offsets tell. A partition without a record opens no worker: it takes a look.
        return any(each.part is None or each.part not in known for each in consumed)
    return True
