"""A writer of a tape that was replaced amid a batch: it commits nothing afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from capstan.capture.run import capture
from capstan.errors import CapstanError
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.verify.run import verify
from tests.support.attached_job import Job
from tests.support.meanwhile import meanwhile
from tests.support.sample_streams import NAME, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

POINTS = ["capture.attach", "capture.claim", "capture.workers", "capture.records", "capture.late"]


@pytest.mark.parametrize("arrives", [True, False], ids=["rows", "none"])
@pytest.mark.parametrize("point", POINTS)
def test_a_query_that_was_replaced_amid_a_batch_is_shut_out(
    spark: SparkSession, tmp_path: Path, point: str, arrives: bool
) -> None:
    job = Job(spark, tmp_path)
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    (job.source / "a.json").unlink()
    job.arrive("b", (2, "bob", "11:10"), (3, "ann", "09:00"))

    def replace_it() -> None:
        if arrives:
            (job.source / "b.json").unlink()
            job.arrive("c", (4, "bob", "12:10"))
        job.run("-new", reseat=True)

    with meanwhile(point, replace_it), pytest.raises(StreamingQueryException, match="CAP-"):
        job.run()
    assert job.is_sound()
    job.arrive("d", (5, "dan", "13:10"))
    job.run("-new", reseat=True)
    assert job.numbers() == [1, 4, 5] if arrives else [1, 2, 5]
    assert job.is_sound()


@pytest.mark.parametrize("fresh", [True, False], ids=["rows", "none"])
@pytest.mark.parametrize("point", POINTS[1:])
def test_a_capture_that_was_replaced_amid_a_batch_is_shut_out(
    spark: SparkSession, tmp_path: Path, point: str, fresh: bool
) -> None:
    source, lake = tmp_path / "source", Lake.at(tmp_path / "lake")
    stream = little_stream(source)
    lay(source, "0", rows(range(4)))
    capture(spark, lake, stream)
    (source / "0.parquet").unlink()
    lay(source, "1", rows(range(4, 8)))

    def replace_it() -> None:
        (source / "1.parquet").unlink()
        if fresh:
            lay(source, "2", rows(range(8, 12)))
        capture(spark, lake, stream, reseat=True)

    with meanwhile(point, replace_it), pytest.raises(CapstanError, match="CAP-"):
        capture(spark, lake, stream)
    tape = open_tape(lake, NAME)
    assert verify(spark, lake, tape, cut=newest_cut(tape), deep=True).valid
    lay(source, "3", rows(range(12, 16)))
    capture(spark, lake, stream)
    ids = spark.read.format("delta").load(lake.stream(NAME).records).select("data.id").collect()
    assert sorted(row[0] for row in ids) == [
        *range(4),
        *(range(8, 12) if fresh else ()),
        *range(12, 16),
    ]
    assert verify(spark, lake, tape, cut=newest_cut(tape), deep=True).valid
