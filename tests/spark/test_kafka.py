"""Kafka, with a real broker: topics are captured, counted, and hold recordings themselves."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyspark.sql import DataFrameWriter

from capstan.capture.query.source_reconciliation import SourceDifference, reconcile
from capstan.capture.run import capture, close, put_back
from capstan.cli import main
from capstan.core.config import ByKey, EventTime, Source, Stream
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.import_topics import import_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.support.kafka_broker import Broker, broker
from tests.support.kafka_topics import HASTY, click, ids, send, stream_of
from tests.support.sample_streams import START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

TYPED = {
    "at": "timestamp'2024-05-01 00:30:00Z' + make_interval(0, 0, 0, 0, id, 0, 0.000001)",
    "real": "array(double('NaN'), double('Infinity'), -0.0d, 5e-324d, 0.1d, null)[id]",
    "single": "array(float('NaN'), float('-Infinity'), -0.0f, 0.1f, 16777217f, null)[id]",
    "exact": "array(0.0000000001, -12345678901234567890.0987654321, null)[id % 3]",
    "raw": "array(X'', X'00FF80', null)[id % 3]",
    "day": "date_add(date'0001-01-01', int(id) * 700000)",
    "local": "timestamp_ntz'2024-05-01 12:00:00.000001'",
    "yes": "id % 2 = 0",
    "tiny": "tinyint(-128)",
    "short": "smallint(32767)",
    "words": "array('', 'a \\\\ \"b\" é \\u0000', null)",
    "by_name": "map('x', int(id), 'y', null)",
    "nested": "array(named_struct('n', id, 'in', named_struct('s', string(null))), null)",
}
"""Columns by name, as SQL over a number from 0 to 5."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("kafka") / "broker", partitions=2) as actual:
        yield actual


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Broker]:
    """A broker that may be ended: Spark keeps producers, which then have to find it again."""
    with broker(tmp_path / "broker", partitions=2) as actual:
        yield actual


def forget(spark: SparkSession, kafka: Broker, topic: str, before: int) -> None:
    """Have a broker let go of the first records of partition 0, as retention does."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    properties, expected = jvm.java.util.Properties(), jvm.java.util.HashMap()
    properties.put("bootstrap.servers", kafka.address)
    clients = jvm.org.apache.kafka.clients.admin
    # A static method with the name of another one, which hides it from Python.
    kind = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
    types, values = gateway.new_array(jvm.java.lang.Class, 1), gateway.new_array(jvm.Object, 1)
    types[0], values[0] = jvm.java.lang.Long.TYPE, jvm.java.lang.Long.valueOf(str(before))
    until = kind.getMethod("beforeOffset", types).invoke(None, values)
    expected.put(jvm.org.apache.kafka.common.TopicPartition(topic, 0), until)
    admin = clients.Admin.create(properties)
    admin.deleteRecords(expected).all().get()
    admin.close()


def widen(spark: SparkSession, kafka: Broker, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    jvm = spark._jvm
    assert jvm is not None
    properties, expected = jvm.java.util.Properties(), jvm.java.util.HashMap()
    properties.put("bootstrap.servers", kafka.address)
    clients = jvm.org.apache.kafka.clients.admin
    expected.put(topic, clients.NewPartitions.increaseTo(partitions))
    admin = clients.Admin.create(properties)
    admin.createPartitions(expected).all().get()
    admin.close()


@pytest.fixture(scope="module")
def captured(
    spark: SparkSession, kafka: Broker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, Stream]:
    """Two topics of two partitions, captured in several batches, with a late record."""
    lake = Lake.at(tmp_path_factory.mktemp("captured") / "lake")
    stream = stream_of(kafka.address, "web", "app", maxOffsetsPerTrigger="30")
    click(spark, kafka.address, "web", range(40))
    click(spark, kafka.address, "app", range(100, 120))
    first = capture(spark, lake, stream)
    assert (first.batches, first.fed, first.late) == (2, 60, {})
    click(spark, kafka.address, "web", range(40, 60))
    click(spark, kafka.address, "web", range(2))
    second = capture(spark, lake, stream)
    assert (second.batches, second.fed, second.late) == (1, 22, {"late": 2})
    return lake, stream


def test_each_partition_is_a_worker_with_a_watermark_of_its_own(
    spark: SparkSession, captured: tuple[Lake, Stream]
) -> None:
    lake, _ = captured
    tape = open_tape(lake, "clicks")
    states = index.worker_states(tape, newest_cut(tape))
    assert sorted(state.label for state in states) == ["app/0", "app/1", "web/0", "web/1"]
    held = {state.label: state.frontier.elements[0] for state in states}
    assert held["web/0"] < held["app/0"]
    assert ids(lake) == [*range(60), *range(100, 120)]
    assert verify(spark, lake, tape, deep=True).valid


def test_the_feed_has_every_offset_once(captured: tuple[Lake, Stream]) -> None:
    feed = pl.read_delta(captured[0].stream("clicks").feed).sort("part", "batch")
    for _, rows_ in feed.group_by("part", maintain_order=True):
        assert rows_["since"].to_list()[1:] == rows_["until"].to_list()[:-1]
    last = feed.group_by("part").agg(pl.max("until")).sort("part")
    assert last.rows() == [("app/0", 10), ("app/1", 10), ("web/0", 31), ("web/1", 31)]


def test_what_the_topics_gave_is_on_tape_or_late(
    spark: SparkSession, kafka: Broker, captured: tuple[Lake, Stream], tmp_path: Path
) -> None:
    lake, stream = captured
    tape = open_tape(lake, "clicks")
    for deep in (False, True):
        actual = reconcile(spark, tape, stream, deep=deep)
        assert actual.agrees, actual
        assert (actual.batches, actual.records) == (3, 82)


def test_offsets_that_no_batch_has_consumed_are_found(
    spark: SparkSession, captured: tuple[Lake, Stream], tmp_path: Path
) -> None:
    lake = Lake.at(tmp_path / "lake")
    shutil.copytree(captured[0].root, lake.root)
    tape = open_tape(lake, "clicks")
    # As of a source that has skipped two records: what was consumed is all there.
    spark.sql(
        f"UPDATE delta.`{tape.paths.feed}` SET since = since + 2, until = until + 2 "
        "WHERE batch = 2 AND part = 'web/0'"
    )
    actual = reconcile(spark, tape, captured[1])
    assert actual.findings == (SourceDifference(2, "web/0", "gap", 2, 0),)
    assert not actual.agrees


def delete(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    jvm = spark._jvm
    assert jvm is not None
    properties, expected = jvm.java.util.Properties(), jvm.java.util.ArrayList()
    properties.put("bootstrap.servers", kafka.address)
    expected.add(topic)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    admin.deleteTopics(expected).all().get()
    while topic in set(admin.listTopics().names().get()):
        time.sleep(0.1)
    admin.close()


@pytest.mark.parametrize("longer", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_recreated_topic_is_refused_until_confirmed(
    spark: SparkSession, kafka: Broker, lake: Lake, longer: bool
) -> None:
    topic = f"again{longer}"
    click(spark, kafka.address, topic, range(10))
    stream = stream_of(kafka.address, topic)
    assert capture(spark, lake, stream).records == 10
    assert capture(spark, lake, stream).records == 0
    delete(spark, kafka, topic)
    click(spark, kafka.address, topic, range(100, 120 if longer else 104))
    with pytest.raises(
        InvalidRequestError, match=f"^CAP-SOURCE-OTHER: .* topic {topic} was deleted"
    ):
        capture(spark, lake, stream)
    assert ids(lake, "clicks") == [*range(10)]
    if not longer:
        # Of a tape that does not know the ids the connector sees that offsets are gone.
        (Path(lake.stream("clicks").checkpoint) / "topics").unlink()
        with pytest.raises(InvalidRequestError, match=r"^CAP-SOURCE-LOST: .*\(KAFKA_DATA_LOSS"):
            capture(spark, lake, stream)
    assert capture(spark, lake, stream, reseat=True).records == (20 if longer else 4)


def test_partitions_that_a_topic_gains_are_workers_from_then_on(
    spark: SparkSession, kafka: Broker, lake: Lake
) -> None:
    click(spark, kafka.address, "grown", range(10))
    stream = stream_of(kafka.address, "grown", name="grown")
    assert capture(spark, lake, stream).records == 10
    widen(spark, kafka, "grown", 3)
    later = START + timedelta(hours=5)
    click(spark, kafka.address, "grown", range(10, 22), partitions=3, at=later)
    done = capture(spark, lake, stream)
    assert (done.records, done.late) == (12, {})
    tape = open_tape(lake, "grown")
    labels = index.worker_labels(tape, newest_cut(tape))
    assert sorted(labels.values()) == ["grown/0", "grown/1", "grown/2"]
    assert ids(lake, "grown") == list(range(22))
    assert verify(spark, lake, tape, deep=True).valid
    actual = reconcile(spark, tape, stream, deep=True)
    assert (actual.agrees, actual.records) == (True, 22)


def test_a_record_that_was_lost_or_changed_is_found(
    spark: SparkSession, kafka: Broker, lake: Lake
) -> None:
    click(spark, kafka.address, "lost", range(20))
    stream = stream_of(kafka.address, "lost", name="lost")
    capture(spark, lake, stream)
    tape = open_tape(lake, "lost")
    spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE data.offset = 5 AND worker = 0")
    actual = reconcile(spark, tape, stream)
    assert actual.findings == (SourceDifference(0, "lost/0", "missing", 10, 9),)
    spark.sql(
        f"UPDATE delta.`{tape.paths.records}` SET data.value = X'00' "
        "WHERE data.offset = 5 AND worker = 1"
    )
    deep = reconcile(spark, tape, stream, deep=True)
    assert deep.findings[1] == SourceDifference(0, "lost/1", "changed", 10, 10)
    # What the topic has let go of says nothing of the tape.
    forget(spark, kafka, "lost", before=3)
    later = reconcile(spark, tape, stream, deep=True)
    assert (later.batches, later.gone) == (0, 1)
    assert [finding.part for finding in later.findings] == ["lost/1"]


@pytest.mark.nightly
def test_the_timestamp_of_a_record_is_a_time_as_well(
    spark: SparkSession, kafka: Broker, lake: Lake
) -> None:
    click(spark, kafka.address, "stamped", range(6))
    stream = stream_of(kafka.address, "stamped", name="stamped")
    stream = replace(stream, time=EventTime(column="timestamp", every=timedelta(hours=1)))
    assert capture(spark, lake, stream).records == 6
    close(spark, lake, "stamped")
    outcome = replay(spark, lake, declared(stream), Request("stamped", "all"))
    assert outcome.certificate.records == 6


@pytest.mark.nightly
def test_a_dying_broker_loses_and_doubles_nothing(
    spark: SparkSession, mortal: Broker, lake: Lake
) -> None:
    click(spark, mortal.address, "dying", range(40))
    stream = stream_of(mortal.address, "dying", name="dying", maxOffsetsPerTrigger="10")
    hasty = replace(stream, source=replace(stream.source, options=stream.source.options | HASTY))
    left = [2]

    def die(point: str, _: dict[str, object]) -> None:
        left[0] -= point == "capture.events"
        if left[0] == 0:
            left[0] = -1
            mortal.stop()

    with (
        instrumentation.subscribe(die),
        pytest.raises(SystemFailureError, match="CAP-BROKER: stream dying"),
    ):
        capture(spark, lake, hasty)
    with pytest.raises(SystemFailureError, match="CAP-BROKER"):
        reconcile(spark, open_tape(lake, "dying"), hasty, deep=True)
    # What is known without the broker is still told.
    assert reconcile(spark, open_tape(lake, "dying"), stream).agrees
    mortal.start()
    capture(spark, lake, stream)
    assert ids(lake, "dying") == list(range(40))
    tape = open_tape(lake, "dying")
    assert verify(spark, lake, tape, deep=True).valid
    assert reconcile(spark, tape, stream, deep=True).records == 40


@pytest.mark.nightly
def test_wherever_a_broker_dies_the_next_capture_goes_on(
    spark: SparkSession, mortal: Broker, lake: Lake
) -> None:
    """At each point of a batch once: what was read is written, and what was not is read again."""
    stream = stream_of(mortal.address, "mortal", name="mortal", maxOffsetsPerTrigger="5")
    hasty = replace(stream, source=replace(stream.source, options=stream.source.options | HASTY))
    deaths, failures = [], []
    points = ("begin", "claim", "records", "late", "events")
    for number, fatal in enumerate(points):
        click(spark, mortal.address, "mortal", range(10 * number, 10 * number + 10))

        def die(point: str, _: dict[str, object], fatal: str = fatal) -> None:
            if point == f"capture.{fatal}" and fatal not in deaths:
                deaths.append(fatal)
                mortal.stop()

        try:
            with instrumentation.subscribe(die):
                capture(spark, lake, hasty)
        except SystemFailureError as error:
            failures.append(error.code)
        mortal.start()
    assert deaths == list(points)
    # The first of two batches is the one that it dies in, so that the second has no broker.
    assert failures == ["CAP-BROKER"] * len(points)
    capture(spark, lake, stream)
    assert ids(lake, "mortal") == list(range(50))
    tape = open_tape(lake, "mortal")
    assert verify(spark, lake, tape, deep=True).valid
    assert reconcile(spark, tape, stream, deep=True).records == 50


@pytest.fixture(scope="module")
def recorded(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, Stream, Path]:
    """A rescaled stream with late records put back: events of all kinds."""
    root = tmp_path_factory.mktemp("recorded")
    lake, source = Lake.at(root / "lake"), root / "source"
    stream = little_stream(source, workers=ByKey(columns=("id",), count=2))
    lay(source, "0", rows(range(40)))
    lay(source, "1", [(500, "a", START, None, 'line\nbreak "quoted" é')])
    capture(spark, lake, stream)
    stream = replace(stream, workers=ByKey(columns=("id",), count=3))
    capture(spark, lake, stream, rescale=3)
    put_back(spark, lake, "little")
    return lake, stream, source


class TestTopics:
    def export(self, spark: SparkSession, lake: Lake, topics: Topics) -> None:
        tape = open_tape(lake, "little")
        cut = newest_cut(tape)
        labels = index.worker_labels(tape, cut)
        export_topics(spark, lake, tape, topics, workers=labels, cut=cut)

    @pytest.mark.nightly
    def test_a_tape_comes_back_from_its_topics(
        self, spark: SparkSession, kafka: Broker, recorded: tuple[Lake, Stream, Path]
    ) -> None:
        lake, stream, source = recorded
        topics = Topics.parse(f"kafka://{kafka.address}/there.and_back")
        # Twice: each message stands there twice, in two partitions that are read in no order.
        self.export(spark, lake, topics)
        self.export(spark, lake, topics)

        actual = import_topics(spark, lake, "copy", topics)

        tape = open_tape(lake, "little")
        labels = index.worker_labels(tape, newest_cut(tape))
        assert (actual.cut, actual.workers, actual.records) == (0, len(labels), 41)
        assert same_recording(lake, "little", "copy")
        assert verify(spark, lake, open_tape(lake, "copy"), deep=True).valid
        assert import_topics(spark, lake, "copy", topics).unchanged

        # What has come since is another commit.
        lay(source, "2", rows(range(40, 60)))
        capture(spark, lake, stream)
        self.export(spark, lake, topics)
        again = import_topics(spark, lake, "copy", topics)
        assert (again.cut, again.records) == (1, 20)
        assert same_recording(lake, "little", "copy")
        copy = open_tape(lake, "copy")
        assert verify(spark, lake, copy, deep=True).valid
        # As of the first commit it is what it was.
        states = index.worker_states(copy, index.find_cut(copy, 0))
        assert sum(state.records for state in states) == 41

    def test_no_request_is_sent_before_the_last_one_was_answered(
        self,
        spark: SparkSession,
        kafka: Broker,
        recorded: tuple[Lake, Stream, Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # Else a broker that makes the topic just then may take the second one first, and from then
        # on refuse the first; one send of thirteen to a broker that had just begun came to that.
        reported: list[str | None] = []
        options = DataFrameWriter.options

        def spied(writer: DataFrameWriter, **given: str) -> DataFrameWriter:
            if "kafka.bootstrap.servers" in given:
                reported.append(given.get("kafka.max.in.flight.requests.per.connection"))
            return options(writer, **given)

        monkeypatch.setattr(DataFrameWriter, "options", spied)
        self.export(spark, recorded[0], Topics.parse(f"kafka://{kafka.address}/one.by.one"))
        assert reported == ["1", "1"]

    def test_columns_of_every_type_come_back(
        self, spark: SparkSession, kafka: Broker, lake: Lake, tmp_path: Path
    ) -> None:
        source = tmp_path / "typed"
        frame = spark.range(6).selectExpr(
            "id", *(f"{sql} AS {name}" for name, sql in TYPED.items())
        )
        frame.coalesce(1).write.parquet(str(source))
        stream = Stream(
            name="little",
            source=Source(format="parquet", path=str(source), schema=frame.schema.toDDL()),
            workers=ByKey(columns=("id",), count=2),
            time=EventTime(column="at", every=timedelta(hours=1)),
        )
        assert capture(spark, lake, stream).records == 6
        topics = Topics.parse(f"kafka://{kafka.address}/typed")
        self.export(spark, lake, topics)
        import_topics(spark, lake, "copy", topics)
        assert same_recording(lake, "little", "copy")
        assert verify(spark, lake, open_tape(lake, "copy"), deep=True).valid

    def test_the_command_line_sends_them_and_takes_them(
        self, kafka: Broker, recorded: tuple[Lake, Stream, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        lake, place = recorded[0], f"kafka://{kafka.address}/told"
        at = ["--lake", lake.root, "--json"]
        assert main([*at, "export", "little", place]) == 0
        assert main([*at, "import", "told", place]) == 0
        sent, taken = map(json.loads, capsys.readouterr().out.splitlines())
        assert sent["records"] == taken["records"] > 0
        assert same_recording(lake, "little", "told")

    @pytest.mark.nightly
    def test_what_is_missing_or_another_is_refused_by_name(
        self, spark: SparkSession, kafka: Broker, recorded: tuple[Lake, Stream, Path]
    ) -> None:
        lake, _, _ = recorded
        whole = Topics.parse(f"kafka://{kafka.address}/whole")
        self.export(spark, lake, whole)
        options = {"kafka.bootstrap.servers": kafka.address, "subscribePattern": "whole(-.*)?"}
        sent = spark.read.format("kafka").options(**options).load()
        text = sent.selectExpr("topic", "CAST(value AS STRING) AS value").cache()
        cases = {
            "event": (
                'value NOT LIKE \'%"kind":"messages"%"seq":1,%\' OR topic NOT LIKE \'%-0\'',
                "CAP-TOPIC-GAP: topic event-0 lacks 1 events, the first is 1",
            ),
            "record": (
                "value NOT LIKE '%\"id\":7,%'",
                r"CAP-TOPIC-GAP: topic record-\d lacks 1 of \d records of event \d",
            ),
        }
        for prefix, (kept, printed) in cases.items():
            send(kafka.address, renamed(text.where(kept), "whole", prefix))
            with pytest.raises(CheckFailedError, match=printed):
                import_topics(spark, lake, "refused", Topics(kafka.address, prefix))
        changed = text.selectExpr(
            "topic", "replace(value, '\"amount\":49', '\"amount\":48') AS value"
        )
        send(kafka.address, renamed(changed, "whole", "changed"))
        with pytest.raises(
            CheckFailedError, match="CAP-TOPIC: topic changed-. has other records of"
        ):
            import_topics(spark, lake, "refused", Topics(kafka.address, "changed"))
        twice = text.selectExpr("topic", "replace(value, '\"diff\":1', '\"diff\":2') AS value")
        for frame in (text, twice):
            send(kafka.address, renamed(frame, "whole", "twice"))
        with pytest.raises(
            CheckFailedError, match="CAP-TOPIC: topic twice-0 has two different events"
        ):
            import_topics(spark, lake, "refused", Topics(kafka.address, "twice"))
        unsound = text.selectExpr("topic", "replace(value, '\"diff\":-1', '\"diff\":-2') AS value")
        send(kafka.address, renamed(unsound, "whole", "unsound"))
        with pytest.raises(
            CheckFailedError, match="CAP-VIOLATION: stream refused, worker 0 breaks negat"
        ):
            import_topics(spark, lake, "refused", Topics(kafka.address, "unsound"))
        # Nothing of all this was written.
        assert newest_cut(open_tape(lake, "refused")).commit == -1
        assert pl.read_delta(lake.stream("refused").records).is_empty()

    @pytest.mark.nightly
    def test_topics_of_something_else(
        self, spark: SparkSession, kafka: Broker, recorded: tuple[Lake, Stream, Path]
    ) -> None:
        lake, _, _ = recorded
        click(spark, kafka.address, "other", range(4))
        for prefix, reason in (("nowhere", "nowhere does not exist"), ("other", "has no header")):
            with pytest.raises(InvalidRequestError, match=f"CAP-TOPIC: .*{reason}"):
                import_topics(spark, lake, "refused", Topics(kafka.address, prefix))
        topics = Topics(kafka.address, "two")
        self.export(spark, lake, topics)
        import_topics(spark, lake, "second", topics)
        second = open_tape(lake, "second")
        with pytest.raises(InvalidRequestError, match="CAP-EXISTS"):
            import_topics(spark, lake, "little", topics)
        cut = newest_cut(second)
        with pytest.raises(
            CheckFailedError, match="CAP-TOPIC: topics two-. hold another recording"
        ):
            export_topics(spark, lake, second, topics, workers=[0], cut=cut)
        assert import_topics(spark, lake, "third", topics).events > 0


def renamed(frame: DataFrame, before: str, after: str) -> DataFrame:
    """The same messages in topics with another prefix."""
    topic = f"concat('{after}', substring(topic, {len(before) + 1})) AS topic"
    return frame.selectExpr(topic, "value")


def same_recording(lake: Lake, one: str, other: str) -> bool:
    """Whether two tapes have the same workers, events and records."""

    def told(name: str) -> tuple[list[object], list[object], dict[int, str]]:
        paths = lake.stream(name)
        events = pl.read_delta(paths.events).drop("batch", "commit").sort("worker", "seq")
        records = pl.read_delta(paths.records).select("worker", "time", "data")
        tape = open_tape(lake, name)
        labels = index.worker_labels(tape, newest_cut(tape))
        return events.rows(), sorted(map(str, records.rows())), labels

    assert told(one) == told(other)
    return True
