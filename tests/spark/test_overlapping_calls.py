"""Calls that overlap: each gives what it gives alone, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import capstan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ZONES = ("Asia/Tokyo", "America/New_York")
STREAM = """
  {name}:
    source:
      format: json
      path: "{{here}}/{name}"
      schema: "id INT, seq INT, v STRING, at STRING"
    workers: {{by: key, columns: [id], count: 2}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 1 hour, watermark: worker}}
"""
REPLAY = """
  {name}_by_day:
    stream: {name}
    target: {name}_days
    schedule: "@daily"
    since: 2024-05-01
    until: 2024-05-03
"""
MERGE = {"mode": "merge", "keys": ["id"], "partial": True}


@pytest.fixture
def far_away(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process of somebody else's: its zone is not UTC, and its Spark is not Capstan's."""
    monkeypatch.setattr("capstan.spark.session._STARTED", set())
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def session_in(spark: SparkSession, zone: str) -> SparkSession:
    """A session of a user's, with settings that would change results."""
    session = spark.newSession()
    for key, value in {
        "session.timeZone": zone,
        "ansi.enabled": "false",
        "caseSensitive": "true",
        "legacy.timeParserPolicy": "LEGACY",
        "shuffle.partitions": "3",
        "mapKeyDedupPolicy": "LAST_WIN",
        "storeAssignmentPolicy": "LEGACY",
    }.items():
        session.conf.set(f"spark.sql.{key}", value)
    # With the first plan of a session, Delta's extension sets two settings of it.
    session.range(1)
    return session


def project(folder: Path, *streams: str) -> Path:
    """A project whose streams have the same records, in perfect order."""
    for name in streams:
        (folder / name).mkdir(parents=True)
        rows = [
            {"id": n % 5, "seq": n, "v": f"v{n}", "at": f"2024-05-0{1 + n // 20} {n % 20:02}:30:00"}
            for n in range(40)
        ]
        (folder / name / "0.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    texts = ["streams:", *(STREAM.format(name=name) for name in streams)]
    texts += ["replays:", *(REPLAY.format(name=name) for name in streams)]
    path = folder / "streams.yaml"
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def rows_of(ctx: capstan.Context, table: str) -> list[str]:
    rows = DeltaTable(f"{ctx.lake.root}/tables/{table}").to_pyarrow_table().to_pylist()
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def writers(ctx: capstan.Context, table: str) -> set[str]:
    """The runs in whose names a table was written."""
    notes = [
        commit.get("userMetadata")
        for commit in DeltaTable(f"{ctx.lake.root}/tables/{table}").history()
    ]
    actual = [json.loads(note)["capstan"].get("run") for note in notes if note]
    return {run for run in actual if run}


def work(ctx: capstan.Context, stream: str) -> dict[str, Any]:
    """Each verb on a stream: what it gives, without names."""
    captured = ctx.capture(stream)
    actual: dict[str, Any] = {
        "captured": (captured.records, dict(captured.late), captured.frontier),
        "verified": ctx.verify(stream, deep=True).valid,
        "planned": ctx.plan(stream, into=f"{stream}_a", compare=True, partial=True).comparison,
    }
    runs = {
        "a": ctx.replay(stream, into=f"{stream}_a", mode="append", partial=True),
        "b": ctx.replay(stream, into=f"{stream}_b", partial=True),
        "c": ctx.replay(stream, into=f"{stream}_c", **MERGE),
        "d": ctx.replay(stream, into=f"{stream}_d", sequence_by=["seq"], **MERGE),
    }
    for name, run in runs.items():
        assert run.certificate is not None
        actual[name] = run.certificate.records, rows_of(ctx, f"{stream}_{name}")
        assert writers(ctx, f"{stream}_{name}") == {run.name}
    actual["audited"] = [ctx.audit(run.name).passed for run in runs.values()]
    ctx.rollback(runs["d"].name)
    actual["rolled back"] = rows_of(ctx, f"{stream}_d")
    actual["gaps"] = ctx.gaps(f"{stream}_by_day").counts
    actual["filled"] = ctx.backfill(f"{stream}_by_day").to_json()["done"]
    actual["again"] = ctx.replay(stream, into=f"{stream}_b", partial=True).unchanged
    actual["states"] = sorted(row["state"] for row in ctx.runs(stream=stream))
    ctx.maintain(stream)
    return actual


def shared(*sessions: SparkSession) -> list[object]:
    """What calls could leave behind in the process and in sessions."""
    context = sessions[0].sparkContext
    java: Any = context._jsc
    properties = java.sc().getLocalProperties()
    # Spark's own, of its last shuffle, have two underscores.
    names = [name for name in properties.keySet().toArray() if not str(name).startswith("__")]
    return [
        dict(os.environ),
        time.tzname,
        SparkSession.getActiveSession(),
        SparkSession.builder.getOrCreate(),
        context.getJobTags(),
        {str(name): str(properties.get(name)) for name in names},
        *((s.conf.getAll, s.catalog.currentDatabase(), s.catalog.listTables()) for s in sessions),
        *((s.catalog.currentCatalog(), s.streams.active) for s in sessions),
    ]


def test_overlapping_verbs_equal_sequential_ones(
    spark: SparkSession, tmp_path: Path, far_away: None
) -> None:
    tokyo, york = (session_in(spark, zone) for zone in ZONES)
    before = shared(tokyo, york)
    contexts = [
        capstan.Context(
            tmp_path / name / "lake", config=project(tmp_path / name, *streams), spark=s
        )
        for name, streams, s in (
            ("alone", ["s"], york),
            ("one", ["s", "t"], tokyo),
            ("two", ["s"], york),
        )
    ]
    alone = work(contexts[0], "s")
    assert alone["captured"] == (40, {}, ["2024-05-02T17:00:00.000000Z"])
    lanes = [(contexts[1], "s"), (contexts[1], "t"), (contexts[2], "s")]
    with ThreadPoolExecutor(len(lanes)) as pool:
        together = list(pool.map(lambda lane: work(*lane), lanes))
    assert together == [alone] * len(lanes)
    assert shared(tokyo, york) == before
