"""The data files of a Delta table: which can have rows of interest, and a read of a few of them.

To read a table, Delta replays its log in Spark, and runs a job that looks for the files to read.
Where delta-rs has found a few files already, Spark reads those, and starts with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from capstan.core.times import TimeType
from capstan.core.times.region import Region
from capstan.errors import SystemFailureError
from capstan.storage import delta
from capstan.storage.lake import sizes_of
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW = 32
"""So many files Spark looks at from the driver; of more it makes a job."""

Row = Mapping[str, object]


def files_of(
    table: deltalake.DeltaTable,
    time_type: TimeType,
    *,
    workers: Collection[int] | None = None,
    batch: int | None = None,
    region: Region | None = None,
) -> list[str]:
    """Paths of the files whose bounds do not rule out what is asked for, as the log has them.

    Args:
        table: The table, with columns `worker`, `batch` and `time`.
        time_type: The coordinates of its times.
        workers: Rows of these workers; None for all.
        batch: Rows of this batch and earlier ones; None for all.
        region: Rows of these times; None for all.
    """
    box = None if region is None else region.simplified().box
    ranges = [] if box is None else list(zip(time_type.names, box.since, box.until, strict=True))

    def may_have(row: Row) -> bool:
        if workers is not None and not _has_any(row, workers):
            return False
        first = bound_integer(row.get("min.batch"))
        if batch is not None and first is not None and first > batch:
            return False
        return all(_meets(row, *bounds) for bounds in ranges)

    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [row["path"] for row in rows if may_have(row)]


def files_between(
    path: str, table: deltalake.DeltaTable, column: str, first: int, last: int | None = None
) -> list[str]:
    """Places of the files that can have a row whose `column` is from `first` to `last`.

    Args:
        path: The table.
        table: The same, opened.
        column: A column of integers.
        first: The least value that is asked for.
        last: The greatest one; None for any.
    """
    files = pa.table(table.get_add_actions(flatten=True))
    low, high = f"min.{column}", f"max.{column}"
    if {low, high} <= set(files.column_names):
        wanted = pc.fill_null(pc.greater_equal(files[high], first), True)
        if last is not None:
            wanted = pc.and_(wanted, pc.fill_null(pc.less_equal(files[low], last), True))
        files = files.filter(wanted)
    return [delta.place_of(path, file) for file in files["path"].to_pylist()]


def _has_any(row: Row, workers: Collection[int]) -> bool:
    low, high = (bound_integer(row.get(f"{side}.worker")) for side in ("min", "max"))
    if low is None or high is None:
        return True
    return any(low <= worker <= high for worker in workers)


def _meets(row: Row, name: str, since: int | None, until: int | None) -> bool:
    low, high = (bound_integer(row.get(f"{side}.time.{name}")) for side in ("min", "max"))
    # The bounds of timestamps are cut to milliseconds: what was cut may reach this far.
    before = high is not None and since is not None and high + 1000 <= since
    after = low is not None and until is not None and low >= until
    return not before and not after


def bound_integer(bound: object) -> int | None:
    """A bound that Delta keeps of a file's times as an integer: the value, days or microseconds."""
    if isinstance(bound, datetime):
        aware = bound if bound.tzinfo else bound.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(bound, date):
        return (bound - date(1970, 1, 1)).days
    return bound if isinstance(bound, int) else None


def is_plain(table: deltalake.DeltaTable) -> bool:
    """Whether the rows of a table are those of its files: no feature of Delta's changes them."""
    return bool(table.protocol().min_reader_version == 1)


def read_all(spark: SparkSession, path: str) -> DataFrame:
    """The rows of the newest version of a table; no order."""
    table = delta.open_table(path)
    files = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    if len(files) <= FEW and is_plain(table):
        return read_few(spark, path, table, files)
    return delta.load(spark, path)


def is_empty(path: str) -> bool:
    """Whether the newest version of a table has no file."""
    return delta.open_table(path).get_add_actions().num_rows == 0


def count_rows(path: str) -> int:
    """How many rows the newest version of a table has, from its log alone."""
    return sum(delta.stat(delta.open_table(path).get_add_actions(flatten=True), "num_records"))


def columns_of(table: deltalake.DeltaTable) -> StructType:
    """The columns of a table as Spark has them."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def read_few(
    spark: SparkSession, path: str, table: deltalake.DeltaTable, files: Collection[str]
) -> DataFrame:
    """The rows of some files of a table that is plain; no order.

    Args:
        spark: The session.
        path: The table.
        table: The same, opened: its columns are those of the frame.
        files: Paths of files, as the log has them.

    Raises:
        SystemFailureError: `CAP-DAMAGED` where one of them is gone.
    """
    schema = columns_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    places = [delta.place_of(path, file) for file in files]
    gone = [place for place, size in sizes_of(places).items() if size is None]
    if gone:
        raise SystemFailureError(
            "CAP-DAMAGED",
            f"a file cannot be read: {gone[0]} is gone",
            "put it back from a copy; `capstan verify STREAM --deep` names all that a tape lacks",
            path=gone[0],
        )
    # A place is taken as it is written, whatever characters it has.
    reader = spark.read.schema(schema).options(__globPaths__="false", basePath=path)
    # Columns that are in the names of folders come last.
    return reader.parquet(*places).select(*(quoted(name) for name in schema.names))
