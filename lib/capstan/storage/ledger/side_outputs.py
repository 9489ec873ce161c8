"""What a pipeline's run leaves beside its target: rows that were put aside, and counters of nodes.

Rows aside are in a table per pipeline, counters in the ledger `metrics`. Both are written before
the target is, so that no publish stands without them; of an attempt that has published nothing
they count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from capstan.storage import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.tables import MOMENT, PROPERTIES, append_rows, now
from capstan.storage.table_creation import create_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ASIDE = StructType(
    [
        StructField("run", StringType()),
        StructField("attempt", IntegerType()),
        StructField("at", MOMENT),
        StructField("stream", StringType()),
        StructField("target", StringType()),
        StructField("sink", StringType()),
        StructField("node", StringType()),
        StructField("output", StringType()),
        StructField("name", StringType()),
        StructField("replay_worker", IntegerType()),
        StructField("time", LongType()),
        StructField("row", StringType()),
    ]
)
"""Columns of a table of rows aside, one row per row."""


def write_aside(
    spark: SparkSession,
    lake: Lake,
    pipeline: str,
    run: RunId,
    attempt: int,
    rows: DataFrame,
    about: Mapping[str, str],
) -> None:
    """Append the rows that operators put aside to the pipeline's table, once for an attempt.

    Args:
        spark: The session.
        lake: The lake.
        pipeline: The pipeline's name.
        run: The run.
        attempt: Its attempt.
        rows: `node`, `output`, `name`, `worker` (the replay worker), `time`, `row` (JSON).
        about: `stream`, `target` and `sink` of the run.
    """
    path = lake.aside(pipeline)
    create_table(spark, path, ASIDE, properties=PROPERTIES)
    said = {"run": run.name, "attempt": attempt, "at": now(), **about}
    frame = rows.withColumnRenamed("worker", "replay_worker")
    for name, value in said.items():
        frame = frame.withColumn(name, F.lit(value).cast(ASIDE[name].dataType))
    txn = run.aside(attempt)
    delta.append(frame.select(*ASIDE.names), path, txn=txn, note={"run": run.name})


def write_metrics(
    lake: Lake,
    run: RunId,
    attempt: int,
    pipeline: str,
    nodes: Iterable[Mapping[str, object]],
) -> None:
    """Append the counters of every node on every replay worker to the ledger, in one commit.

    Args:
        lake: The lake.
        run: The run.
        attempt: Its attempt.
        pipeline: The pipeline's name.
        nodes: `stage`, `worker` (the replay worker), `node`, and the counters by their names.
    """
    said = {"run": run.name, "attempt": attempt, "pipeline": pipeline}
    rows = []
    for each in nodes:
        counters = dict(each)
        rows.append({**said, "replay_worker": counters.pop("worker"), **counters})
    append_rows(lake, "metrics", rows)
