"""Rows that are staged in their target: seen by nobody, published as audited, cleared by name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from capstan.core.config import Mode
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.execution.staging import clear_staged, list_staged
from capstan.storage.delta import delta, staged_rows
from capstan.storage.ledger import claims
from tests.support.meanwhile import meanwhile
from tests.support.replay_harness import Play
from tests.support.sample_streams import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY2, DAY3, DAY4 = "2024-05-02", "2024-05-03", "2024-05-04"


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("staged"), rows(range(192)))


def parquet(table: str) -> set[str]:
    """The data files in the folder of a table, committed or not."""
    return {
        str(path.relative_to(table))
        for path in Path(table).rglob("*.parquet")
        if "_delta_log" not in path.parts
    }


def committed(table: str) -> set[str]:
    files = pa.table(delta.open_table(table).get_add_actions())["path"].to_pylist()
    return {str(file) for file in files}


def held(play: Play, into: str, **fields: object) -> str:
    return str(play(into, since=DAY2, until=DAY3, hold=True, **fields).certificate.run)


@pytest.mark.parametrize("mode", [Mode.REPLACE, Mode.APPEND])
def test_what_was_audited_is_what_is_published(play: Play, mode: Mode) -> None:
    into = f"same_{mode}"
    play(into, workers=("c",), since=DAY2, until=DAY3)
    table = play.lake.table(into)
    run = held(play, into, workers=("a", "b"), mode=mode)
    listed = {
        action["add"]["path"].rpartition("/")[2]
        for action in delta.read_commit(play.lake.staging(f"{run}-1"), 0)
        if "add" in action
    }
    before = committed(table)
    assert {file.rpartition("/")[2] for file in parquet(table) - before} == listed
    play.publish(run)
    assert {file.rpartition("/")[2] for file in committed(table) - before} == listed
    assert play.column(into) == list(range(48, 96))
    metrics = delta.commits_since(table, delta.open_table(table).version() - 1)[0].metrics
    assert int(metrics["numOutputRows"]) - int(metrics.get("numCopiedRows", 0)) == 32


def test_others_that_publish_meanwhile_cost_no_second_write(play: Play) -> None:
    into, other = "raced", {"workers": ("b",), "since": DAY2, "until": DAY3}
    play(into, since=DAY3, until=DAY4)
    table = play.lake.table(into)
    before = parquet(table)
    with meanwhile("replay.holds", lambda: play(into, **other)):
        play(into, workers=("a",), since=DAY2, until=DAY3)
    assert len(play.column(into)) == 80
    # The two runs, each once; in between nothing was replaced.
    assert parquet(table) - before == committed(table) - before


def test_a_table_that_was_altered_takes_the_rows_by_its_rules_of_now(play: Play) -> None:
    play("altered", since=DAY3, until=DAY4)
    good, bad = held(play, "altered", workers=("a",)), held(play, "altered", workers=("b",))
    play.sql("ALTER TABLE {table} ADD CONSTRAINT early CHECK (place < 'b' OR id >= 96)", "altered")
    play.publish(good)
    with pytest.raises(CheckFailedError, match="CAP-CONSTRAINT"):
        play.publish(bad)
    assert play.column("altered", "place").count("b") == play.column("altered", "place").count("c")


def test_a_staged_file_that_is_gone_is_named(play: Play) -> None:
    play("vacuumed", since=DAY3, until=DAY4)
    run, table = held(play, "vacuumed"), play.lake.table("vacuumed")
    before = play.version("vacuumed")
    next(Path(table) / file for file in parquet(table) - committed(table)).unlink()
    with pytest.raises(InvalidRequestError, match="CAP-GONE: a staged file .* is gone") as caught:
        play.publish(run)
    assert "capstan reject" in caught.value.hint
    assert play.version("vacuumed") == before


@pytest.mark.parametrize("point", ["replay.files", "replay.staging", "replay.publish"])
def test_what_a_killed_attempt_left_is_cleared(play: Play, point: str) -> None:
    into = f"left_{point.replace('.', '_')}"
    play(into, since=DAY3, until=DAY4)
    table = play.lake.table(into)

    def kill() -> None:
        raise KeyboardInterrupt

    with meanwhile(point, kill), pytest.raises(KeyboardInterrupt):
        play(into, since=DAY2, until=DAY3)
    later = datetime.now(UTC) + 2 * claims.LEASE
    left = list_staged(play.lake, later)
    if point == "replay.staging":
        waiting = parquet(table) - committed(table)
        [own] = [output for output in left if output.run.startswith(into)]
        assert own.bytes > sum((Path(table) / file).stat().st_size for file in waiting)
    clear_staged(play.lake, left, later, timedelta())
    # Those that nobody has listed yet are left to VACUUM, as those of any writer that was killed.
    unlisted = parquet(table) - committed(table)
    assert bool(unlisted) == (point == "replay.files")
    play(into, since=DAY2, until=DAY3)
    assert play.column(into) == list(range(48, 144))


def test_the_next_attempt_clears_what_one_has_left(play: Play) -> None:
    play("again", since=DAY3, until=DAY4)
    table = play.lake.table("again")

    def fail() -> None:
        raise RuntimeError("no")

    with meanwhile("replay.staging", fail), pytest.raises(RuntimeError):
        play("again", since=DAY2, until=DAY3)
    assert parquet(table) - committed(table)
    play("again", since=DAY2, until=DAY3)
    assert parquet(table) == committed(table)


def test_files_without_statistics_are_published(play: Play) -> None:
    setting = "spark.databricks.delta.stats.collect"
    play.spark.conf.set(setting, "false")
    try:
        play("uncounted", since=DAY2, until=DAY3)
    finally:
        play.spark.conf.unset(setting)
    assert play.column("uncounted") == list(range(48, 96))


def test_a_listing_names_its_files_by_where_they_are(play: Play, tmp_path: Path) -> None:
    """Relative beside each other, so that a lake can be moved; else by their full path."""
    frame = play.spark.range(3)
    for table in (f"{play.lake.root}/tables/near", str(tmp_path / "far")):
        frame.write.format("delta").save(table)
        listing = play.lake.staging(f"listed-{Path(table).name}")
        read = staged_rows.stage_rows(frame, table, [listing], gather=False)
        assert sorted(row.id for row in read.collect()) == [0, 1, 2]
        assert sorted(row.id for row in delta.load(play.spark, listing).collect()) == [0, 1, 2]
        files = staged_rows.staged_files(table, listing)
        assert files
        assert all("/" not in json.loads(file)["add"]["path"] for file in files)
        staged_rows.discard(table, listing)
        assert parquet(table) == committed(table)


@pytest.mark.parametrize(("gather", "files"), [(True, 2), (False, 8)])
def test_rows_of_a_partition_are_gathered_only_on_request(
    play: Play, tmp_path: Path, gather: bool, files: int
) -> None:
    frame = play.spark.range(80).selectExpr("id", "id % 2 AS half").repartition(4)
    table = str(tmp_path / "halves")
    frame.write.format("delta").partitionBy("half").save(table)
    staged_rows.stage_rows(frame, table, [str(tmp_path / "listing")], gather=gather)
    assert len(parquet(table) - committed(table)) == files


@pytest.mark.parametrize(
    ("path", "values", "plain"),
    [
        ("part-0.parquet", {}, True),
        ("_worker=1/part-0.parquet", {"_worker": "1"}, True),
        ("day=7/who=a-b/part-0.parquet", {"day": "7", "who": "a-b"}, True),
        ("part-0.parquet", {"_worker": "1"}, False),
        ("_worker=007/part-0.parquet", {"_worker": "007"}, False),
        ("who=a%2520b/part-0.parquet", {"who": "a b"}, False),
        ("who=__HIVE_DEFAULT_PARTITION__/part-0.parquet", {"who": None}, False),
        (
            "who=__HIVE_DEFAULT_PARTITION__/part-0.parquet",
            {"who": "__HIVE_DEFAULT_PARTITION__"},
            False,
        ),
    ],
)
def test_paths_say_the_partition_only_as_plain_text(
    path: str, values: dict[str, str | None], plain: bool
) -> None:
    assert staged_rows._names_partition({"path": path, "partitionValues": values}) is plain
