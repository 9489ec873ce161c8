"""A capture and maintenance keep what the index amounts to, and a capture starts from it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from capstan.capture import run
from capstan.capture.batch import micro_batch
from capstan.capture.batch.roster import Roster
from capstan.core.config import Source
from capstan.maintenance.run import maintain
from capstan.storage.lake import Lake, children
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.bulk_tapes import counting
from tests.support.sample_streams import NAME, lay, little_stream, rows


def test_captures_and_maintenance_keep_totals(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro_batch, "EVERY", 2)
    lake, source = Lake.at(tmp_path / "lake"), tmp_path / "source"
    stream = little_stream(
        source, source=Source("parquet", str(source), {"maxFilesPerTrigger": "1"})
    )
    for number in range(5):
        lay(source, str(number), rows(range(number * 4, number * 4 + 4), step=timedelta(hours=1)))
    run.capture(spark, lake, stream)
    tape = open_tape(lake, NAME)
    assert [int(name[:20]) for name in children(tape.paths.totals)] == [1, 3]
    with counting() as opened:
        assert sum(worker.next_seq for worker in Roster.load(tape, newest_cut(tape)).workers)
    assert (opened["events"], opened["totals"]) == (1, 1)

    maintain(spark, lake, [NAME])
    with counting() as opened:
        Roster.load(tape, newest_cut(tape))
    assert (opened["events"], opened["totals"]) == (0, 1)
