"""The same tape from any session: frames, queries and functions of the user's."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import capstan
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from tests.support.attached_job import finish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "session.timeZone": "Asia/Tokyo",
    "ansi.enabled": "false",
    "caseSensitive": "true",
    "legacy.timeParserPolicy": "LEGACY",
    "timestampType": "TIMESTAMP_NTZ",
    "legacy.castComplexTypesToString.enabled": "true",
    "decimalOperations.allowPrecisionLoss": "false",
    "datetime.java8API.enabled": "true",
    "shuffle.partitions": "3",
}
# A day without a zone, a text with one digit less than its format, a time of day in a zone.
TIMES = {"column": "t", "expression": "to_timestamp(concat(d, ' ', h), 'yyyy-MM-dd HH:mm')"}
FUNCTION = """
from pyspark.sql import SparkSession

def active(path):
    return read(SparkSession.active(), path)

def built(path):
    return read(SparkSession.builder.getOrCreate(), path)

def given(spark, path):
    return read(spark, path)

def zoned(path):
    session = SparkSession.active().newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    return read(session, path)

def read(spark, path):
    rows = spark.readStream.schema("id INT, k STRING, t STRING").json(path)
    return rows.selectExpr("id", "k", "CAST(t AS TIMESTAMP) AS t")
"""


@pytest.fixture
def guest(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session of a user's with other settings, in a process with another zone."""
    monkeypatch.setattr("capstan.spark.session._STARTED", set())
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    session = spark.newSession()
    for key, value in SETTINGS.items():
        session.conf.set(f"spark.sql.{key}", value)
    # With the first plan of a session, Delta's extension sets two settings of it.
    session.range(1)
    yield session
    monkeypatch.undo()
    time.tzset()


def arrive(folder: Path, batches: int = 3) -> None:
    """Records in perfect order, one per hour."""
    folder.mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        rows = [
            {"id": h, "k": "a", "t": f"2024-05-01 {h:02}:30:00", "d": "2024-05-01", "h": f"{h}:30"}
            for h in range(6 * batch, 6 * batch + 6)
        ]
        path = folder / f"{batch}.json"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        # Spark reads the oldest file first.
        os.utime(path, (batch + 1, batch + 1))


def tape(ctx: capstan.Context, stream: str) -> list[tuple[int, str]]:
    """The records by number, each with its time, without Spark."""
    rows = delta.open_table(ctx.lake.stream(stream).records).to_pyarrow_table().to_pylist()
    return sorted((row["data"]["id"], row["time"]["event"].isoformat()) for row in rows)


def declaration(source: str, time: dict[str, str]) -> dict[str, Any]:
    return {
        "source": source,
        "workers": {"by": "column", "column": "k"},
        "time": {"domain": "event", **time, "every": "1 hour", "lateness": "1 hour"}
        | {"watermark": "worker"},
    }


@pytest.mark.parametrize("by", sorted(TIMES))
def test_a_frame_gives_the_tape_that_its_query_gives(
    guest: SparkSession, tmp_path: Path, by: str
) -> None:
    arrive(tmp_path / "in")
    declared = declaration("{format: query}", {by: TIMES[by]})
    config = tmp_path / "streams.yaml"
    source, workers, when = declared.values()
    config.write_text(
        f"streams:\n  o:\n    source: {source}\n    workers: {json.dumps(workers)}\n"
        f"    time: {json.dumps(when)}\n",
        encoding="utf-8",
    )
    ctx = capstan.Context(tmp_path / "lake", config=config, spark=guest)

    def frame() -> DataFrame:
        reader = guest.readStream.schema("id INT, k STRING, t STRING, d STRING, h STRING")
        return reader.option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))

    before = guest.conf.getAll, guest.streams.active
    captured = ctx.capture("o", frame=frame())
    assert (captured.records, dict(captured.late)) == (18 if by == "column" else 8, late(by))
    assert captured.frontier == ["2024-05-01T16:00:00.000000Z"]
    into = capstan.capture_into("q", lake=ctx.lake.root, workers=workers, time=when)
    writer = frame().writeStream.foreachBatch(into).trigger(availableNow=True)
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    assert tape(ctx, "o") == tape(ctx, "q")
    assert tape(ctx, "o")[-1] == (17, "2024-05-01T17:00:00+00:00")
    assert ctx.verify("o", deep=True).valid
    assert ctx.verify("q", deep=True).valid
    assert (guest.conf.getAll, guest.streams.active) == before


def late(by: str) -> dict[str, int]:
    """An hour with one digit is none of the format, whatever the user's session takes."""
    return {} if by == "column" else {"no-time": 10}


def test_what_a_caller_computes_means_what_it_means_there(
    guest: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", 1)
    frame = guest.readStream.schema("id INT, k STRING, t STRING, d STRING, h STRING").json(
        str(tmp_path / "in")
    )
    # The zone of the cast, and the lenient parser, are those of the user's session.
    moments = F.expr("to_timestamp_ltz(concat(d, ' ', h), 'yyyy-MM-dd HH:mm')")
    rows = frame.select("id", "k", moments.alias("t"))
    into = capstan.capture_into(
        "q",
        lake=tmp_path / "lake",
        workers={"by": "column", "column": "k"},
        time={"domain": "event", "column": "t", "every": "1 hour"},
    )
    writer = rows.writeStream.foreachBatch(into).trigger(availableNow=True)
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    recorded = tape(capstan.Context(tmp_path / "lake", spark=guest), "q")
    assert recorded[0] == (0, "2024-04-30T15:00:00+00:00")
    assert len(recorded) == 6


@pytest.mark.parametrize("name", ["active", "built", "given", "zoned"])
def test_a_function_has_the_session_of_the_capture_alone(
    guest: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arrive(tmp_path / "in", 1)
    (tmp_path / "reading.py").write_text(FUNCTION, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reading", raising=False)
    (tmp_path / "streams.yaml").write_text(
        f"""
streams:
  f:
    source: {{function: "reading:{name}", options: {{path: "{tmp_path}/in"}}}}
    workers: {{by: column, column: k}}
    time: {{domain: event, column: t, every: 1 hour}}
""",
        encoding="utf-8",
    )
    ctx = capstan.Context(tmp_path / "lake", config=tmp_path / "streams.yaml", spark=guest)
    if name == "zoned":
        with pytest.raises(InvalidRequestError, match="a session with other settings") as refused:
            ctx.capture("f")
        assert refused.value.code == "CAP-SOURCE"
        assert ctx.lake.streams() == []
    else:
        ctx.capture("f")
        assert tape(ctx, "f")[0] == (0, "2024-05-01T00:00:00+00:00")
