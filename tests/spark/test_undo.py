"""What a replay may touch, and what of it can be taken back."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from capstan.capture.run import capture, close
from capstan.core.config import Mode, Target, Transform
from capstan.errors import CheckFailedError, IncompleteError, InvalidRequestError
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.replay.result import ReplayResult
from capstan.replay.target.row_restore import except_all
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.tables import read_rows
from capstan.telemetry.instrumentation import subscribe
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, SUM_BY_DAY, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

# Half an hour apart: four days that are complete.
ROWS = rows(range(240))
DAY2, DAY3, DAY4 = "2024-05-02", "2024-05-03", "2024-05-04"
DATED = Target(name="dated", worker="place", time="at", columns=("id", "place", "at"))
OUTSIDE = Transform(
    name="outside",
    sql="SELECT id, _worker, _time.event + INTERVAL 10 DAYS AS day FROM records",
    time="day",
    worker="_worker",
)
BY_WORKER: dict[str, object] = {"transform": "sum_by_day", "mode": Mode.MERGE, "keys": ("_worker",)}

MERGING: dict[str, object] = {"mode": Mode.MERGE, "keys": ("id",)}


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("undo")
    return Play.of(spark, folder, ROWS, (SUM_BY_DAY, OUTSIDE), {"dated": DATED})


def standing(play: Play, into: str) -> list[str]:
    return [item.run for item in coverage.current(play.lake, play.lake.table(into))]


def test_nothing_is_complete_while_there_is_no_worker(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    stream = little_stream(tmp_path / "source")
    play = Play(spark, Lake.at(tmp_path / "lake"), declared(stream, (), {"dated": DATED}))
    actual = capture(spark, play.lake, stream)
    assert (actual.batches, actual.frontier) != (0, [])

    with pytest.raises(IncompleteError, match="CAP-INCOMPLETE"):
        play("ranged", since=DAY2, until=DAY3)
    with pytest.raises(IncompleteError, match="CAP-INCOMPLETE"):
        recapture(spark, play.lake, RecaptureRequest("little", "copy"))
    with pytest.raises(IncompleteError, match="CAP-INCOMPLETE"):
        close(spark, play.lake, "little")
    for into in ("followed", "dated"):  # Of which one has labels as workers.
        assert play(into, follow=into) == ReplayResult(None, unchanged=True)
    lay(tmp_path / "source", "0", rows(range(60)))
    capture(spark, play.lake, stream)

    for into in ("followed", "dated"):
        assert play(into, follow=into).certificate.records == 54
    assert play("ranged", since="2024-05-01", until=DAY2).certificate.records == 48


def test_a_range_inside_a_step_is_refused(play: Play) -> None:
    play("dated", since=DAY2, until=DAY4)
    before = play.column("dated")
    for since, until in (("06:30:00", "08:00:00"), ("06:00:00", "08:30:00")):
        with pytest.raises(InvalidRequestError, match="CAP-GRAIN"):
            play("dated", since=f"2024-05-02T{since}", until=f"2024-05-03T{until}")
    assert play.column("dated") == before


class TestGone:
    def test_what_went_with_its_table_is_played_again(self, play: Play) -> None:
        first, second = play.run("lost", since=DAY2, until=DAY3), play.run("lost", since=DAY3)
        assert standing(play, "lost") == [first, second]

        shutil.rmtree(play.lake.table("lost"))

        assert standing(play, "lost") == []
        with pytest.raises(InvalidRequestError, match="CAP-GONE"):
            play.rollback(first)
        again = play("lost", since=DAY2, until=DAY3)
        assert (again.unchanged, again.certificate.generation) == (False, 2)
        # The other's rows are not in the table that was made anew, whatever its versions are.
        assert standing(play, "lost") == [again.certificate.run]
        with pytest.raises(InvalidRequestError, match="CAP-GONE"):
            play.rollback(second)
        assert not play("lost", since=DAY3).unchanged
        assert play.column("lost") == list(range(48, 234))
        reported = Counter(str(r["state"]) for r in read_rows(play.lake, "coverage", run=first))
        assert reported == {"published": 3, "gone": 3}

    @pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE])
    def test_in_any_mode(self, play: Play, mode: Mode) -> None:
        into, keys = f"lost_{mode}", () if mode is Mode.APPEND else ("id",)
        play(into, since=DAY2, until=DAY3, mode=mode, keys=keys)
        shutil.rmtree(play.lake.table(into))

        assert not play(into, since=DAY2, until=DAY3, mode=mode, keys=keys).unchanged

        assert play.column(into) == list(range(48, 96))

    def test_what_is_followed_does_not_go_on_without_it(self, play: Play) -> None:
        play("lost_followed", follow="lost")
        shutil.rmtree(play.lake.table("lost_followed"))

        with pytest.raises(InvalidRequestError, match="CAP-FOLLOW"):
            play("lost_followed", follow="lost")

        assert play("lost_followed", follow="found").certificate.records == 234


class TestMerge:
    def test_what_others_have_merged_since_is_not_taken_back(self, play: Play) -> None:
        first = play.run("merged", since=DAY2, until=DAY3, **BY_WORKER)
        sums = play.column("merged", "amount")
        second = play.run("merged", since=DAY3, until=DAY4, **BY_WORKER)
        assert play.column("merged", "amount") != sums

        with pytest.raises(InvalidRequestError, match="CAP-LATER") as caught:
            play.rollback(first)
        assert second in caught.value.hint

        play.rollback(second)
        assert play.column("merged", "amount") == sums
        play.rollback(first)
        assert play.column("merged", "amount") == []

    def test_of_rows_that_nobody_has_changed_any_run_is_taken_back(self, play: Play) -> None:
        first = play.run("apart", since=DAY2, until=DAY3, **MERGING)
        play.run("apart", since=DAY3, until=DAY4, **MERGING)

        play.rollback(first)

        assert play.column("apart") == list(range(96, 144))

    @pytest.mark.parametrize(
        "mode", [Mode.REPLACE, pytest.param(Mode.APPEND, marks=pytest.mark.nightly)]
    )
    def test_rows_of_the_same_keys_are_not_taken_back_with_it(self, play: Play, mode: Mode) -> None:
        into = f"mixed_{mode}"
        first = play.run(into, since=DAY2, until=DAY3, **BY_WORKER)
        second = play.run(into, since=DAY3, until=DAY4, transform="sum_by_day", mode=mode)
        there = play.rows(into).rows()
        with pytest.raises(
            InvalidRequestError, match="CAP-LATER: .* rows with the same keys"
        ) as caught:
            play.rollback(first)
        assert second in caught.value.hint
        assert sorted(play.rows(into).rows()) == sorted(there)

        play.rollback(second)
        play.rollback(first)

        assert play.column(into, "amount") == []

    def test_of_the_rows_of_one_key_the_latest_is_merged(self, play: Play) -> None:
        for into, mode, keys in (("all", Mode.REPLACE, ()), ("doubled", Mode.MERGE, ("place",))):
            play(into, since=DAY2, until=DAY3, mode=mode, keys=keys)
        every = play.rows("all").sort("_time").rows(named=True)
        latest = {row["place"]: row for row in every}
        assert len(every) > len(latest)
        assert {row["place"]: row for row in play.rows("doubled").rows(named=True)} == latest


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE])
def test_rows_outside_of_the_range_are_neither_added_nor_merged(play: Play, mode: Mode) -> None:
    into, keys = f"outside_{mode}", () if mode is Mode.APPEND else ("id",)
    requested = {"transform": "outside", "mode": mode, "keys": keys}
    with pytest.raises(CheckFailedError, match="CAP-OUTSIDE"):
        play(into, since=DAY2, until=DAY3, **requested)
    assert play.column(into) == []


def by_day(column: str, amount: str, **changed: object) -> Transform:
    sql = SUM_BY_DAY.sql or ""
    fields = {"time": column, "grain": SUM_BY_DAY.grain, "worker": SUM_BY_DAY.worker, **changed}
    return Transform(
        name=SUM_BY_DAY.name,
        sql=sql.replace("AS day", f"AS {column}").replace("sum(amount)", amount),
        **{name: value for name, value in fields.items() if value is not None},  # type: ignore[arg-type]
    )


def with_transforms(play: Play, *transforms: Transform) -> Play:
    known = {transform.name: transform for transform in transforms}
    return replace(play, declarations=replace(play.declarations, transforms=known))


# Its time may have another name by now, which the table does not have.
MENDED = {
    "moved": (by_day("date", "sum(amount)"),),
    "coarser": (by_day("day", "sum(amount)", grain=timedelta(days=2)),),
    "timeless": (by_day("day", "sum(amount)", time=None, grain=None),),
    "removed": (),
}


@pytest.mark.parametrize("how", MENDED)
def test_a_run_rolls_back_after_its_transform_changed(play: Play, how: str) -> None:
    requested: dict[str, object] = {"transform": "sum_by_day", "mode": Mode.APPEND}
    old = with_transforms(play, by_day("day", "-sum(amount)"))
    run = old.run(f"mended_{how}", since=DAY2, until=DAY3, **requested)

    with_transforms(play, *MENDED[how]).rollback(run)

    assert play.column(f"mended_{how}", "amount") == []


def test_so_is_one_that_was_killed_after_its_commit(play: Play) -> None:
    into, old = "killed", with_transforms(play, by_day("day", "-sum(amount)"))

    def kill(point: str, _facts: object) -> None:
        if point == "replay.publish":
            raise KeyboardInterrupt

    with subscribe(kill), pytest.raises(KeyboardInterrupt):
        old(into, since=DAY2, until=DAY3, transform="sum_by_day")
    assert len(play.column(into, "amount")) == 3
    (run,) = runs.read_histories(play.lake, target=play.lake.table(into))

    with_transforms(play).rollback(run)

    assert play.column(into, "amount") == []
    assert standing(play, into) == []


def test_a_replaced_table_is_not_appended_to(play: Play) -> None:
    requested: dict[str, object] = {"since": DAY2, "until": DAY3, "mode": Mode.APPEND}
    play("swapped", **requested)
    rows_ = play.spark.read.format("delta").load(play.lake.table("swapped")).localCheckpoint()
    shutil.rmtree(play.lake.table("swapped"))
    rows_.write.format("delta").save(play.lake.table("swapped"))

    with pytest.raises(InvalidRequestError, match="CAP-GONE: .* another table") as caught:
        play("swapped", **requested)
    assert "--adopt" in caught.value.hint
    assert len(play.column("swapped")) == 48

    assert not play("swapped", **requested, adopt=True).unchanged
    assert len(play.column("swapped")) == 96


class TestGrown:
    """A stream that gains a column while its targets are there."""

    @pytest.fixture
    def grown(self, spark: SparkSession, tmp_path: Path) -> Play:
        play = Play.of(spark, tmp_path, rows(range(60)))
        for into, more in (("added", {"mode": Mode.APPEND}), ("merged", MERGING)):
            play(into, since="2024-05-01", until="2024-05-01T12:00:00", **more)
        stream = play.declarations.streams[NAME]
        wider = replace(stream.source, schema=f"{stream.source.schema}, extra DOUBLE")
        lay(tmp_path / "source", "1", rows(range(60, 120)))
        capture(spark, play.lake, replace(stream, source=wider))
        return play

    def test_what_was_added_with_it_is_taken_back(self, grown: Play) -> None:
        before = grown.column("added")
        run = grown.run("added", since="2024-05-01T12:00:00", until=DAY2, mode=Mode.APPEND)
        assert grown.column("added") == list(range(48))
        grown.rollback(run)
        assert grown.column("added") == before

    def test_it_is_merged_and_taken_back(self, grown: Play) -> None:
        before = grown.column("merged")
        run = grown.run("merged", since="2024-05-01", until=DAY2, **MERGING)
        assert grown.column("merged") == list(range(48))
        assert "extra" in delta.open_table(grown.lake.table("merged")).schema().to_arrow().names
        grown.rollback(run)
        assert grown.column("merged") == before


def test_less_is_except_all_for_any_type(spark: SparkSession) -> None:
    schema = "id INT, words MAP<STRING, INT>, late TIMESTAMP"
    some = [(1, {"a": 1}), (1, {"a": 1}), (1, {"a": 1}), (2, None), (None, {}), (None, {})]
    actual = spark.createDataFrame([(*row, None) for row in some], schema)
    taken = spark.createDataFrame(
        [(1, {"a": 1}), (None, {}), (3, None)], "id INT, words MAP<STRING, INT>"
    )

    left = except_all(actual, taken)

    assert left.columns == ["id", "words", "late"]
    assert sorted(map(str, left.collect())) == sorted(
        map(str, spark.createDataFrame([(*some[i], None) for i in (0, 1, 3, 4)], schema).collect())
    )
