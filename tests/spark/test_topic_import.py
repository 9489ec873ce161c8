"""Recordings in topics whose workers are exported one by one; topics without a broker."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.core.protocol import Release
from capstan.core.times import Antichain, Kind, TimeType
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.interop.kafka import export_topics as topics
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.import_topics import import_topics
from capstan.interop.kafka.topic_checks import TopicBatch, require_ahead
from capstan.interop.kafka.topic_layout import TopicHeader, Topics
from capstan.interop.transfer.export_files import form_of
from capstan.interop.transfer.recording_format import Format
from capstan.storage.tape import index
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from capstan.verify.event_fold import FoldResult
from tests.spark.test_exchange_pairs import recordings
from tests.spark.test_exchange_stamps import CONFORMANCE, TIMELY, exported, files, put
from tests.support.sample_streams import lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from capstan.storage.lake import Lake

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
        actual = [item for item in held if re.fullmatch(pattern, item[0])]
        return spark.createDataFrame(actual, "topic STRING, value STRING")

    monkeypatch.setattr(topics, "_send", send)
    monkeypatch.setattr(topics, "_read", read)
    return held


def export(spark: SparkSession, lake: Lake, *workers: int, name: str = "little") -> None:
    tape = open_tape(lake, name)
    export_topics(spark, lake, tape, PLACE, workers=workers, cut=newest_cut(tape))


def frontier(lake: Lake, name: str) -> list[object]:
    tape = open_tape(lake, name)
    return list(index.frontier_of(tape, index.worker_states(tape, newest_cut(tape))))


@pytest.mark.nightly
def test_workers_exported_singly_are_all_registered(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]]
) -> None:
    lay(tmp_path / "source", "0", rows(range(40)))
    capture(spark, lake, little_stream(tmp_path / "source"))
    tape = open_tape(lake, "little")
    export(spark, lake, 1)
    assert import_topics(spark, lake, "one", PLACE).workers == 1
    export(spark, lake, 2)
    export(spark, lake, 0)

    # What is complete of a stream of one worker would not be of one of three.
    before = frontier(lake, "one")
    with pytest.raises(
        CheckFailedError, match="CAP-BEHIND: stream one: worker 0, a, has records at"
    ):
        import_topics(spark, lake, "one", PLACE)
    assert frontier(lake, "one") == before
    assert import_topics(spark, lake, "copy", PLACE).workers == 3

    copy = open_tape(lake, "copy")
    assert verify(spark, lake, copy, deep=True).valid
    states = [index.worker_states(item, newest_cut(item)) for item in (copy, tape)]
    assert states[0] == states[1]
    # A topic of a worker that no export has named puts nothing on tape.
    sent.extend([("one.by-one-7", text) for name, text in sent if name == "one.by-one-0"])
    known = pl.read_delta(copy.paths.events).height
    with pytest.raises(
        CheckFailedError, match="CAP-TOPIC: topic one.by-one-7 has events, but topic one"
    ):
        import_topics(spark, lake, "copy", PLACE)
    assert pl.read_delta(copy.paths.events).height == known


def test_a_worker_that_opens_where_all_others_are_is_taken(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]]
) -> None:
    lay(tmp_path / "source", "0", [row for row in rows(range(40)) if row[1] != "c"])
    stream = little_stream(tmp_path / "source")
    capture(spark, lake, stream)
    export(spark, lake, 0, 1)
    assert import_topics(spark, lake, "copy", PLACE).workers == 2
    lay(tmp_path / "source", "1", rows(range(40, 80)))
    capture(spark, lake, stream)
    export(spark, lake, 0, 1, 2)

    assert import_topics(spark, lake, "copy", PLACE).workers == 3

    tapes = [open_tape(lake, name) for name in ("little", "copy")]
    assert verify(spark, lake, tapes[1], deep=True).valid
    assert frontier(lake, "copy") == frontier(lake, "little")
    assert len({pl.read_delta(tape.paths.records).height for tape in tapes}) == 1


def test_topics_of_another_recording_are_not_written_to(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]]
) -> None:
    lay(tmp_path / "source", "0", rows(range(40)))
    for name in ("little", "other"):
        capture(spark, lake, replace(little_stream(tmp_path / "source"), name=name))
    export(spark, lake, 0, 1, 2)
    held = list(sent)
    with pytest.raises(
        CheckFailedError, match=r"CAP-TOPIC: .* another recording, of stream little"
    ):
        export(spark, lake, 0, name="other")
    assert sent == held
    sent[:] = [("one.by-one", "no head")]
    with pytest.raises(InvalidRequestError, match="CAP-TOPIC: topic one.by-one has no header"):
        export(spark, lake, 0)
    assert len(sent) == 1


def test_what_cannot_come_back_from_a_topic_is_not_sent(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]]
) -> None:
    lay(tmp_path / "source", "0", rows(range(4)))
    stream = little_stream(tmp_path / "source")
    schema = f"{stream.source.schema}, tags STRUCT<of: ARRAY<MAP<INT, STRING>>>"
    capture(spark, lake, replace(stream, source=replace(stream.source, schema=schema)))
    with pytest.raises(
        InvalidRequestError, match=r"CAP-TYPE: column tags.of has type map<int,"
    ) as refused:
        export(spark, lake, 0)
    assert sent == []
    # A replay into another stream takes no transform.
    assert "--into-stream" not in refused.value.hint


FORMER = CONFORMANCE / "timely"
FORMS = {"antichain": "s0_antichain_w2", "none": "s7_unstamped_w2", "one": "g0_strings_w3"}


@pytest.mark.parametrize("kind", [*FORMS, "pairs"])
def test_stamps_and_pairs_come_out_of_topics_as_they_went_in(
    spark: SparkSession, lake: Lake, tmp_path: Path, sent: list[tuple[str, str]], kind: str
) -> None:
    folder = TIMELY / FORMS[kind] if kind in FORMS else tmp_path / "sent"
    if kind == "pairs":
        recordings(folder, 7, stamped=True)
    # One element each may have come from timely 0.31, and is sent in the newer form on request.
    given = "0.32" if kind == "one" else None
    put(spark, lake, "s", FORMER / FORMS[kind] if given else folder, Format.TIMELY)
    tape = open_tape(lake, "s", stamps=True)
    workers = tuple(index.worker_labels(tape, newest_cut(tape)))
    cut = newest_cut(tape)
    done = export_topics(spark, lake, tape, PLACE, workers=workers, cut=cut, timely=given)
    assert done.to_json()["timely"] == {"release": "0.32", "assumed": False}
    first = json.loads(sent[0][1])
    assert (first["format"], first["time"]) == (2, tape.time_type.to_json())
    messages = [json.loads(text) for _, text in sent if '"messages"' in text]
    assert all("stamp" in message and "time" not in message for message in messages)
    for timely, code in (("0.31", "CAP-TIMELY"), ("0.3", "CAP-TIMELY")):
        with pytest.raises(InvalidRequestError) as caught:
            import_topics(spark, lake, "copy", PLACE, timely=timely)
        assert caught.value.code == code
    with pytest.raises(InvalidRequestError, match="there is no stream copy"):
        open_tape(lake, "copy", stamps=True)
    points = ["tape.columns", "tape.stamped"] if kind in ("antichain", "none") else []
    for point in [*points, "topics.records"]:
        with pytest.raises(InterruptedError), instrumentation.subscribe(die_at(point)):
            import_topics(spark, lake, "copy", PLACE)
    import_topics(spark, lake, "copy", PLACE, timely="0.32")
    assert import_topics(spark, lake, "copy", PLACE).unchanged
    copy = open_tape(lake, "copy", stamps=True)
    assert format_of(copy.paths.events) == format_of(tape.paths.events)
    assert copy.time_type == tape.time_type
    assert verify(spark, lake, copy, deep=True).valid
    known = tape.settings.fixed["import"]
    form = form_of(copy, Format.TIMELY, known["time_type"], known["record_type"])
    assert exported(spark, lake, copy, tmp_path / "out", form) == files(folder, Format.TIMELY)
    # Topics hold one form, which a second export keeps.
    held = list(sent)
    if kind == "one":
        with pytest.raises(CheckFailedError, match="in the form of timely 0.32, not 0.31"):
            export_topics(spark, lake, tape, PLACE, workers=workers, cut=cut, timely="0.31")
        assert sent == held
        again = export_topics(spark, lake, tape, PLACE, workers=workers, cut=cut)
        assert again.release == "0.32"
    # Of two stamps of one event, none is taken for the other.
    if kind == "antichain":
        topic, text = next(each for each in held if len(json.loads(each[1]).get("stamp", ())) > 1)
        message = json.loads(text)
        message["stamp"][-1][-1] += 1
        sent.append((topic, json.dumps(message)))
        with pytest.raises(CheckFailedError, match="has two different events with the same number"):
            import_topics(spark, lake, "other", PLACE)
        sent.pop()
    # A message of the other form is not passed over.
    topic, text = next(each for each in held if '"stamp":[[' in each[1])
    sent.append((topic, text.replace('"stamp":[[', '"time":[').replace("]]", "]", 1)))
    with pytest.raises(CheckFailedError, match="1 messages of .* do not have a stamp alone"):
        import_topics(spark, lake, "other", PLACE)


@pytest.mark.parametrize(
    ("stamp", "behind"),
    [
        ([[0, 5], [3, 3]], True),
        ([[2, 2], [5, 0]], True),
        ([[2, 2], [2, 2]], False),
        ([[2, 3], [3, 2]], False),
        ([], False),
    ],
)
def test_a_new_worker_is_behind_by_any_element(
    spark: SparkSession, stamp: list[list[int]], *, behind: bool
) -> None:
    time_type = TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT)
    header = TopicHeader("s", "a", 0, time_type, "", {0: "a", 1: "b"}, Release.V032)
    rows = [(1, 0, "messages", 0, None, None, 1, 0, 0, stamp)]
    messages = spark.createDataFrame(
        rows,
        "worker INT, first BIGINT, kind STRING, seq BIGINT, time ARRAY<BIGINT>, "
        "updates ARRAY<STRUCT<time: ARRAY<BIGINT>, diff: BIGINT>>, records BIGINT, h1 BIGINT, "
        "h2 BIGINT, stamp ARRAY<ARRAY<BIGINT>>",
    )
    batch = TopicBatch(messages, header, {1: 1}, 0)
    frontier, closed = Antichain.of([(2, 2)]), {1: FoldResult(1, 1, ())}
    expected = pytest.raises(CheckFailedError, match="CAP-BEHIND: stream copy: worker 1, b, has")
    with expected if behind else nullcontext():
        require_ahead(batch, frontier, closed, [0], "copy")


def die_at(point: str) -> Callable[[str, Mapping[str, object]], None]:
    def told(reached: str, _: Mapping[str, object]) -> None:
        if reached == point:
            raise InterruptedError(point)

    return told
