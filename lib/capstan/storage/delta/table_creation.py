"""Creation of Delta tables with any columns, by the fastest suitable writer.

In a fresh process Spark takes seconds to create a table, and delta-rs some milliseconds. For common
column types both create the same table. Other types are left to Spark.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

from delta.tables import DeltaTable, DeltaTableBuilder
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.commit_lock import making
from capstan.storage.delta.commits import is_any
from capstan.storage.lake import delete_folder, is_table, read_text, write_text
from capstan.storage.stored_log import look_again

_COMMON_TYPES = (
    T.BinaryType, T.BooleanType, T.ByteType, T.DateType, T.DecimalType, T.DoubleType, T.FloatType,
    T.IntegerType, T.LongType, T.ShortType, T.TimestampType,
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_]+")
_SITE_DEFAULTS = "spark.databricks.delta.properties.defaults."


def create_table(
    spark: SparkSession,
    path: str,
    schema: T.StructType,
    *,
    properties: Mapping[str, str] | None = None,
    partitions: tuple[str, ...] = (),
    clusters: tuple[str, ...] = (),
    declared: Mapping[str, str] | None = None,
) -> None:
    """Create an empty Delta table at `path` unless it exists.

    Every Delta reader can read it with `properties`. A user's `declared` ones take precedence, and
    may enable features of Delta. `clusters` are columns, or fields in dotted form.
    """
    if is_table(path):
        return
    # Only Spark adds the features that properties or clustering need.
    plain = not clusters and not declared and not _has_site_defaults(spark)
    if plain and _is_common(schema):
        arrow_writer.create_table(path, schema, properties=properties, partitions=partitions)
        _write_checksum(path)
        return
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema)
    for key, value in {**delta.PLAIN, **(properties or {}), **(declared or {})}.items():
        builder = builder.property(key, value)
    if partitions:
        builder = builder.partitionedBy(*partitions)
    if clusters:
        builder = builder.clusterBy(*clusters)
    _create(builder, path)


def _write_checksum(path: str) -> None:
    """Write the checksum of an empty table's first version, as defined by Delta's protocol."""
    # Without it Spark rebuilds the table's state in a job before its first commit.
    entry = f"{path}/_delta_log/{0:020}"
    actions = [json.loads(line) for line in read_text(f"{entry}.json").splitlines()]
    fields = {name: value for action in actions for name, value in action.items()}
    if fields.keys() == {"commitInfo", "metaData", "protocol"}:
        checksum = {
            "tableSizeBytes": 0,
            "numFiles": 0,
            "numMetadata": 1,
            "numProtocol": 1,
            "setTransactions": [],
            "domainMetadata": [],
            "metadata": fields["metaData"],
            "protocol": fields["protocol"],
            "allFiles": [],
        }
        write_text(f"{entry}.crc", json.dumps(checksum))


def _is_common(kind: T.DataType) -> bool:
    """Whether all Delta writers treat a type alike, and Spark accepts it."""
    if isinstance(kind, T.StructType):
        names = [field.name for field in kind.fields]
        return (
            len({name.lower() for name in names}) == len(names)
            and all(map(_NAME.fullmatch, names))
            and all(_is_common(field.dataType) and not field.metadata for field in kind.fields)
        )
    if isinstance(kind, T.ArrayType):
        return _is_common(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_common(kind.keyType) and _is_common(kind.valueType)
    return type(kind) in _COMMON_TYPES or kind == T.StringType()


def _has_site_defaults(spark: SparkSession) -> bool:
    """Whether the site has default properties for new tables; only Spark applies them."""
    conf = spark.sparkContext._jsc.sc().conf()
    return len(conf.getAllWithPrefix(_SITE_DEFAULTS)) > 0


def _create(builder: DeltaTableBuilder, path: str) -> None:
    """Create a table, even if another writer is creating it or was killed meanwhile."""
    # An unfinished table under this lock is from a killed writer, or one without a lock (bucket).
    with making(path):
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6):
            try:
                builder.execute()
            except (Py4JJavaError, PySparkException) as error:
                look_again()
                if is_table(path):
                    return  # Another writer has created it.
                if not is_any(error, "DELTA_TABLE_NOT_FOUND"):
                    raise
                time.sleep(pause)  # Another writer is creating it.
            else:
                return
        look_again()
        if is_table(path):
            return
        # The other writer is dead: there is no commit, and Delta creates none beside its files.
        delete_folder(f"{path}/_delta_log")
        builder.execute()
