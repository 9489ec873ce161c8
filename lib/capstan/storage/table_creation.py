"""Creates Delta tables of any columns, by whichever writer does it right and soon.

Spark takes seconds for a table in a fresh process, delta-rs some milliseconds. Of ordinary columns
both make the same table. What only Spark knows how to make, or to refuse, is left to it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta.tables import DeltaTable, DeltaTableBuilder
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from capstan.storage import arrow_writer, delta
from capstan.storage.commit_lock import making
from capstan.storage.commit_retry import is_any
from capstan.storage.lake import delete_folder, is_table, read_text, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDINARY = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampType,
)
_NAME = re.compile(r"[A-Za-z0-9_]+")
_SITE = "spark.databricks.delta.properties.defaults."


def create_table(
    spark: SparkSession,
    path: str,
    schema: StructType,
    *,
    properties: Mapping[str, str] | None = None,
    partitions: tuple[str, ...] = (),
) -> None:
    """Create an empty Delta table at `path` unless there is one; readable by every Delta reader."""
    if is_table(path):
        return
    if _is_ordinary(schema) and not _has_site_defaults(spark):
        arrow_writer.create_table(path, schema, properties=properties, partitions=partitions)
        _write_checksum(path)
        return
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema)
    for key, value in {**delta.PLAIN, **(properties or {})}.items():
        builder = builder.property(key, value)
    if partitions:
        builder = builder.partitionedBy(*partitions)
    _create(builder, path)


def _write_checksum(path: str) -> None:
    """Write the checksum of an empty table's first version, as Delta's protocol defines it.

    Without one Spark rebuilds the state of the table, in a job, before it first commits to it.
    """
    entry = f"{path}/_delta_log/{0:020}"
    actions = [json.loads(line) for line in read_text(f"{entry}.json").splitlines()]
    found = {name: value for action in actions for name, value in action.items()}
    if found.keys() == {"commitInfo", "metaData", "protocol"}:
        checksum = {
            "tableSizeBytes": 0,
            "numFiles": 0,
            "numMetadata": 1,
            "numProtocol": 1,
            "setTransactions": [],
            "domainMetadata": [],
            "metadata": found["metaData"],
            "protocol": found["protocol"],
            "allFiles": [],
        }
        write_text(f"{entry}.crc", json.dumps(checksum))


def _is_ordinary(kind: DataType) -> bool:
    """Whether a type is the same to all writers of Delta, and Spark would refuse nothing of it."""
    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        return (
            len({name.lower() for name in names}) == len(names)
            and all(map(_NAME.fullmatch, names))
            and all(_is_ordinary(field.dataType) and not field.metadata for field in kind.fields)
        )
    if isinstance(kind, ArrayType):
        return _is_ordinary(kind.elementType)
    if isinstance(kind, MapType):
        return _is_ordinary(kind.keyType) and _is_ordinary(kind.valueType)
    return type(kind) in _ORDINARY or kind == StringType()


def _has_site_defaults(spark: SparkSession) -> bool:
    """Whether this site wants properties of its own on new tables: those only Spark knows."""
    conf = spark.sparkContext._jsc.sc().conf()
    return len(conf.getAllWithPrefix(_SITE)) > 0


def _create(builder: DeltaTableBuilder, path: str) -> None:
    """Make a table, whoever else is making it, or was killed while making it."""
    # What is begun under the lock is of one who was killed, or who takes none, as in a bucket.
    with making(path):
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6):
            try:
                builder.execute()
            except (Py4JJavaError, PySparkException) as error:
                if is_table(path):
                    return  # Another writer has just made it.
                if not is_any(error, "DELTA_TABLE_NOT_FOUND"):
                    raise
                time.sleep(pause)  # Another writer has begun to.
            else:
                return
        if is_table(path):
            return
        # Whoever had begun is no more: there is no commit, and Delta makes none beside the rest.
        delete_folder(f"{path}/_delta_log")
        builder.execute()
