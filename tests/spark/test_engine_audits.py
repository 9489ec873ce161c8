"""Audits of what Spark has computed of a pipeline, by the engine."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyarrow import parquet

from capstan.audit.result import TAPE, EngineSample, InputSample
from capstan.errors import CheckFailedError
from capstan.errors.translation import to_capstan_error
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.spark.plans.operator_plan import column, stored
from capstan.pipeline.spark.plans.window_plans import SessionPlan, WindowPlan
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.replay.target import engine_sample
from capstan.storage.tape.tape import open_tape
from tests.support.pipeline_samples import REFERENCES
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DAY2, DAY4 = "2024-05-02", "2024-05-04"


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    first = Play.of(spark, tmp_path_factory.mktemp("engines"), rows(range(240)))
    return replace(first, declarations=replace(first.declarations, pipelines=REFERENCES))


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of windows that counts a row too many."""
    right = WindowPlan.rows

    def rows(self: WindowPlan, *inputs: DataFrame) -> DataFrame:
        made = right(self, *inputs)
        return made.withColumn(stored("rows"), column("rows") + 1)

    monkeypatch.setattr(WindowPlan, "rows", rows)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes the rows of one hour of a replay again."""
    monkeypatch.setattr(engine_sample, "FEW_RECORDS", 10)


@pytest.mark.usefixtures("wrong")
def test_a_wrong_plan_publishes_nothing(play: Play) -> None:
    with pytest.raises(CheckFailedError, match="^CAP-AUDIT: .* cells differ .pipeline audit."):
        play("wrong", pipeline="by_place", since=DAY2, until=DAY4)
    assert play.rows("wrong").height == 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("which", [1, 2], ids=["rows", "audit"])
def test_an_operator_that_fails_in_spark_is_named(
    play: Play, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Also in the second computation, which Spark begins when its rows are compared."""
    right, plans = WindowPlan.rows, itertools.count(1)

    def rows(self: WindowPlan, *inputs: DataFrame) -> DataFrame:
        made = right(self, *inputs)
        broken = self.failing(column("rows") > 0, "broken", column("rows"))
        return made.withColumn(stored("rows"), broken) if next(plans) == which else made

    monkeypatch.setattr(WindowPlan, "rows", rows)
    with pytest.raises(OperatorFailed, match="failed: ValueError: broken"):
        play(f"broken_{which}", pipeline="by_place", since=DAY2, until=DAY4)
    assert play.rows(f"broken_{which}").height == 0


@pytest.mark.usefixtures("wrong", "few")
def test_a_part_of_the_times_shows_a_wrong_plan(play: Play) -> None:
    with pytest.raises(CheckFailedError, match="^CAP-AUDIT: "):
        play("part", pipeline="by_place", since=DAY2, until=DAY4)
    assert play.rows("part").height == 0


@pytest.mark.usefixtures("few")
def test_the_certificate_names_the_part(play: Play) -> None:
    certificate = play("named", pipeline="by_place", since=DAY2, until=DAY4).certificate
    assert certificate is not None
    audit = certificate.to_json()["audit"]
    assert isinstance(audit, dict)
    sample = EngineSample(**audit["engine"])
    since, until = str(sample.times["since"]), str(sample.times["until"])
    assert DAY2 <= since < until <= DAY4 + "T"
    assert 0 < sample.cells < audit["cells"]
    assert sample.share == 0.02

    history = require_auditable(play.lake, str(certificate.run), None)
    asked = play.spark, play.lake, play.declarations, history
    assert audit_run(*asked).audit.engine == sample
    assert audit_run(*asked, deep=True).audit.engine is None
    # Rows outside of the part are compared as well, by Spark.
    outside = f"window_start >= '{until}' OR window_end <= '{since}'"
    DeltaTable(play.lake.table("named")).delete(outside)
    damaged = audit_run(*asked).audit
    assert not damaged.passed
    assert damaged.totals["missing"] > 0
    assert damaged.engine == sample


@pytest.mark.usefixtures("few")
def test_a_pipeline_declares_the_share(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []
    for share in (0.1, 0.6, 1):
        monkeypatch.setattr(PipelineComputation, "engine_share", share)
        done = play(f"share_{len(cells)}", pipeline="by_place", since=DAY2, until=DAY4)
        assert done.certificate is not None
        engine = (done.certificate.audit or {}).get("engine")
        cells.append(engine and (engine["cells"], engine["share"]))
    part, more, everything = cells
    assert part[0] < more[0]
    assert (part[1], more[1]) == (0.1, 0.6)
    assert everything is None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("pipeline", "keys"),
    [
        ("without_lookback", ()),
        ("stays_without_lookback", ("place",)),
        ("stays_of_all_without_lookback", None),
    ],
)
def test_a_replay_of_all_records_needs_no_lookback(
    play: Play, pipeline: str, keys: tuple[str, ...] | None
) -> None:
    """A part reads as far back as operators need, or all of some keys; without keys, it is all."""
    certificate = play(pipeline, pipeline=pipeline).certificate
    assert certificate is not None
    audit = certificate.audit or {}
    assert audit["passed"]
    assert ("engine" in audit) == (keys is not None)
    if keys is not None:
        sample = EngineSample(**audit["engine"])
        assert tuple(sample.keys) == keys
        assert sample.cells > 0
        history = require_auditable(play.lake, str(certificate.run), None)
        again = audit_run(play.spark, play.lake, play.declarations, history).audit.engine
        assert again == replace(sample, keys=keys)


@pytest.mark.usefixtures("few")
def test_a_wrong_plan_is_shown_by_some_keys(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    right = SessionPlan.rows

    def rows(self: SessionPlan, *inputs: DataFrame) -> DataFrame:
        made = right(self, *inputs)
        return made.withColumn(stored("rows"), column("rows") + 1)

    monkeypatch.setattr(SessionPlan, "rows", rows)
    with pytest.raises(CheckFailedError, match="^CAP-AUDIT: "):
        play("wrong_stays", pipeline="stays_without_lookback")
    assert play.rows("wrong_stays").height == 0


@pytest.mark.usefixtures("few")
def test_a_share_of_the_records_is_compared_and_all_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = Play.of(spark, tmp_path, rows(range(240)))
    play = replace(first, declarations=replace(first.declarations, pipelines=REFERENCES))
    certificate = play("table", pipeline="by_place").certificate
    assert certificate is not None
    [compared] = (certificate.audit or {})["inputs"]
    sample = InputSample(**compared)
    assert (sample.stream, sample.share) == (NAME, 0.02)
    since, until = (f"time.event >= '{sample.times[name]}'" for name in ("since", "until"))
    inside, outside = f"{since} AND NOT {until}", f"{until} OR NOT {since}"
    records = f"delta.`{open_tape(play.lake, NAME).paths.records}`"

    history = require_auditable(play.lake, str(certificate.run), None)
    asked = play.spark, play.lake, play.declarations, history

    def damaged(*, deep: bool = False) -> int | None:
        """The cells of the tape that differ; None if the audit is passed."""
        audit = audit_run(*asked, deep=deep).audit
        assert audit.inputs == (() if deep or audit.totals[TAPE] else (sample,))
        return None if audit.passed else audit.totals[TAPE]

    assert damaged() is None
    # The pipeline does not read this column.
    spark.sql(f"UPDATE {records} SET data.note = 'other' WHERE {outside}")
    assert damaged() is None
    beside = damaged(deep=True)
    assert beside is not None
    assert beside > 0
    spark.sql(f"UPDATE {records} SET data.note = 'other' WHERE {inside}")
    found = damaged()
    assert found is not None
    assert found > beside

    # A missing record is found wherever it is.
    DeltaTable(open_tape(play.lake, NAME).paths.records).restore(1)
    assert damaged() is None
    latest = (
        spark.table(records).where(f"data.id < 200 AND ({outside})").agg({"data.id": "max"}).first()
    )
    assert latest is not None
    spark.sql(f"DELETE FROM {records} WHERE data.id = {latest[0]}")
    assert damaged() == 1


def test_a_flipped_bit_is_found_where_its_column_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    play = Play.of(spark, tmp_path, rows(range(240)))
    [path] = (tmp_path / "lake").rglob("*records*/*.parquet")
    group = parquet.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    notes = next(column for column in columns if column.path_in_schema == "data.note")
    at = notes.data_page_offset + notes.total_compressed_size * 3 // 4
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(Py4JJavaError, match="CRC checksum verification failed") as caught:
        play("copy")
    assert to_capstan_error(caught.value).code == "CAP-DAMAGED"
