"""The examples of the page about change streams, on data of the kind that they are for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import yaml

from capstan.capture.run import capture, close
from capstan.core.config import EpochTime, ProjectConfig, load_config
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from tests.support.docs import blocks, page, section

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TOPIC = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
DAY = "2024-05-01T{}:00:00"
MESSAGE = {"key": "key", "offset": "offset", "timestamp": "timestamp"}
MIDDLE = "2024-05-01T12:00:00Z"


def example(title: str, folder: Path, path: str, **changes: str) -> ProjectConfig:
    """The declarations of an example, with a Delta table as their source."""
    (text,) = blocks(section(page("change-streams"), title), "yaml")
    data = yaml.safe_load(text)
    source = data["streams"]["customers"]["source"]
    options = source["options"] if source["format"] == "delta" else {}
    source |= {"format": "delta", "path": path, "options": options}
    source["changes"] |= changes
    file = folder / "streams.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_config(file, lake=str(folder / "lake"))


def newest_first(
    spark: SparkSession, folder: Path, config: ProjectConfig, middle: str
) -> pl.DataFrame:
    """The table after its later half was replayed, and then its earlier half."""
    lake = Lake.at(folder / "lake")
    capture(spark, lake, config.streams["customers"])
    close(spark, lake, "customers")
    declared = config.replay("customers")
    for times in ({"since": middle}, {"until": middle}):
        replay(spark, lake, config, Request.of_replay(declared, **times))
    return pl.read_delta(lake.table("customers"))


def topic(
    spark: SparkSession, folder: Path, messages: list[tuple[str | None, str | None, str]]
) -> str:
    """A table with the columns of a Kafka topic, and its messages in order."""
    path = str(folder / "topic")
    rows = [
        (
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            "customers",
            0,
            offset,
            at,
            0,
        )
        for offset, (key, value, at) in enumerate(messages)
    ]
    columns = TOPIC.replace("TIMESTAMP", "STRING")
    frame = spark.createDataFrame(rows, columns)
    frame.withColumn("timestamp", frame["timestamp"].cast("timestamp")).write.format("delta").save(
        path
    )
    return path


def test_debezium(spark: SparkSession, tmp_path: Path) -> None:
    def envelope(op: str, id_: int, name: str | None, lsn: int, hour: str) -> tuple[str, str, str]:
        row = {"id": id_, "name": name or "before"}
        moment = int(pl.Series([DAY.format(hour)]).str.to_datetime().dt.epoch("ms")[0])
        value = {
            "before": None if op == "c" else {"id": id_, "name": "before"},
            "after": None if op == "d" else row,
            "op": op,
            "ts_ms": moment,
            "source": {"lsn": lsn},
        }
        return str(id_), json.dumps(value), DAY.format(hour)

    messages: list[tuple[str | None, str | None, str]] = [
        envelope("c", 1, "Ada", 10, "01"),
        envelope("c", 2, "Ben", 11, "02"),
        envelope("c", 3, "Cy", 12, "03"),
        envelope("u", 1, "Ada L.", 20, "13"),
        envelope("d", 2, None, 21, "14"),
        ("2", None, DAY.format("14")),
    ]
    config = example("Debezium", tmp_path, topic(spark, tmp_path, messages), **MESSAGE)

    table = newest_first(spark, tmp_path, config, MIDDLE)

    assert sorted(table.select("id", "name").rows()) == [(1, "Ada L."), (3, "Cy")]


def test_the_change_feed_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "shop")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    for statement in (
        "INSERT INTO {} VALUES (1, 'Ada'), (2, 'Ben'), (3, 'Cy')",
        "UPDATE {} SET name = 'Ada L.' WHERE id = 1",
        "UPDATE {} SET id = id + 10 WHERE id > 1",
        "UPDATE {} SET id = id - 10 WHERE id > 1",
        "UPDATE {} SET id = 10 WHERE id = 1",
        "DELETE FROM {} WHERE id = 2",
        "INSERT OVERWRITE {} VALUES (1, 'A. L.'), (3, 'Cy')",
        "UPDATE {} SET id = id + 2",
    ):
        spark.sql(statement.format(f"delta.`{path}`"))
    config = example("Delta's change feed", tmp_path, path)
    stream = config.streams["customers"]
    # The commits of a test are all of the same hour; with epochs, each batch is a time.
    options = {**stream.source.options, "maxFilesPerTrigger": "1"}
    source = replace(stream.source, options=options)
    changed = replace(stream, source=source, time=EpochTime())
    config = replace(config, streams={"customers": changed})

    table = newest_first(spark, tmp_path, config, "2")

    assert sorted(table.select("id", "name").rows()) == [(3, "A. L."), (5, "Cy")]


def test_kafka_tombstones(spark: SparkSession, tmp_path: Path) -> None:
    def customer(name: str, city: str) -> str:
        return json.dumps({"name": name, "city": city})

    messages: list[tuple[str | None, str | None, str]] = [
        ("ada", customer("Ada", "Ulm"), DAY.format("01")),
        ("ben", customer("Ben", "Bonn"), DAY.format("02")),
        ("ada", customer("Ada", "Jena"), DAY.format("13")),
        ("ben", None, DAY.format("14")),
    ]
    config = example("Kafka tombstones", tmp_path, topic(spark, tmp_path, messages), **MESSAGE)

    table = newest_first(spark, tmp_path, config, MIDDLE)

    rows = table.select("id", "city", "valid_from", "valid_to")
    assert sorted(rows.rows()) == [
        ("ada", "Jena", 2, None),
        ("ada", "Ulm", 0, 2),
        ("ben", "Bonn", 1, 3),
    ]
    assert table.filter(pl.col("current"))["id"].to_list() == ["ada"]
