"""Capture, on real micro-batches: what is fed is on tape or in `late`, whatever the batches."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest

from capstan.capture.run import CaptureResult, capture, close
from capstan.core.config import ByColumn, ByKey, ByPartition, EpochTime, LatePolicy, Source
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.reporting.stream_view import StreamHistory, view_stream
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry.instrumentation import subscribe
from capstan.verify import verify
from tests.support.sample_streams import (
    HOUR,
    SCHEMA,
    START,
    declared,
    lay,
    lay_in,
    little_stream,
    rows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.core.config import Stream


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


def records_of(lake: Lake, name: str = "little") -> pl.DataFrame:
    return pl.read_delta(open_tape(lake, name).paths.records)


def events_of(lake: Lake, name: str = "little") -> pl.DataFrame:
    return pl.read_delta(open_tape(lake, name).paths.events).sort("worker", "seq")


def ids(frame: pl.DataFrame) -> list[int]:
    return sorted(frame["data"].struct.field("id").to_list())


def test_what_is_fed_is_on_tape_and_the_tape_is_sound(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay_in(source, rows(range(60)), files=3)

    done = capture(spark, lake, little_stream(source))

    assert (done.batches, done.fed, done.records, done.late) == (3, 60, 60, {})
    # Number 59 is at 29:30; two hours less, to the hour.
    assert done.frontier == ["2024-05-02T03:00:00.000000Z"]
    tape = open_tape(lake, "little")
    assert index.worker_labels(tape, newest_cut(tape)) == {0: "a", 1: "b", 2: "c"}
    verification = verify(spark, lake, tape, deep=True)
    assert verification.valid
    assert sum(worker.records for worker in verification.workers) == 60
    assert ids(records_of(lake)) == list(range(60))


# Each stretch of six hours backwards: the smaller the batches, the more of it comes too late.
SHUFFLED = sorted(rows(range(50)), key=lambda row: (row[0] // 12, -row[0]))
BATCHES = (1, 5, 17)


def late_in(batches: int) -> list[int]:
    """Which of the shuffled rows come late in so many batches: their time was complete before."""
    size = -(-len(SHUFFLED) // batches)
    late, frontier, greatest = [], START, START
    for first in range(0, len(SHUFFLED), size):
        in_time = []
        for number, _, at, *_ in SHUFFLED[first : first + size]:
            assert at is not None
            if START + (at - START) // HOUR * HOUR < frontier:
                late.append(number)
            else:
                in_time.append(at)
        greatest = max([greatest, *in_time])
        frontier = max(frontier, START + (greatest - START) // HOUR * HOUR - 2 * HOUR)
    return sorted(late)


def in_batches(folder: Path, batches: int) -> Stream:
    """The shuffled rows as a stream that is captured in so many batches."""
    lay_in(folder, SHUFFLED, batches)
    workers = ByColumn(column="place", labels=("a", "b", "c"))
    return replace(little_stream(folder, workers=workers), name=f"in_{batches}")


@dataclass(frozen=True)
class Shuffled:
    """Tapes of the same rows by the number of batches, and what capturing them said."""

    lake: Lake
    streams: dict[int, Stream]
    done: dict[int, CaptureResult]


@pytest.fixture(scope="module")
def shuffled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shuffled:
    """The same rows captured in one batch, in a few, and in many."""
    root = tmp_path_factory.mktemp("shuffled")
    lake = Lake.at(root / "lake")
    streams = {item: in_batches(root / f"in_{item}", item) for item in BATCHES}
    done = {item: capture(spark, lake, stream) for item, stream in streams.items()}
    return Shuffled(lake, streams, done)


def test_only_lateness_depends_on_batch_boundaries(spark: SparkSession, shuffled: Shuffled) -> None:
    late = {item: late_in(item) for item in BATCHES}
    assert late[1] == []
    assert set(late[5]) < set(late[17])
    assert [shuffled.done[item].batches for item in BATCHES] == list(BATCHES)
    assert len({str(done.frontier) for done in shuffled.done.values()}) == 1
    by_id = {row[0]: dict(zip(SCHEMA.names, row, strict=True)) for row in SHUFFLED}
    for item, done in shuffled.done.items():
        assert (done.fed, done.late.get("late", 0)) == (50, len(late[item]))
        tape = open_tape(shuffled.lake, f"in_{item}")
        assert ids(pl.read_delta(tape.paths.late)) == late[item]
        labels = index.worker_labels(tape, newest_cut(tape))
        on_tape = pl.read_delta(tape.paths.records).iter_rows(named=True)
        actual = {row["data"]["id"]: (labels[row["worker"]], row["time"], row) for row in on_tape}
        # All that is in time is there once: with its worker, its time and every column.
        assert sorted(actual) == [number for number in range(50) if number not in late[item]]
        for number, (label, time, row) in actual.items():
            own = by_id[number]
            assert row["data"] == own
            hour = START + (own["at"] - START) // HOUR * HOUR  # type: ignore[operator]
            assert (label, time) == (own["place"], {"event": hour})
        assert verify(spark, shuffled.lake, tape, deep=True).valid


def test_replayed_rows_do_not_depend_on_capture_or_workers(
    spark: SparkSession, shuffled: Shuffled
) -> None:
    tables = {}
    for batches, peers in [(1, 1), (1, 7), (5, 2), (17, 3)]:
        into, stream = f"in_{batches}_by_{peers}", shuffled.streams[batches]
        request = Request(stream.name, into, peers=peers)
        done = replay(spark, shuffled.lake, declared(stream), request)
        assert done.certificate.published
        table = pl.read_delta(shuffled.lake.table(into)).sort("id")
        # 24:30 is the last row; two hours less, to the hour, all is complete.
        late = [number for number in late_in(batches) if number < 44]
        assert table["id"].to_list() == [number for number in range(44) if number not in late]
        assert done.certificate.late == ({"late": len(late)} if late else {})
        tables[into] = table.filter(~pl.col("id").is_in(late_in(17)))
    first, *others = tables.values()
    assert len(first) == 44 - len([n for n in late_in(17) if n < 44])
    assert all(first.equals(other) for other in others)


def test_a_second_capture_of_nothing_new_changes_nothing(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay_in(source, rows(range(10)), files=1)
    stream = little_stream(source)
    capture(spark, lake, stream)
    paths = open_tape(lake, "little").paths
    before = [delta.version_of(p) for p in (paths.events, paths.records, paths.late)]

    done = capture(spark, lake, stream)

    assert (done.batches, done.fed) == (0, 0)
    assert [delta.version_of(p) for p in (paths.events, paths.records, paths.late)] == before


def test_each_reason_for_being_late(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay(source, "0", rows(range(40)))
    odd = [
        (100, None, START + 19 * HOUR, 0, "no place"),
        (101, "a", None, 0, "no time"),
        (102, "a", START - timedelta(days=400), 0, "below"),
        (103, "a", START.replace(year=2099), 0, "ahead"),
        (104, "a", START, 0, "late"),
        (105, "a", START + 19 * HOUR, 0, "in time"),
        (106, "a", START + 20 * HOUR, 0, "in time"),
    ]
    lay(source, "1", odd)
    stream = little_stream(source)
    stream = replace(
        stream,
        time=replace(stream.time, max_ahead=timedelta(days=30), minimum=START - timedelta(days=1)),
    )

    done = capture(spark, lake, stream)

    reasons = ["unknown-worker", "no-time", "below-minimum", "ahead", "late"]
    assert done.late == dict.fromkeys(reasons, 1)
    assert done.fed == done.records + 5 == 47
    late = pl.read_delta(open_tape(lake, "little").paths.late)
    kept = {row["data"]["id"]: row for row in late.iter_rows(named=True)}
    assert {n: row["reason"] for n, row in kept.items()} == dict(
        zip(range(100, 105), reasons, strict=True)
    )
    assert kept[104]["data"]["note"] == "late"
    assert kept[104]["frontier"] == [{"event": START + 17 * HOUR}]
    assert kept[104]["time"] == {"event": START}
    # The one of 2099 has not shut out all that follow.
    assert done.frontier == ["2024-05-01T18:00:00.000000Z"]


def test_a_backlog_in_one_batch_is_not_ahead_of_itself(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay(source, "0", rows(range(30), step=timedelta(days=3)))
    stream = little_stream(source)
    stream = replace(stream, time=replace(stream.time, max_ahead=timedelta(days=5)))

    done = capture(spark, lake, stream)

    assert (done.records, done.late) == (30, {})


def test_what_comes_after_a_long_silence_is_not_ahead(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    """Neither is all that follows one old first record."""
    lay(source, "0", [(100, "a", START - timedelta(days=900), 1, "old")])
    lay(source, "1", rows(range(10)))
    lay(
        source, "2", [(n, place, at + 90 * 24 * HOUR, 1, "") for n, place, at, *_ in rows([10, 11])]
    )
    lay(source, "3", [(101, "a", START.replace(year=2099), 1, "ahead")])
    stream = little_stream(source)
    stream = replace(stream, time=replace(stream.time, max_ahead=timedelta(days=30)))

    done = capture(spark, lake, stream)

    assert (done.records, done.late) == (13, {"ahead": 1})
    assert ids(records_of(lake)) == [*range(12), 100]


def test_advance_sends_late_records_at_the_frontier(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay(source, "0", rows(range(40)))
    lay(source, "1", [(100, "b", START, 1, "came late")])

    done = capture(spark, lake, little_stream(source, late=LatePolicy.ADVANCE))

    assert (done.records, done.late) == (41, {})
    received = records_of(lake).filter(pl.col("batch") == 1).to_dicts()[0]
    assert received["time"] == {"event": START + 17 * HOUR}
    assert received["data"]["at"] == START
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_a_batch_without_any_worker_is_late_as_a_whole(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    lay(source, "0", [(n, None, START, 1, "no place") for n in range(3)])
    done = capture(spark, lake, stream)
    assert (done.fed, done.records, done.late) == (3, 0, {"unknown-worker": 3})

    # It is whole, although no event names it: what is declared may change.
    lay(source, "1", [(3, None, START, 1, "no place"), *rows(range(10, 12))])
    done = capture(spark, lake, replace(stream, late=LatePolicy.ADVANCE))
    assert (done.fed, done.records, done.late) == (3, 2, {"unknown-worker": 1})
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_a_first_batch_without_any_row_is_followed_by_others(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    source.mkdir()
    stream = little_stream(source)
    stream = replace(stream, source=replace(stream.source, format="csv"))
    (source / "0.csv").touch()
    assert capture(spark, lake, stream).fed == 0
    (source / "1.csv").write_text("1,a,2024-05-01T00:00:00Z,1,x\n", encoding="utf-8")

    done = capture(spark, lake, stream)

    assert (done.batches, done.records) == (1, 1)
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_fail_writes_nothing_of_the_batch(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay(source, "0", rows(range(40)))
    late, new = (100, "b", START, 1, "came late"), (101, "d", START + 40 * HOUR, 1, "new place")
    lay(source, "1", [*rows(range(40, 50)), late, new])
    stream = little_stream(source, late=LatePolicy.FAIL)

    with pytest.raises(CheckFailedError, match=r"CAP-LATE.* 1 records"):
        capture(spark, lake, stream)

    assert records_of(lake)["batch"].unique().to_list() == [0]
    tape = open_tape(lake, "little")
    assert [state.label for state in index.worker_states(tape, newest_cut(tape))] == ["a", "b", "c"]
    assert len(pl.read_delta(tape.paths.workers)) == 3
    # Nothing of it was written: what the message proposes may be done, and lets it through.
    kinder = replace(stream, late=LatePolicy.DEAD_LETTER)
    done = capture(spark, lake, kinder)
    assert (done.fed, done.records, done.late) == (12, 11, {"late": 1})
    assert verify(spark, lake, tape, deep=True).valid


def test_a_source_that_gives_other_rows_when_it_is_read_again(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    line = '{{"id": {}, "place": {}, "at": "2024-05-01T0{}:00:00Z", "amount": 1}}\n'
    source.mkdir()
    text = "".join(line.format(n, '"a"', n) for n in range(3)) + line.format(3, "null", 3)
    (source / "0.json").write_text(text, encoding="utf-8")
    stream = little_stream(source)
    fickle = replace(stream, source=replace(stream.source, format="json"))

    def change(point: str, _facts: dict[str, object]) -> None:
        if point == "capture.records":
            # As long as before: the row without a place has one when late rows are read.
            (source / "0.json").write_text(text.replace("null", '"a" '), encoding="utf-8")

    with (
        subscribe(change),
        pytest.raises(SystemFailureError, match="4 rows were fed, but 3 are stored") as got,
    ):
        capture(spark, lake, fickle)
    assert got.value.code == "CAP-FEED"
    assert newest_cut(open_tape(lake, "little")).commit == -1


def test_a_new_checkpoint_that_was_cut_off_loses_no_batch(
    spark: SparkSession, lake: Lake, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(source, "0", rows(range(20)))
    stream = little_stream(source)
    capture(spark, lake, stream)
    lay(source, "1", rows(range(20, 40)))

    def half(point: str, _facts: dict[str, object]) -> None:
        if point == "capture.late":
            raise SystemFailureError("CAP-TEST", "half done")

    with subscribe(half), pytest.raises(SystemFailureError, match="half done"):
        capture(spark, lake, stream)
    assert ids(records_of(lake)) == list(range(40))
    delete, tape = delta.delete_rows, open_tape(lake, "little")

    def cut_off(spark: SparkSession, path: str, condition: str) -> None:
        delete(spark, path, condition)
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(delta, "delete_rows", cut_off)
        with pytest.raises(RuntimeError, match="cut off"):
            capture(spark, lake, stream, reseat=True)
    assert ids(records_of(lake)) == list(range(20))

    # Delta knows the commit of the batch, and would skip it.
    with pytest.raises(InvalidRequestError, match="CAP-CHECKPOINT: .* is missing"):
        capture(spark, lake, stream)
    (source / "0.parquet").unlink()
    capture(spark, lake, stream, reseat=True)
    assert ids(records_of(lake)) == list(range(40))
    assert verify(spark, lake, tape, deep=True).valid


def test_epochs(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay_in(source, rows(range(12)), files=3)

    done = capture(spark, lake, little_stream(source, time=EpochTime()))

    assert done.frontier == [3]
    by_epoch = records_of(lake).group_by(pl.col("time").struct.field("epoch")).len()
    assert sorted(by_epoch.iter_rows()) == [(0, 4), (1, 4), (2, 4)]
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_workers_by_key_do_not_depend_on_the_batches(
    spark: SparkSession, lake: Lake, source: Path, tmp_path: Path
) -> None:
    lay_in(source, rows(range(40)), files=2)
    stream = little_stream(source, workers=ByKey(by="key", columns=("place", "id"), count=4))
    capture(spark, lake, stream)
    shutil.rmtree(source)
    lay_in(source, rows(range(40)), files=1)
    capture(spark, lake, replace(stream, name="other"))

    def owners(name: str) -> dict[int, int]:
        frame = records_of(lake, name)
        return dict(zip(frame["data"].struct.field("id"), frame["worker"], strict=True))

    assert owners("little") == owners("other")
    assert set(owners("little").values()) == {0, 1, 2, 3}


def test_a_partition_that_lags_keeps_its_own_watermark(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    fast = [row for row in rows(range(60)) if row[0] % 2]
    slow = [row for row in rows(range(60)) if not row[0] % 2]
    # Both are there from the first micro-batch on: one that comes later opens at the frontier.
    lay(source / "part=fast", "0", fast[:20])
    lay(source / "part=slow", "0", slow[:5])
    lay(source / "part=fast", "1", fast[20:])
    lay(source / "part=slow", "1", slow[5:10])
    stream = little_stream(
        source,
        workers=ByPartition(by="partition"),
        source=Source(
            format="parquet",
            path=str(source),
            options={"maxFilesPerTrigger": "2"},
            schema="id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING, part STRING",
        ),
    )
    assert stream.time.watermark == "stream"
    stream = replace(stream, time=replace(stream.time, watermark="worker"))

    done = capture(spark, lake, stream)

    tape = open_tape(lake, "little")
    states = index.worker_states(tape, newest_cut(tape))
    frontiers = {state.label: state.frontier.elements[0] for state in states}
    assert set(frontiers) == {"part=fast", "part=slow"}
    assert frontiers["part=slow"] < frontiers["part=fast"]
    assert (done.fed, done.late) == (40, {})
    assert verify(spark, lake, tape, deep=True).valid


def test_a_worker_that_opens_later_starts_at_the_frontier(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    lay(source, "0", rows(range(40)))
    lay(
        source,
        "1",
        [(100, "new", START, 1, "late for all"), (101, "new", START + 25 * HOUR, 1, "")],
    )

    done = capture(spark, lake, little_stream(source))

    assert done.late == {"late": 1}
    first = events_of(lake).filter(pl.col("worker") == 3).row(0, named=True)
    assert (first["seq"], first["kind"]) == (0, "progress")
    assert [update["diff"] for update in first["updates"]] == [-1, 1]
    assert first["updates"][1]["time"] == {"event": START + 17 * HOUR}
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_a_batch_of_nothing_but_late_rows(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay(source, "0", rows(range(40)))
    lay(source, "1", [(100, "a", START, 1, "late")])
    lay(source, "2", rows(range(40, 44)))

    done = capture(spark, lake, little_stream(source))

    assert (done.batches, done.records, done.late) == (3, 44, {"late": 1})
    empty = events_of(lake).filter(pl.col("batch") == 1)
    assert empty.select("kind", "updates").rows() == [("progress", [])]


def test_from_a_delta_table(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    lay(tmp_path / "files", "0", rows(range(20)))
    content = spark.read.parquet(str(tmp_path / "files"))
    content.write.format("delta").save(table)
    stream = little_stream(tmp_path, source=Source(format="delta", path=table))

    first = capture(spark, lake, stream)
    content.where("id > 16").write.format("delta").mode("append").save(table)
    second = capture(spark, lake, stream)

    assert (first.fed, second.fed, second.late) == (20, 3, {})
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_closing_lets_go_of_everything(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay(source, "0", rows(range(10)))
    stream = little_stream(source)
    capture(spark, lake, stream)

    tape, closed = close(spark, lake, "little")

    assert closed == 3
    assert all(state.closed for state in index.worker_states(tape, newest_cut(tape)))
    shown = view_stream(lake, declared(stream), "little")
    assert isinstance(shown, StreamHistory)
    assert [state.closed for state in shown.workers] == [True] * 3
    assert all(worker.closed for worker in verify(spark, lake, tape).workers)
    assert close(spark, lake, "little")[1] == 0
    lay(source, "1", rows(range(10, 12)))
    with pytest.raises(InvalidRequestError, match="CAP-CLOSED"):
        capture(spark, lake, stream)


def test_other_readers(spark: SparkSession, lake: Lake, source: Path) -> None:
    lay(source, "0", [*rows(range(10)), (50, None, START, 1, None)])
    capture(spark, lake, little_stream(source))
    verify(spark, lake, open_tape(lake, "little"))
    paths = open_tape(lake, "little").paths

    for path in (paths.events, paths.records, paths.workers, paths.late, lake.ledger("verified")):
        expected = spark.read.format("delta").load(path).count()
        assert expected > 0
        connection = duckdb.connect()
        connection.register("stored", delta.open_table(path).to_pyarrow_dataset())
        assert pl.read_delta(path).height == expected
        assert connection.sql("SELECT count(*) FROM stored").fetchall() == [(expected,)]
    first = pl.read_delta(paths.events).sort("worker", "seq").filter(pl.col("kind") == "progress")
    assert first["updates"][0][0]["time"]["event"].year == 1  # type: ignore[index]


def test_a_folder_is_a_worker_of_its_own_name(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    folders = ["New York", "a+b", "50%", "Zürich", "k=a%3Ab", "plain"]
    for number, folder in enumerate(folders):
        lay(source / folder, "0", rows([number]))
    stream = little_stream(source, workers=ByPartition())
    options = {"recursiveFileLookup": "true"}

    capture(spark, lake, replace(stream, source=replace(stream.source, options=options)))

    tape = open_tape(lake, "little")
    labels = index.worker_labels(tape, newest_cut(tape))
    owners = records_of(lake).select("worker", pl.col("data").struct.field("id"))
    assert {labels[worker]: number for worker, number in owners.iter_rows()} == {
        folder: number for number, folder in enumerate(folders)
    }


class TestRefusals:
    def test_payload_that_lost_or_changed_a_column(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(10)))
        stream = little_stream(source)
        capture(spark, lake, stream)
        for schema, message in [
            ("id BIGINT, place STRING, at TIMESTAMP, amount INT", "column note is no longer"),
            (
                "id BIGINT, place STRING, at TIMESTAMP, amount BIGINT, note STRING",
                "column amount was int and is now bigint",
            ),
        ]:
            changed = replace(stream, source=replace(stream.source, schema=schema))
            with pytest.raises(InvalidRequestError, match=f"CAP-SCHEMA.*{message}"):
                capture(spark, lake, changed)

    def test_a_new_nullable_column_is_taken_and_old_hashes_stay_good(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(10)))
        stream = little_stream(source)
        capture(spark, lake, stream)
        wider = (stream.source.schema or "") + ", extra DOUBLE"
        lay(source, "1", rows(range(10, 20)))
        done = capture(spark, lake, replace(stream, source=replace(stream.source, schema=wider)))
        assert done.records == 10
        assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid

    def test_a_column_new_amid_a_batch_waits_for_the_next(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        def die(point: str, _: object) -> None:
            if point == "capture.records":
                raise SystemFailureError("CAP-TEST", "killed")

        stream = little_stream(source)
        lay(source, "0", rows(range(10)))
        with pytest.raises(SystemFailureError, match="CAP-TEST"), subscribe(die):
            capture(spark, lake, stream)
        wider = (stream.source.schema or "") + ", extra DOUBLE"
        stream = replace(stream, source=replace(stream.source, schema=wider))

        assert capture(spark, lake, stream).records == 10

        lay(source, "1", rows(range(10, 20)))
        assert capture(spark, lake, stream).records == 10
        assert "extra" in records_of(lake)["data"].struct.unnest().columns
        assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid

    def test_workers_and_times_of_a_tape_cannot_change(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(10)))
        stream = little_stream(source)
        capture(spark, lake, stream)
        for changed in (
            replace(stream, workers=ByKey(by="key", columns=("id",), count=2)),
            replace(stream, time=replace(stream.time, every=2 * HOUR)),
            replace(stream, time=EpochTime()),
        ):
            with pytest.raises(InvalidRequestError, match="CAP-DECLARED"):
                capture(spark, lake, changed)
        # Lateness may.
        later = replace(stream, time=replace(stream.time, lateness=5 * HOUR))
        assert capture(spark, lake, later).batches == 0

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"source": Source(format="parquet", path="/nowhere/at/all")}, "CAP-SOURCE"),
            ({"source": Source(format="nosuch", path="/tmp")}, "CAP-SOURCE"),
            ({"workers": ByKey(by="key", columns=("nosuch",), count=2)}, "CAP-COLUMN"),
        ],
    )
    def test_bad_declarations(
        self, spark: SparkSession, lake: Lake, source: Path, changes: dict[str, object], code: str
    ) -> None:
        lay(source, "0", rows(range(4)))
        stream: Stream = little_stream(source, **changes)
        with pytest.raises(InvalidRequestError, match=code):
            capture(spark, lake, stream)
        assert lake.streams() == []

    def test_a_time_column_that_is_no_time(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        lay(source, "0", rows(range(4)))
        stream = little_stream(source)
        wrong = replace(stream, time=replace(stream.time, column="amount"))
        with pytest.raises(InvalidRequestError, match=r"CAP-TIME-COLUMN.*amount is int"):
            capture(spark, lake, wrong)
