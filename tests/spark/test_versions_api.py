"""What older minor versions of Spark lack is done by their means, with the same result."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.spark import versions_api
from capstan.spark.versions_api import arrow_schema, repartition_by_hash, repartition_by_number


@pytest.mark.parametrize("repartition", [repartition_by_number, repartition_by_hash])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_each_row_comes_into_the_partition_of_its_number(
    spark: SparkSession, repartition: object, count: int
) -> None:
    numbered = spark.range(3 * count).select((F.col("id") % count).cast("int").alias("number"))
    assert callable(repartition)
    placed: DataFrame = repartition(numbered, count, "number")
    where = placed.withColumn("partition", F.spark_partition_id()).distinct().collect()
    assert sorted((row.number, row.partition) for row in where) == [(n, n) for n in range(count)]


def test_the_hash_is_spark_s(spark: SparkSession) -> None:
    rows = spark.range(1000).select(F.col("id").cast("int").alias("n")).select("n", F.hash("n"))
    assert all(versions_api._murmur3(row[0]) == row[1] for row in rows.collect())


def test_timestamps_have_their_zone() -> None:
    schema = StructType.fromDDL("at timestamp, plain timestamp_ntz")
    assert arrow_schema(schema).types == [pa.timestamp("us", "UTC"), pa.timestamp("us")]
