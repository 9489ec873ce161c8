"""Side outputs and node counters of pipeline runs.

Side outputs are in one table per pipeline, counters in the ledger `metrics`. Both are written
before the target, so that no publish lacks them. Those of an attempt that did not publish are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.storage.delta import delta
from capstan.storage.delta.arrow_writer import struct
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.tables import PROPERTIES, LedgerRow, append_rows, now

SIDE_OUTPUTS = struct(
    run="string", attempt="integer", at="timestamp", stream="string", target="string",
    sink="string", node="string", output="string", name="string", replay_worker="integer",
    time="long", row="string",
)  # fmt: skip
"""Columns of a table of side outputs, one row per diverted row."""


def write_side_outputs(
    spark: SparkSession,
    lake: Lake,
    pipeline: str,
    run: RunId,
    attempt: int,
    rows: DataFrame,
    about: Mapping[str, str],
) -> None:
    """Append side outputs to the pipeline's table, once per attempt.

    Rows have `node`, `output`, `name`, `worker` (the replay worker), `time` and `row` (JSON);
    `about` has `stream`, `target` and `sink` of the run.
    """
    path = lake.side_outputs(pipeline)
    create_table(spark, path, SIDE_OUTPUTS, properties=PROPERTIES)
    constants = {"run": run.name, "attempt": attempt, "at": now(), **about}
    frame = rows.withColumnRenamed("worker", "replay_worker")
    for name, value in constants.items():
        frame = frame.withColumn(name, F.lit(value).cast(SIDE_OUTPUTS[name].dataType))
    txn = run.side_outputs(attempt)
    delta.append(frame.select(*SIDE_OUTPUTS.names), path, txn=txn, note={"run": run.name})


def write_metrics(
    lake: Lake, run: RunId, attempt: int, pipeline: str, nodes: Iterable[LedgerRow]
) -> None:
    """Append the counters of all nodes on all replay workers to the ledger, in one commit.

    Nodes have `stage`, `worker` (the replay worker), `node`, and the counters by name.
    """
    constants = {"run": run.name, "attempt": attempt, "pipeline": pipeline}
    rows = []
    for node in nodes:
        counters = dict(node)
        rows.append({**constants, "replay_worker": counters.pop("worker"), **counters})
    append_rows(lake, "metrics", rows)
