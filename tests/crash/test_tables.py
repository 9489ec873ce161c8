"""Tables that two drivers make at once, or that one had begun to make when it was killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from capstan.tape import delta
from capstan.tape.committing import making
from capstan.tape.lake import is_table

pytestmark = pytest.mark.timeout(600)

SCHEMA = StructType([StructField("a", LongType())])


def test_a_table_whose_making_was_cut_off_can_be_made(spark, tmp_path: Path) -> None:
    """Delta writes its first commit under another name, then renames it."""
    left = tmp_path / "table" / "_delta_log" / f".{0:020}.json.8e21d2f4.tmp"
    left.parent.mkdir(parents=True)
    left.write_text('{"commitInfo":', encoding="utf-8")
    path = str(tmp_path / "table")
    assert not is_table(path)
    delta.create_table(spark, path, SCHEMA)
    delta.append(spark.range(3).selectExpr("id AS a"), path)
    assert sorted(delta.open_table(path).to_pyarrow_table()["a"].to_pylist()) == [0, 1, 2]


def test_a_table_that_another_driver_is_making_is_waited_for(spark, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    delta.create_table(spark, other, SCHEMA)
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / "being-made.tmp").touch()
    first = Path(other, "_delta_log", f"{0:020}.json").read_text(encoding="utf-8")
    arrival = threading.Timer(0.3, (log / f"{0:020}.json").write_text, [first])
    arrival.start()
    delta.create_table(spark, str(tmp_path / "table"), SCHEMA)
    arrival.join()
    # Nothing of the other's was cleared away.
    assert (log / "being-made.tmp").exists()
    assert delta.version_of(str(tmp_path / "table")) == 0


@pytest.fixture
def first(spark, tmp_path: Path) -> str:
    """The first commit of a table, as another driver has it ready."""
    other = str(tmp_path / "other")
    delta.create_table(spark, other, SCHEMA)
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

    monkeypatch.setattr(delta, "time", SimpleNamespace(sleep=pause))
    delta.create_table(spark, str(tmp_path / "table"), SCHEMA)
    assert len(pauses) == 5
    assert (log / "being-made.tmp").exists()
    assert (log / f"{0:020}.json").read_text(encoding="utf-8") == first


def test_who_makes_it_under_the_lock_has_all_the_time_it_needs(
    spark, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    log = begun(table)
    held, waiting = threading.Event(), threading.Event()

    def make() -> None:
        with making(str(table)):
            held.set()
            waiting.wait(60)
            # By then the other one has been through all its pauses, had it not waited.
            time.sleep(8)
            (log / f"{0:020}.json").write_text(first, encoding="utf-8")

    maker = threading.Thread(target=make)
    maker.start()
    assert held.wait(60)
    monkeypatch.setattr(delta, "time", SimpleNamespace(sleep=lambda _: None))
    waiting.set()
    delta.create_table(spark, str(table), SCHEMA)
    maker.join()
    assert (log / "being-made.tmp").exists()
    assert (log / f"{0:020}.json").read_text(encoding="utf-8") == first
    # Who waits for the lock all that time finds the table there, and commits nothing to it.
    assert delta.version_of(str(table)) == 0
