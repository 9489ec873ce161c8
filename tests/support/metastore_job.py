"""Replays into tables of a Hive metastore: `FOLDER first`, then in another process `FOLDER second`.

The first process creates the tables, the second one finds them renamed. It prints `whole` at its
end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from capstan.core.config import Target
from capstan.errors import InvalidRequestError
from capstan.spark.session import build_session
from capstan.spark.setup import jvm
from capstan.storage.lake import Lake
from tests.support.replay_harness import Play
from tests.support.sample_streams import declared, little_stream, rows
from tests.support.small_spark import MASTER, SHRUNK

EARLY = {"since": "2024-05-01T00:00", "until": "2024-05-01T04:00"}
LATER = {"since": "2024-05-01T02:00", "until": "2024-05-01T06:00"}
COLUMNS = (
    "_worker INT, _time STRUCT<event: TIMESTAMP>, id BIGINT, place STRING, at TIMESTAMP, "
    "amount INT, note STRING"
)


def settings(folder: Path) -> dict[str, str]:
    """The settings of a session with a metastore in a folder, kept by Derby."""
    derby = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    return {
        **SHRUNK,
        jvm.OPTIONS: f"{SHRUNK[jvm.OPTIONS]} -Dderby.stream.error.file={folder}/derby.log",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }


def _targets(**tables: str) -> dict[str, Target]:
    return {name: Target(name=name, table=table) for name, table in tables.items()}


def create(folder: Path) -> None:
    """Replay into a table that Capstan creates, and into one of the catalog."""
    spark = build_session("metastore", master=MASTER, extra=settings(folder))
    spark.sql("CREATE DATABASE shop")
    spark.sql(f"CREATE TABLE shop.events ({COLUMNS}) USING delta")
    targets = _targets(orders="shop.orders", events="shop.events")
    play = Play.of(spark, folder, rows(range(24)), targets=targets)
    for name in targets:
        play(name, **EARLY)
        assert spark.table(f"shop.{name}").count() == 8


def rename(folder: Path) -> None:
    """Rename both, continue, and drop a name while the table stays."""
    spark = build_session("metastore", master=MASTER, extra=settings(folder))
    targets = _targets(orders="shop.orders_2", events="spark_catalog.shop.events_2")
    stream = little_stream(folder / "source")
    play = Play(spark, Lake.at(folder / "lake"), declared(stream, targets=targets))
    for name in targets:
        spark.sql(f"ALTER TABLE shop.{name} RENAME TO shop.{name}_2")
        assert play(name, **EARLY).unchanged
        play.rollback(play.run(name, **LATER))
        assert spark.table(f"shop.{name}_2").count() == 8
    spark.sql("DROP TABLE shop.orders_2")
    try:
        play("orders", **LATER)
    except InvalidRequestError as error:
        assert "the catalog no longer has shop.orders_2" in error.message
    else:
        raise AssertionError("a name that the catalog has lost was not refused")


if __name__ == "__main__":
    {"first": create, "second": rename}[sys.argv[2]](Path(sys.argv[1]))
    print("whole")
