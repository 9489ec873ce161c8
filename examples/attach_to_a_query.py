"""Attach to a streaming query: record what it puts out, over a restart, exactly once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import capstan
from capstan.spark.session import build_session


def main(folder: Path) -> None:
    """Run the example in a new folder."""
    spark = build_session("attach to a query")
    source, lake = folder / "orders", folder / "lake"
    source.mkdir(parents=True)
    for batch in range(2):
        # The second round is a restart: the query goes on where its checkpoint is.
        _write_orders(source, batch)
        _record(_orders(spark, source), lake, folder / "checkpoint")
        with capstan.Context(lake, spark=spark) as context:
            [tape] = (row for row in context.streams() if row["stream"] == "orders")
            print("on tape:", tape["records"], "records")

    with capstan.Context(lake, spark=spark) as context:
        context.verify("orders").raise_for_violations()
        run = context.replay("orders", into="oslo", workers=["oslo"])
        print("replayed:", sorted(run.to_arrow()["id"].to_pylist()))
    spark.stop()


def _orders(spark: SparkSession, source: Path) -> DataFrame:
    """A streaming frame of your own; any source and any transformation."""
    read = spark.readStream.schema("id BIGINT, city STRING, ordered_at TIMESTAMP")
    return read.json(str(source)).where("id >= 0")


def _record(orders: DataFrame, lake: Path, checkpoint: Path) -> None:
    into = capstan.capture_into(
        "orders",
        lake=lake,
        workers={"by": "column", "column": "city"},
        time={"domain": "event", "column": "ordered_at", "every": "1 hour"},
    )
    query = orders.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def _write_orders(folder: Path, batch: int) -> None:
    orders = [
        {"id": n, "city": ("oslo", "bergen")[n % 2], "ordered_at": f"2026-01-{1 + n // 4:02}"}
        for n in range(10 * batch, 10 * batch + 10)
    ]
    text = "\n".join(map(json.dumps, orders)) + "\n"
    (folder / f"{batch}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
