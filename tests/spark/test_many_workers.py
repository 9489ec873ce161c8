"""More workers than a target has partitions for, in one replay."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from capstan.capture.run import capture, close
from capstan.core.config import (
    MAX_WORKERS,
    ByColumn,
    EventTime,
    ProjectConfig,
    Source,
    Stream,
    Target,
)
from capstan.core.json_object import printed_json
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.replay.target.target_creation import MOST_PARTITIONS
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.telemetry import instrumentation

MANY = MOST_PARTITIONS + 44
START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Made:
    """A closed stream of one record for each of many workers, by a column."""

    spark: SparkSession
    lake: Lake
    declarations: ProjectConfig

    def replay(self, into: str, **asked: object) -> ReplayResult:
        request = Request("orders", into, **asked)  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declarations, request)

    def rows(self, into: str) -> pl.DataFrame:
        return pl.read_delta(self.lake.table(into))

    def files(self, into: str) -> int:
        return len(deltalake.DeltaTable(self.lake.table(into)).file_uris())


def make(spark: SparkSession, root: Path, count: int) -> Made:
    source = root / "source"
    source.mkdir()
    at = [START + timedelta(seconds=n) for n in range(count)]
    rows = {
        "id": [f"order {n:05}" for n in range(count)],
        "at": pa.array(at, pa.timestamp("us", "UTC")),
        "n": list(range(count)),
    }
    pq.write_table(pa.table(rows), source / "0.parquet")
    stream = Stream(
        name="orders",
        source=Source("parquet", str(source)),
        workers=ByColumn("id"),
        time=EventTime(column="at", every=timedelta(hours=1), lateness=timedelta()),
    )
    labelled = Target(name="labelled", worker="id", time="at", columns=("id", "at", "n"))
    targets = {"labelled": labelled}
    declarations = ProjectConfig(root / "streams.yaml", {"orders": stream}, {}, targets, {})
    lake = Lake.at(root / "lake")
    capture(spark, lake, stream)
    close(spark, lake, "orders")
    return Made(spark, lake, declarations)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(spark, tmp_path_factory.mktemp("many"), MANY)


def test_it_stages_and_publishes_few_files(made: Made) -> None:
    staged: list[int] = []

    def listen(point: str, about: dict[str, object]) -> None:
        if point == "replay.staging":
            listed = delta.read_commit(made.lake.staging(f"{about['run']}-1"), 0)
            staged.append(sum("add" in action for action in listed))

    with instrumentation.subscribe(listen):
        done = made.replay("copy")
    assert staged
    assert max(*staged, made.files("copy")) <= 8
    assert sorted(made.rows("copy")["n"]) == list(range(MANY))
    assert done.certificate.workers == {"count": MANY, "numbers": [[0, MANY - 1]]}


def test_one_worker_is_replaced_among_the_others(made: Made) -> None:
    made.replay("one")
    done = made.replay("one", workers=("order 00007",), until="2024-01-01T02:00:00Z")
    assert done.certificate.records == 1
    assert sorted(made.rows("one")["n"]) == list(range(MANY))


@pytest.mark.parametrize("peers", [None, 3])
def test_they_are_told_apart_by_label_in_a_target(made: Made, peers: int | None) -> None:
    done = made.replay("labelled", peers=peers)
    assert (done.certificate.records, done.unchanged) == (MANY, peers is not None)
    assert sorted(made.rows("labelled")["n"]) == list(range(MANY))


def test_they_are_dealt_to_some_replay_workers(made: Made) -> None:
    assert made.replay("dealt", peers=3).certificate.peers == 3
    assert sorted(made.rows("dealt")["n"]) == list(range(MANY))


@pytest.mark.nightly
def test_as_many_workers_as_there_may_be_take_less_than_a_minute(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = make(spark, tmp_path, MAX_WORKERS)
    begun = time.monotonic()
    done = made.replay("copy")
    # It took 220 s for 3,000, when each had files of its own.
    assert time.monotonic() - begun < 60
    assert done.certificate.records == MAX_WORKERS
    assert len(printed_json(done.certificate.to_json())) < 4_000
    assert made.files("copy") <= 8
