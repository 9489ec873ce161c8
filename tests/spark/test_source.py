"""The feed, and the source held against the tape: files that were changed, or are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.comparing import Difference, compare
from capstan.capture.run import capture, put_back
from capstan.declare import Source
from capstan.errors import AnswerIsNo, BadRequest
from capstan.exchange import RecaptureRequest, recapture
from capstan.replay.request import Request
from capstan.replay.run import replay
from capstan.tape import delta
from capstan.tape.lake import Lake
from capstan.tape.tape import open_tape
from capstan.testing.streams import START, declared, lay, little_stream, rows
from capstan.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.declare import Stream


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def made(spark: SparkSession, lake: Lake, source: Path) -> Stream:
    """A stream of 12 batches with a late record, one that was put back, and one that waits."""
    for number in range(12):
        lay(source, f"part {number}", rows(range(10 * number, 10 * number + 10)))
    lay(source, "part 12", [(500, "a", START, 1, "late"), (501, None, START, 1, "no place")])
    stream = little_stream(source)
    capture(spark, lake, stream)
    put_back(spark, lake, "little")
    lay(source, "later", rows(range(120, 130)))
    return stream


def test_all_that_was_consumed_is_there(spark: SparkSession, lake: Lake, made: Stream) -> None:
    tape = open_tape(lake, "little")
    for deep in (False, True):
        found = compare(spark, tape, made, deep=deep)
        assert found.agrees
        # What was put back was fed in the batch that brought it late, and counts there alone.
        assert (found.batches, found.records, found.gone, found.unknown) == (13, 122, 0, 0)
    found.require_agreement()
    # Spark writes its list of files anew now and then; each batch still names its own.
    files = pl.read_delta(tape.paths.feed).sort("batch")["files"].drop_nulls()
    names = [[path.rpartition("/")[2] for path in each] for each in files]
    assert names == [[f"part%20{number}.parquet"] for number in range(13)]


def test_files_that_were_changed_or_are_gone(
    spark: SparkSession, lake: Lake, source: Path, made: Stream
) -> None:
    tape = open_tape(lake, "little")
    lay(source, "part 1", rows(range(10, 22)))
    lay(source, "part 2", rows(range(20, 27)))
    lay(source, "part 3", rows(range(930, 940)))
    (source / "part 4.parquet").unlink()

    found = compare(spark, tape, made)
    assert found.findings == (
        Difference(1, None, "missing", 12, 10),
        Difference(2, None, "extra", 7, 10),
    )
    assert (found.gone, found.differing) == (1, 2)
    with pytest.raises(AnswerIsNo, match="CAP-SOURCE-DIFFERS.*batch 1: missing, the source has 12"):
        found.require_agreement()

    found = compare(spark, tape, made, deep=True)
    assert [(each.batch, each.kind) for each in found.findings] == [
        (1, "missing"),
        (2, "extra"),
        (3, "changed"),
    ]


def test_a_record_that_the_tape_lost(
    spark: SparkSession, lake: Lake, source: Path, made: Stream
) -> None:
    tape = open_tape(lake, "little")
    spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE data.id = 55")
    spark.sql(f"UPDATE delta.`{tape.paths.late}` SET data.amount = 77 WHERE data.id = 500")
    found = compare(spark, tape, made, deep=True)
    assert found.findings == (
        Difference(5, None, "missing", 10, 9),
        Difference(12, None, "changed", 2, 2),
    )


def test_a_source_that_does_not_count_is_refused_by_name(
    spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
) -> None:
    lay(source, "0", rows(range(10)))
    table = str(tmp_path / "table")
    spark.read.parquet(str(source)).write.format("delta").save(table)
    stream = little_stream(source, source=Source(format="delta", path=table))
    capture(spark, lake, stream)
    with pytest.raises(BadRequest, match="CAP-NO-FEED.*neither files nor offsets"):
        compare(spark, open_tape(lake, "little"), stream)
    recapture(spark, lake, RecaptureRequest("little", "copy"))
    with pytest.raises(BadRequest, match="CAP-NO-FEED: stream copy does not say"):
        compare(spark, open_tape(lake, "copy"), stream)
    # It says itself where it stands, and the feed keeps that.
    assert "reservoirVersion" in pl.read_delta(lake.stream("little").feed)["detail"][0]


class TestSchemaChange:
    def test_columns_that_a_delta_source_gains_are_taken_up_between_two_captures(
        self, spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
    ) -> None:
        table = str(tmp_path / "table")
        lay(source, "0", rows(range(30)))
        content = spark.read.parquet(str(source))
        content.write.format("delta").save(table)
        stream = little_stream(source, source=Source(format="delta", path=table))
        capture(spark, lake, stream)
        first = open_tape(lake, "little")
        wider = content.selectExpr(
            "id + 30 AS id", "place", "at + INTERVAL 15 HOURS AS at", "amount", "note",
            "id * 1.5D AS price", "named_struct('kind', place) AS extra",
        )  # fmt: skip
        wider.write.format("delta").mode("append").option("mergeSchema", "true").save(table)

        assert capture(spark, lake, stream).records == 30

        tape = open_tape(lake, "little")
        assert verify(spark, lake, tape, deep=True).valid
        # What was recorded before has nulls there; and it is played and audited as it was.
        request = Request("little", "old", since="2024-05-01", until="2024-05-01T10:00:00Z")
        outcome = replay(spark, lake, declared(stream), request)
        audit = outcome.certificate["audit"]
        assert isinstance(audit, dict)
        assert (audit["kind"], audit["passed"]) == ("copy", True)
        old = pl.read_delta(lake.table("old"))
        assert old.height == 20
        assert old["price"].null_count() == old["extra"].null_count() == 20
        assert first.paths == tape.paths

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ("id BIGINT, place STRING, at TIMESTAMP, amount INT", "note is no longer in the"),
            (
                "id BIGINT, place STRING, at TIMESTAMP, amount BIGINT, note STRING",
                "amount was int and is now bigint",
            ),
            (
                "id BIGINT, place STRING, at TIMESTAMP, note STRING, amount INT",
                "amount is no longer at its place",
            ),
            (
                "id BIGINT, place STRING, at TIMESTAMP, amount INT, renamed STRING",
                "note is no longer in the source",
            ),
            (
                "extra INT, id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING",
                "id is no longer at its place",
            ),
        ],
    )
    def test_anything_else_is_refused_by_name_before_anything_is_written(
        self, spark: SparkSession, shared: tuple[Lake, Path], columns: str, said: str
    ) -> None:
        lake, source = shared
        stream = little_stream(source)
        before = {path: delta.version_of(path) for path in vars_of(lake)}
        changed = replace(stream, source=replace(stream.source, schema=columns))
        with pytest.raises(BadRequest, match=f"CAP-SCHEMA: stream little: column {said}") as caught:
            capture(spark, lake, changed)
        assert "capture the new shape as a new stream" in caught.value.hint
        assert {path: delta.version_of(path) for path in vars_of(lake)} == before

    def test_a_type_without_a_content_hash_makes_no_tape(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(4)))
        stream = little_stream(source)
        columns = (stream.source.schema or "") + ", wait INTERVAL DAY TO SECOND"
        changed = replace(stream, source=replace(stream.source, schema=columns))
        with pytest.raises(BadRequest, match="CAP-TYPE: column wait has type interval"):
            capture(spark, lake, changed)
        assert lake.streams() == []


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Path]:
    """A captured stream with more to come, which nothing of what is refused changes."""
    root = tmp_path_factory.mktemp("shared")
    lake, source = Lake.at(root / "lake"), root / "source"
    lay(source, "0", rows(range(10)))
    capture(spark, lake, little_stream(source))
    lay(source, "1", rows(range(10, 20)))
    return lake, source


def vars_of(lake: Lake) -> list[str]:
    paths = lake.stream("little")
    return [paths.events, paths.records, paths.late, paths.workers, paths.feed]
