"""Rows that cannot be recorded: stored in `late`, counted, or refused."""

from __future__ import annotations

from collections import Counter

from pyarrow import dataset
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.core.config import Stream
from capstan.core.times import TimeType
from capstan.errors import CheckFailedError
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.tape.tape import Tape
from capstan.storage.tape.time_columns import coordinate


def rows(classified: DataFrame, batch: int, time_type: TimeType, *, text: bool) -> DataFrame:
    """The rows of the `late` table for a classified micro-batch.

    `text` keeps the raw text of malformed records, which a source of text has.
    """
    # Only the event time can make a record late; the epoch is always that of the batch.
    known = {"epoch": F.lit(batch).cast("bigint")}
    frontier = F.struct(
        *(coordinate(known.get(c.name, F.col("frontier")), c) for c in time_type.coordinates)
    )
    return classified.where("reason IS NOT NULL").select(
        "worker",
        F.lit(batch).cast("bigint").alias("batch"),
        "time",
        F.monotonically_increasing_id().alias("pos"),
        "reason",
        F.when(F.col("frontier").isNotNull(), F.array(frontier)).alias("frontier"),
        "data",
        *(["raw"] if text else []),
    )


def count(tape: Tape, batch: int) -> dict[str, int]:
    """Count the stored late rows of a micro-batch, by reason."""
    path = tape.paths.late
    table = delta.open_table(path)
    files = files_between(path, table, "batch", batch, batch)
    rows = read_columns(path, ["reason", "batch"], table, files)
    reasons = rows.filter(dataset.field("batch") == batch)["reason"]
    return dict(Counter(reasons.to_pylist()))


def refuse_any(stream: Stream, classified: DataFrame) -> None:
    """Check that no record is late, for a stream with the policy `fail`."""
    late = classified.where("reason = 'late'").count()
    if late:
        raise CheckFailedError(
            "CAP-LATE",
            f"stream {stream.name}: {late} records arrived after their time was complete",
            "streams.yaml sets `late: fail`, so nothing of this micro-batch was captured. Allow "
            "more lateness, or choose `late: dead-letter` or `late: advance`",
            stream=stream.name,
            late=late,
        )
