"""A streaming job of a user's, which records its orders by `capture_into`."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import capstan
from capstan.storage.delta import delta
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from capstan.capture.query.attached_query import CaptureInto

ORDERS = {
    "workers": {"by": "key", "columns": ["customer"], "count": 2},
    "time": {"domain": "event", "column": "at", "every": "1 hour", "lateness": "1 hour"},
}
ZONE = "America/New_York"


class Job:
    """A streaming job of a user's: its source, its transformation, and its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        """Begin in a session of the user's, which has another time zone.

        Args:
            spark: Any session of the application.
            folder: The folder of source, lake and checkpoints.
        """
        self.spark = spark.newSession()
        self.spark.conf.set("spark.sql.session.timeZone", ZONE)
        self.lake = Lake.at(folder / "lake")
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        self.checkpoint = folder / "checkpoint"
        self.arrived = 1_700_000_000

    def arrive(self, name: str, *orders: tuple[int, str, str]) -> None:
        """Let a file of orders arrive, each with its number, customer and time of day."""
        lines = [
            json.dumps({"id": number, "customer": customer, "time": f"2024-05-01T{time}:00Z"})
            for number, customer, time in orders
        ]
        path = self.source / f"{name}.json"
        path.write_text("\n".join(lines), encoding="utf-8")
        # Spark reads the oldest file first.
        self.arrived += 1
        os.utime(path, (self.arrived, self.arrived))

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema("id BIGINT, customer STRING, time TIMESTAMP")
        rows = reader.option("maxFilesPerTrigger", 1).json(str(self.source))
        return (
            rows.where("id > 0")
            .withColumn("customer", F.upper("customer"))
            .withColumnsRenamed({"time": "at"})
        )

    def into(self, **more: Any) -> CaptureInto:
        return capstan.capture_into("orders", lake=self.lake.root, **{**ORDERS, **more})

    def start(
        self, checkpoint: str = "", frame: DataFrame | None = None, **more: Any
    ) -> StreamingQuery:
        return self.start_with(self.into(**more), checkpoint, frame)

    def start_with(
        self,
        record: Callable[[DataFrame, int], None],
        checkpoint: str = "",
        frame: DataFrame | None = None,
        **trigger: Any,
    ) -> StreamingQuery:
        writer = (self.frame() if frame is None else frame).writeStream.foreachBatch(record)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", f"{self.checkpoint}{checkpoint}").start()

    def run(self, checkpoint: str = "", frame: DataFrame | None = None, **more: Any) -> None:
        """Start the job, and stop it once it has recorded all that is there."""
        finish(self.start(checkpoint, frame, **more))

    def back_up(self) -> None:
        shutil.copytree(self.checkpoint, f"{self.checkpoint}-backup")

    def restore(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(f"{self.checkpoint}-backup", self.checkpoint)

    def version(self) -> int:
        """The version of the tape's index: it counts what was written."""
        return delta.open_table(self.lake.stream("orders").events).version()

    def numbers(self) -> list[int]:
        """The numbers of the orders on tape."""
        rows = self.spark.read.format("delta").load(self.lake.stream("orders").records)
        return sorted(row[0] for row in rows.select("data.id").collect())

    def recorded(self) -> list[tuple[int, str]]:
        """The numbers and times on tape."""
        rows = self.spark.read.format("delta").load(self.lake.stream("orders").records)
        at = F.date_format(F.to_utc_timestamp("data.at", F.current_timezone()), "HH:mm")
        return sorted((row[0], row[1]) for row in rows.select("data.id", at).collect())

    def is_sound(self) -> bool:
        context = capstan.Context(self.lake.root, spark=self.spark)
        return context.verify("orders", deep=True).valid


def finish(query: StreamingQuery) -> None:
    """Stop a query once it has recorded all that is there."""
    try:
        query.processAllAvailable()
    finally:
        query.stop()
