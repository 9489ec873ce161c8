"""Targets that were deleted, or replaced by another table: nothing of a table outlives it there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import deltalake
import pytest

from capstan.capture.run import capture
from capstan.core.config import Mode, Transform
from capstan.errors import InvalidRequestError
from capstan.replay.preview import preview
from capstan.replay.standalone_audit import audit_run
from capstan.storage.delta import delta
from capstan.storage.ledger import coverage, runs
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

EARLY = {"since": "2024-05-01T00:00", "until": "2024-05-01T04:00"}
LATER = {"since": "2024-05-01T04:00", "until": "2024-05-01T08:00"}
ALL = list(range(16))
MERGE = {"mode": Mode.MERGE, "keys": ("id",)}
SEQUENCE = {**MERGE, "sequence_by": ("amount",)}
NAMED = Transform(
    name="named",
    sql="SELECT _worker, _time, concat('n', id) AS id, amount FROM records",
    time="_time",
    worker="_worker",
)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("remade"), rows(range(24)), (NAMED,))


def remake(play: Play, into: str, how: str) -> None:
    """Make another table in the place of one, with its columns and without rows."""
    path = play.lake.table(into)
    columns, partitions = play.spark.read.format("delta").load(path).schema, "_worker"
    before = delta.identity_of(path)
    if how == "deleted":
        shutil.rmtree(path)
        schema = deltalake.Schema.from_json(columns.json())
        deltalake.DeltaTable.create(path, schema, partition_by=[partitions])
    else:
        play.sql(
            f"REPLACE TABLE {{table}} ({columns.toDDL()}) USING delta "
            f"PARTITIONED BY ({partitions})",
            into,
        )
    assert delta.identity_of(path) != before


def standing(play: Play, into: str) -> list[str]:
    return [entry.run for entry in coverage.current(play.lake, play.lake.table(into))]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
@pytest.mark.parametrize("mode", ["replace", "merge", "sequence"])
def test_a_remade_table_is_published_into_again(play: Play, how: str, mode: str) -> None:
    into = f"{mode}_{how}"
    requested = {"replace": {}, "merge": MERGE, "sequence": SEQUENCE}[mode]
    first = play.run(into, **EARLY, **requested)
    remake(play, into, how)
    assert standing(play, into) == []
    request = play.request(into, **EARLY, **requested)
    assert preview(play.lake, play.declarations, request).covered == ()
    with pytest.raises(InvalidRequestError, match="CAP-GONE"):
        play.rollback(first)
    again = play.run(into, **EARLY, **requested)
    assert again != first
    assert play.column(into) == ALL[:8]
    later = play.run(into, **LATER, **requested)
    assert (play.column(into), standing(play, into)) == (ALL, [again, later])
    assert play(into, **EARLY, **requested).unchanged
    for run in (again, later):
        history = runs.read_history(play.lake, run)
        assert audit_run(play.spark, play.lake, play.declarations, history).audit.passed
    play.rollback(later)
    assert play.column(into) == ALL[:8]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_possible_rows_of_a_remade_table_need_a_decision(play: Play, how: str) -> None:
    into = f"append_{how}"
    play.run(into, **EARLY, mode=Mode.APPEND)
    play.run(f"{into}_f", follow="f")
    remake(play, into, how)
    remake(play, f"{into}_f", how)
    with pytest.raises(InvalidRequestError, match="CAP-GONE") as caught:
        play(into, **EARLY, mode=Mode.APPEND)
    assert "--adopt" in caught.value.hint
    play.run(into, **EARLY, mode=Mode.APPEND, adopt=True)
    assert play.column(into) == ALL[:8]
    with pytest.raises(InvalidRequestError, match="CAP-FOLLOW") as caught:
        play(f"{into}_f", follow="f")
    assert "under another name" in caught.value.hint
    play(f"{into}_f", follow="g")
    assert play.column(f"{into}_f")[:16] == ALL


@pytest.mark.parametrize("how", ["deleted", "replaced", "gone"])
def test_what_was_audited_for_another_table_is_not_published(play: Play, how: str) -> None:
    into = f"held_{how}"
    play.run(into, **EARLY)
    held = play.run(into, **LATER, hold=True)
    if how == "gone":
        shutil.rmtree(play.lake.table(into))
    else:
        remake(play, into, how)
    with pytest.raises(InvalidRequestError, match="CAP-GONE") as caught:
        play.publish(held)
    assert f"capstan reject {held}" in caught.value.hint
    if how != "gone":
        assert play.column(into) == []


def test_stored_changes_allow_a_table_with_other_columns(play: Play) -> None:
    play.run("typed", **EARLY, **SEQUENCE)
    shutil.rmtree(play.lake.table("typed"))
    first = play.run("typed", **EARLY, **SEQUENCE, transform="named")
    play.run("typed", **LATER, **SEQUENCE, transform="named")
    assert play.column("typed") == sorted(f"n{number}" for number in ALL)
    play.rollback(first)
    assert play.column("typed") == sorted(f"n{number}" for number in ALL[8:])


def test_a_cursor_is_of_one_recording(spark: SparkSession, tmp_path: Path) -> None:
    play = Play.of(spark, tmp_path, rows(range(24)))
    play.run("t", follow="f")
    first = play.column("t")
    shutil.rmtree(play.lake.stream(NAME).root)
    shutil.rmtree(tmp_path / "source")
    lay(tmp_path / "source", "0", rows(range(30, 54)))
    capture(spark, play.lake, little_stream(tmp_path / "source"))
    with pytest.raises(InvalidRequestError, match="CAP-FOLLOW: stream little was recorded anew"):
        play("t", follow="f")
    assert play.column("t") == first
    play("t", follow="g", adopt=True)
    assert 30 in play.column("t")
