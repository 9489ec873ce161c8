"""Records that may not go on tape as they are: kept raw in `late`, counted, or refused."""

from __future__ import annotations

from collections import Counter

from pyarrow import dataset
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.core.config import Stream
from capstan.core.times import TimeType
from capstan.errors import CheckFailedError
from capstan.storage import delta
from capstan.storage.arrow_scan import read_columns
from capstan.storage.data_files import files_between
from capstan.storage.tape.tape import Tape
from capstan.storage.tape.time_columns import coordinate


def rows(judged: DataFrame, batch: int, time_type: TimeType, *, text: bool) -> DataFrame:
    """The rows of `late` for a judged micro-batch, columns of the `late` table.

    Args:
        judged: The rows, with their reasons.
        batch: Its number.
        time_type: The coordinates of the stream's times.
        text: Whether its source is text, of which malformed records are kept as they were.
    """
    # Of the coordinates only the event time can shut a record out; an epoch is the batch's own.
    told = {"epoch": F.lit(batch).cast("bigint")}
    shut_out = F.struct(
        *(coordinate(told.get(c.name, F.col("frontier")), c) for c in time_type.coordinates)
    )
    return judged.where("reason IS NOT NULL").select(
        "worker",
        F.lit(batch).cast("bigint").alias("batch"),
        "time",
        F.monotonically_increasing_id().alias("pos"),
        "reason",
        F.when(F.col("frontier").isNotNull(), F.array(shut_out)).alias("frontier"),
        "data",
        *(["raw"] if text else []),
    )


def count(tape: Tape, batch: int) -> dict[str, int]:
    """Late rows of a micro-batch as stored, by reason."""
    path = tape.paths.late
    table = delta.open_table(path)
    files = files_between(path, table, "batch", batch, batch)
    rows = read_columns(path, ["reason", "batch"], table, files)
    own = rows.filter(dataset.field("batch") == batch)
    return dict(Counter(own["reason"].to_pylist()))


def refuse_any(stream: Stream, judged: DataFrame) -> None:
    """Check that nothing came late, for a stream whose policy is `fail`.

    Raises:
        CheckFailedError: `CAP-LATE`, before anything of the micro-batch is written.
    """
    found = judged.where("reason = 'late'").count()
    if found:
        raise CheckFailedError(
            "CAP-LATE",
            f"stream {stream.name}: {found} records came after their time was complete",
            "its declaration says `late: fail`; nothing of this micro-batch was captured. Allow "
            "more lateness, or choose `late: dead-letter` or `late: advance`",
            stream=stream.name,
            late=found,
        )
