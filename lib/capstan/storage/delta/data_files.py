"""Data files of a Delta table: pruning by bounds, and direct reads of a few files.

To read a table, Delta replays its log in Spark and runs a job that selects files. If delta-rs has
already selected a few files, Spark reads those directly.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from capstan.core.sql_names import quoted
from capstan.errors import SystemFailureError
from capstan.errors.translation import DAMAGED_FILE_HINT
from capstan.storage.delta import delta
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import sizes_of

MAX_DIRECT = 32
"""Up to this many files Spark lists on the driver; beyond it starts a job."""


def files_between(
    path: str, table: OpenedTable, column: str, first: int, last: int | None = None
) -> list[str]:
    """Full paths of the files that can have a row with `column` from `first` to `last`."""
    files = prune(table.files(), column, first, last)
    return [delta.resolve_path(path, file) for file in files["path"].to_pylist()]


def prune(files: pa.Table, column: str, least: object, most: object = None) -> pa.Table:
    """The files that can have a row with `column` from `least` to `most`; None is unbounded.

    `files` come with their bounds, from `OpenedTable.files`.
    """
    low, high = f"min.{column}", f"max.{column}"
    if least is not None and high in files.column_names:
        files = files.filter(pc.fill_null(pc.greater_equal(files[high], least), True))
    if most is not None and low in files.column_names:
        files = files.filter(pc.fill_null(pc.less_equal(files[low], most), True))
    return files


def read_all(spark: SparkSession, path: str) -> DataFrame:
    """Rows of the newest version of a table, in no order."""
    table = delta.open_table(path)
    return read_with(spark, path, table, table.files()["path"].to_pylist())


def read_with(
    spark: SparkSession, path: str, table: OpenedTable, files: Collection[str]
) -> DataFrame:
    """Rows of an opened table, in no order: those of some files alone if these are few."""
    if len(files) <= MAX_DIRECT and table.is_plain:
        return read_files(spark, path, files, columns_of(table))
    return delta.load(spark, path)


def is_empty(path: str) -> bool:
    """Whether the newest version of a table has no files."""
    return delta.open_table(path).get_add_actions().num_rows == 0


def columns_of(table: OpenedTable) -> StructType:
    """The columns of a table as a Spark schema."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def read_files(
    spark: SparkSession, path: str, files: Collection[str], columns: StructType | None = None
) -> DataFrame:
    """Rows of some files of a plain table, in no order, with these columns or its newest ones."""
    schema = columns or columns_of(delta.open_table(path))
    if not files:
        return spark.createDataFrame([], schema)
    paths = [delta.resolve_path(path, file) for file in files]
    # Each look at a file may be a request. Of many files, Spark finds the missing one itself.
    sizes = sizes_of(paths if len(paths) <= MAX_DIRECT else [])
    missing = [file for file, size in sizes.items() if size is None]
    if missing:
        raise SystemFailureError(
            "CAP-DAMAGED",
            f"a file cannot be read: {missing[0]} does not exist",
            DAMAGED_FILE_HINT,
            path=missing[0],
        )
    # Paths are used literally, whatever characters they have.
    reader = spark.read.schema(schema).options(__globPaths__="false", basePath=path)
    # Spark puts partition columns last.
    return reader.parquet(*paths).select(*(quoted(name) for name in schema.names))
