"""Tables that two drivers make at once, or that one had begun to make when it was killed."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from capstan.storage.delta import commit_lock, delta, table_creation
from capstan.storage.delta.commit_lock import making
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import is_table

pytestmark = [pytest.mark.rest, pytest.mark.timeout(600)]

ORDINARY = StructType([StructField("a", LongType())])
"""Columns of which delta-rs makes a table."""
SCHEMA = StructType([StructField("a", LongType(), metadata={"comment": "a number"})])
"""Columns of which Spark does."""


@pytest.mark.parametrize("schema", [ORDINARY, SCHEMA], ids=["ordinary", "spark"])
def test_a_table_whose_making_was_cut_off_can_be_made(spark, tmp_path: Path, schema) -> None:
    """Delta writes its first commit under another name, then renames it."""
    left = tmp_path / "table" / "_delta_log" / f".{0:020}.json.8e21d2f4.tmp"
    left.parent.mkdir(parents=True)
    left.write_text('{"commitInfo":', encoding="utf-8")
    path = str(tmp_path / "table")
    assert not is_table(path)
    create_table(spark, path, schema)
    delta.append(spark.range(3).selectExpr("id AS a"), path)
    assert sorted(delta.open_table(path).to_pyarrow_table()["a"].to_pylist()) == [0, 1, 2]


def test_a_table_that_another_driver_is_making_is_waited_for(spark, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    create_table(spark, other, SCHEMA)
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / "being-made.tmp").touch()
    first = Path(other, "_delta_log", f"{0:020}.json").read_text(encoding="utf-8")
    arrival = threading.Timer(0.3, (log / f"{0:020}.json").write_text, [first])
    arrival.start()
    create_table(spark, str(tmp_path / "table"), SCHEMA)
    arrival.join()
    # Nothing of the other's was cleared away.
    assert (log / "being-made.tmp").exists()
    assert delta.version_of(str(tmp_path / "table")) == 0


@pytest.fixture
def first(spark, tmp_path: Path) -> str:
    """The first commit of a table, as another driver has it ready."""
    other = str(tmp_path / "other")
    create_table(spark, other, SCHEMA)
    return Path(other, "_delta_log", f"{0:020}.json").read_text(encoding="utf-8")


def begun(table: Path) -> Path:
    """The log of a table that somebody has begun to make."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    (log / "being-made.tmp").touch()
    return log


def test_who_comes_after_all_pauses_loses_nothing(
    spark, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(tmp_path / "table")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            (log / f"{0:020}.json").write_text(first, encoding="utf-8")

    monkeypatch.setattr(table_creation, "time", SimpleNamespace(sleep=pause))
    create_table(spark, str(tmp_path / "table"), SCHEMA)
    assert len(pauses) == 5
    assert (log / "being-made.tmp").exists()
    assert (log / f"{0:020}.json").read_text(encoding="utf-8") == first


@pytest.mark.parametrize("schema", [ORDINARY, SCHEMA], ids=["ordinary", "spark"])
def test_who_makes_it_under_the_lock_has_all_the_time_it_needs(
    spark, tmp_path: Path, first: str, schema: StructType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    log = begun(table)
    held, waiting = threading.Event(), threading.Event()

    def make() -> None:
        with making(str(table)):
            held.set()
            # Had the other one not waited, it would have made the table by then.
            waiting.wait(60)
            (log / f"{0:020}.json").write_text(first, encoding="utf-8")

    maker = threading.Thread(target=make)
    maker.start()
    assert held.wait(60)
    monkeypatch.setattr(table_creation, "time", SimpleNamespace(sleep=lambda _: None))
    # It asks again and again for the lock that the first one has, and nothing else.
    asks = count(1)

    def ask(seconds: float) -> None:
        if next(asks) == 20:
            waiting.set()
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=ask)
    monkeypatch.setattr(commit_lock, "time", clock)
    create_table(spark, str(table), schema)
    maker.join()
    assert (log / "being-made.tmp").exists()
    assert (log / f"{0:020}.json").read_text(encoding="utf-8") == first
    # Who waits for the lock all that time finds the table there, and commits nothing to it.
    assert delta.version_of(str(table)) == 0
