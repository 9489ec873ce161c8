"""A tape that lacks records, or has some too many: no export takes it for whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyspark.sql import functions as F

from capstan.capture.run import capture
from capstan.errors import CheckFailedError
from capstan.interop.kafka import export_topics as topics
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.interop.transfer.export_files import export_recordings, form_of
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.interop.transfer.serve import Address, serve
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from capstan.verify import verify
from tests.support.sample_streams import HOUR, START, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.storage.lake import Lake

CASE = "g0_strings_w3"
RECORDED = Path(__file__).parent.parent / "conformance" / "timely" / CASE
LOST = r"stream little, worker 1, event 3 at 2024-05-01T05:00:00\S*: 0 records are stored, 1 were"


@pytest.fixture
def tape(spark: SparkSession, lake: Lake, tmp_path: Path) -> Tape:
    """The half hours of a day and more, of three workers; of worker 1 number 10 is gone."""
    lay(tmp_path / "source", "0", rows(range(60)))
    capture(spark, lake, little_stream(tmp_path / "source"))
    actual = open_tape(lake, "little")
    lose(spark, actual, "data.id = 10")
    return actual


def lose(spark: SparkSession, tape: Tape, which: str) -> None:
    spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE {which}")


def put_back(spark: SparkSession, tape: Tape) -> None:
    spark.sql(f"RESTORE TABLE delta.`{tape.paths.records}` TO VERSION AS OF 1")


@pytest.mark.nightly
def test_files_are_written_of_no_worker(
    spark: SparkSession, lake: Lake, tape: Tape, tmp_path: Path
) -> None:
    out, form = tmp_path / "out", form_of(tape, Format.JSONL)
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: {LOST}") as refused:
        export_recordings(spark, lake, tape, out, form, workers=[0, 1, 2])
    facts = {"worker": 1, "seq": 3, "stored": 0, "promised": 1}
    assert facts.items() <= refused.value.fields.items()
    assert "capstan verify little --deep" in refused.value.hint
    assert list(out.iterdir()) == []

    assert (
        export_recordings(spark, lake, tape, out, form, workers=[0, 2]).to_json()["records"] == 40
    )
    put_back(spark, tape)
    again = tmp_path / "again"
    actual = export_recordings(spark, lake, tape, again, form, workers=[0, 1, 2])
    assert actual.to_json()["records"] == 60


def test_frames_are_written_of_no_worker(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    given = Form.of_folder(RECORDED, Format.TIMELY)
    import_recordings(spark, lake, CASE, find_recordings(RECORDED, Format.TIMELY), given)
    tape = open_tape(lake, CASE)
    # The last event that has records, of which some stay.
    last = pl.read_delta(tape.paths.records).filter(pl.col("worker") == 2).sort("batch", "pos")[-1]
    batch, pos = last["batch"][0], last["pos"][0]
    lose(spark, tape, f"worker = 2 AND batch = {batch} AND pos = {pos}")
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: stream {CASE}, worker 2, event"):
        export_recordings(spark, lake, tape, tmp_path / "out", given, workers=[0, 1, 2])
    assert list((tmp_path / "out").iterdir()) == []


def test_surplus_and_unlisted_records_are_refused(
    spark: SparkSession, lake: Lake, tape: Tape, tmp_path: Path
) -> None:
    put_back(spark, tape)
    form = form_of(tape, Format.JSONL)
    twice = spark.read.format("delta").load(tape.paths.records).where("data.id = 20")
    twice.write.format("delta").mode("append").save(tape.paths.records)
    printed = "worker 2, event .*: 2 records are stored, 1 were recorded"
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: stream little, {printed}"):
        export_recordings(spark, lake, tape, tmp_path / "twice", form, workers=[2])
    put_back(spark, tape)
    stray = twice.withColumn("time", F.struct(F.lit(START - HOUR).alias("event")))
    stray.write.format("delta").mode("append").save(tape.paths.records)
    with pytest.raises(CheckFailedError, match="worker 2: records without an event are stored"):
        export_recordings(spark, lake, tape, tmp_path / "stray", form, workers=[2])


def test_nobody_is_sent_a_part(spark: SparkSession, lake: Lake, tape: Tape) -> None:
    # Nobody listens there: who were to be sent something would be waited for.
    nobody, form = Address("127.0.0.1", 9), form_of(tape, Format.JSONL)
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: {LOST}"):
        serve(spark, lake, tape, form, nobody, workers=[0, 1, 2], timeout=0.1)


def test_topics_are_sent_no_message(
    spark: SparkSession, lake: Lake, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[DataFrame] = []
    monkeypatch.setattr(topics, "_send", lambda messages, _: sent.append(messages))
    monkeypatch.setattr(topics, "_texts", lambda *_: [])
    place, cut = Topics("nowhere:9092", "little"), newest_cut(tape)
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: {LOST}"):
        export_topics(spark, lake, tape, place, workers=[0, 1, 2], cut=cut)
    assert sent == []
    assert export_topics(spark, lake, tape, place, workers=[0, 2], cut=cut).records == 40


def test_a_recapture_continues_once_records_are_restored(
    spark: SparkSession, lake: Lake, tape: Tape
) -> None:
    requested = RecaptureRequest("little", "copy")
    with pytest.raises(CheckFailedError, match=f"CAP-TAPE: {LOST}"):
        recapture(spark, lake, requested)
    copy = open_tape(lake, "copy")
    assert pl.read_delta(copy.paths.records).is_empty()
    put_back(spark, tape)
    assert recapture(spark, lake, requested).records == 54
    assert verify(spark, lake, copy, deep=True).valid
