"""Recordings in topics whose workers are exported one by one; topics without a broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.errors import AnswerIsNo
from capstan.exchange import export_topics, import_topics, topics
from capstan.interop.topics import Topics
from capstan.tape import summary
from capstan.tape.tape import newest_cut, open_tape
from capstan.testing.streams import lay, little_stream, rows
from capstan.verify import verify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from capstan.tape.lake import Lake

PLACE = Topics("nowhere:9092", "one.by-one")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What topics hold: name and message, in the order in which they were sent."""
    held: list[tuple[str, str]] = []

    def send(messages: DataFrame, _: Topics) -> None:
        held.extend((row["topic"], row["value"]) for row in messages.collect())

    def read(spark: SparkSession, _: Topics, which: Mapping[str, str]) -> DataFrame:
        (pattern,) = (
            re.escape(text) if how == "subscribe" else text for how, text in which.items()
        )
        found = [each for each in held if re.fullmatch(pattern, each[0])]
        return spark.createDataFrame(found, "topic STRING, value STRING")

    monkeypatch.setattr(topics, "_send", send)
    monkeypatch.setattr(topics, "_read", read)
    return held


def export(spark: SparkSession, lake: Lake, *workers: int) -> None:
    tape = open_tape(lake, "little")
    export_topics(spark, lake, tape, PLACE, workers=workers, cut=newest_cut(tape))


def test_workers_that_are_exported_one_by_one_are_all_on_the_roster(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]]
) -> None:
    lay(tmp_path / "source", "0", rows(range(40)))
    capture(spark, lake, little_stream(tmp_path / "source"))
    tape = open_tape(lake, "little")
    export(spark, lake, 1)
    assert import_topics(spark, lake, "copy", PLACE).workers == 1
    export(spark, lake, 2)
    export(spark, lake, 0)

    assert import_topics(spark, lake, "copy", PLACE).workers == 3

    copy = open_tape(lake, "copy")
    assert verify(spark, lake, copy, deep=True).valid
    states = [summary.worker_states(each, newest_cut(each)) for each in (copy, tape)]
    assert states[0] == states[1]
    # A topic of a worker that no export has named puts nothing on tape.
    sent.extend([("one.by-one-7", text) for name, text in sent if name == "one.by-one-0"])
    known = pl.read_delta(copy.paths.events).height
    with pytest.raises(AnswerIsNo, match="CAP-TOPIC: topic one.by-one-7 has events, and topic one"):
        import_topics(spark, lake, "copy", PLACE)
    assert pl.read_delta(copy.paths.events).height == known
