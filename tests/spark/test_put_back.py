"""Late records put back, an idle source that the clock moves on, and tapes of older formats."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyspark.errors import StreamingQueryException

from capstan.capture.run import capture, close, put_back
from capstan.capture.synthetic import synthetic_batch
from capstan.core.config import ByKey, EventTime, Target
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.lake import Lake
from capstan.storage.late.late_rows import count_late
from capstan.storage.tape import index, schema
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.support import lake_contents
from tests.support.sample_streams import HOUR, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.core.config import Stream

FORMATS = Path(__file__).parents[1] / "formats"
LATE = [
    (500, "a", START, 1, "late"),
    (501, "b", START + HOUR, 2, "late"),
    (502, None, START, 3, ""),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    lay(folder, "0", rows(range(40)))
    lay(folder, "1", LATE)
    return folder


def records_of(lake: Lake) -> pl.DataFrame:
    return pl.read_delta(lake.stream("little").records)


def frontier(lake: Lake) -> datetime:
    tape = open_tape(lake, "little")
    (time,) = index.frontier_of(tape, index.worker_states(tape, newest_cut(tape))).elements
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time[-1])


def require_all_fed(lake: Lake, fed: int) -> None:
    """Check that what was fed is on tape or kept beside it, each record once."""
    tape = open_tape(lake, "little")
    kept = count_late(tape, newest_cut(tape))
    on_tape = records_of(lake)
    assert on_tape.height + sum(kept.values()) == fed
    ids = on_tape["data"].struct.field("id")
    assert ids.n_unique() == on_tape.height


def test_late_records_enter_at_the_frontier_once(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    capture(spark, lake, stream)
    stood = frontier(lake)
    require_all_fed(lake, 43)

    done = put_back(spark, lake, "little")

    assert (done.batch, done.records, dict(done.left)) == (2, 2, {"unknown-worker": 1})
    received = records_of(lake).filter(pl.col("batch") == 2).sort(pl.col("data").struct.field("id"))
    assert received["time"].to_list() == [{"event": stood}] * 2
    assert [row["id"] for row in received["data"]] == [500, 501]
    # The record keeps its own time, and so does the row beside the tape.
    assert [row["at"] for row in received["data"]] == [START, START + HOUR]
    assert frontier(lake) == stood
    require_all_fed(lake, 43)
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid

    # Again, there is nothing to put back; and the source goes on where it stood.
    before = lake_contents.tape(lake)
    again = put_back(spark, lake, "little")
    assert (again.batch, again.records) == (None, 0)
    assert lake_contents.tape(lake) == before
    lay(source, "2", [*rows(range(40, 44)), (600, "c", START, 1, "late again")])
    assert capture(spark, lake, stream).late == {"late": 1}
    assert put_back(spark, lake, "little").records == 1
    require_all_fed(lake, 48)
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid
    # As of a commit before it, they had not been put back.
    tape = open_tape(lake, "little")
    assert count_late(tape, index.find_cut(tape, 1)) == {"late": 2, "unknown-worker": 1}


def test_a_replay_counts_no_late_record_that_is_on_tape(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    capture(spark, lake, stream)
    put_back(spark, lake, "little")
    close(spark, lake, "little")
    actual = replay(spark, lake, declared(stream), Request("little", "all")).certificate.to_json()
    assert actual["late"] == {"unknown-worker": 1}
    assert actual["records"] == 42


def test_records_of_closed_workers_go_to_their_key_s_owner(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    def by_id(count: int) -> Stream:
        return little_stream(source, workers=ByKey(columns=("id",), count=count))

    capture(spark, lake, by_id(2))
    capture(spark, lake, by_id(3), rescale=3)
    assert put_back(spark, lake, "little").records == 3
    lay(source, "2", [(500, "a", START + 30 * HOUR, 1, "same key")])
    capture(spark, lake, by_id(3))
    owners = records_of(lake).select("worker", pl.col("data").struct.field("id"))
    assert owners.filter(pl.col("id") == 500)["worker"].n_unique() == 1
    assert set(owners.filter(pl.col("id") >= 500)["worker"]) <= {2, 3, 4}
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_missing_late_records_are_reported_before_writing(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    capture(spark, lake, little_stream(source))
    tape = open_tape(lake, "little")
    known = newest_cut(tape), lake_contents.rows(tape.paths.events)
    path = tape.paths.records

    def lose(point: str, _: dict[str, object]) -> None:
        if point == "put-back.records":
            spark.sql(f"DELETE FROM delta.`{path}` WHERE data.id = 500")

    with (
        instrumentation.subscribe(lose),
        pytest.raises(SystemFailureError, match="CAP-FEED.* 2 records .* but 1 are stored"),
    ):
        put_back(spark, lake, "little")
    assert (newest_cut(tape), lake_contents.rows(tape.paths.events)) == known
    # Once it is mended, the same command goes on.
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {delta.version_of(path) - 1}")
    assert put_back(spark, lake, "little").records == 2
    require_all_fed(lake, 43)
    assert verify(spark, lake, tape, deep=True).valid


def test_late_records_arriving_during_reinjection_join_it(
    spark: SparkSession, lake: Lake, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = little_stream(source)
    capture(spark, lake, stream)
    insert = synthetic_batch.insert

    def beside(*given: object) -> object:
        lay(source, "2", [*rows(range(40, 44)), (600, "c", START, 1, "late again")])
        assert capture(spark, lake, stream).late == {"late": 1}
        return insert(*given)

    monkeypatch.setattr(synthetic_batch, "insert", beside)
    done = put_back(spark, lake, "little")

    assert (done.batch, done.records, dict(done.left)) == (3, 3, {"unknown-worker": 1})
    require_all_fed(lake, 48)
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid

    # Another one that was faster leaves none to it, and no batch of nothing.
    def faster(*given: object) -> object:
        monkeypatch.setattr(synthetic_batch, "insert", insert)
        assert put_back(spark, lake, "little").records == 1
        return insert(*given)

    lay(source, "3", [(601, "c", START, 1, "late again")])
    capture(spark, lake, stream)
    monkeypatch.setattr(synthetic_batch, "insert", faster)
    done = put_back(spark, lake, "little")
    assert (done.records, newest_cut(open_tape(lake, "little")).batch) == (1, done.batch)
    require_all_fed(lake, 49)


def test_bitemporal_late_records_get_the_number_of_their_batch(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    both = EventTime(domain="epoch, event", column="at", every=HOUR, lateness=2 * HOUR)
    stream = little_stream(source, time=both)
    capture(spark, lake, stream)
    put_back(spark, lake, "little")
    received = records_of(lake).filter(pl.col("batch") == 2)["time"].to_list()
    assert received == [{"epoch": 2, "event": START + 17 * HOUR}] * 2
    lay(source, "2", rows(range(40, 44)))
    capture(spark, lake, stream)
    assert records_of(lake).filter(pl.col("batch") == 3)["time"][0]["epoch"] == 3
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_a_closed_stream_takes_none_back(spark: SparkSession, lake: Lake, source: Path) -> None:
    capture(spark, lake, little_stream(source))
    close(spark, lake, "little")
    before = lake_contents.tape(lake), lake_contents.feed(lake)
    with pytest.raises(InvalidRequestError, match="CAP-CLOSED"):
        put_back(spark, lake, "little")
    assert (lake_contents.tape(lake), lake_contents.feed(lake)) == before


def test_workers_left_open_by_a_killed_batch_advance(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    capture(spark, lake, stream)
    stood = frontier(lake)
    lay(source, "2", [(700, "east", START + 20 * HOUR, 1, "another place")])
    with instrumentation.subscribe(cut_off), pytest.raises(StreamingQueryException):
        capture(spark, lake, stream)
    # The batch is lost with its checkpoint, and the source has nothing more to offer.
    for file in source.iterdir():
        file.unlink()
    capture(spark, lake, stream, reseat=True)

    assert put_back(spark, lake, "little").records == 2

    assert frontier(lake) == stood
    lay(source, "3", [(701, "a", START, 1, "too late")])
    assert capture(spark, lake, stream).late == {"late": 1}
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def cut_off(point: str, _: dict[str, object]) -> None:
    if point == "capture.workers":
        raise InterruptedError


def moved_to(checkpoint: Path, source: Path) -> None:
    """Have a stored checkpoint read on in another folder than the one that it knows."""
    for file in checkpoint.rglob("*"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace("/SOURCE/", f"{source}/"), encoding="utf-8")


class TestIdle:
    IDLE = timedelta(days=2)

    def stream(self, source: Path, **time: object) -> Stream:
        stream = little_stream(source)
        assert isinstance(stream.time, EventTime)
        return replace(stream, time=replace(stream.time, idle_after=self.IDLE, **time))

    def test_the_clock_moves_the_frontier_of_a_source_that_is_idle(
        self, spark: SparkSession, lake: Lake, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = self.stream(source, max_ahead=timedelta(days=30))
        capture(spark, lake, stream)
        stood = frontier(lake)
        assert stood == START + 17 * HOUR
        tape = open_tape(lake, "little")
        now = datetime.now(UTC)
        # Something has come a moment ago, by the clock of the commits.
        assert synthetic_batch.idle_detail(tape, stream, now) is None
        later = now + self.IDLE + HOUR
        detail = synthetic_batch.idle_detail(tape, stream, later)
        assert detail is not None
        assert detail["workers"] == [0, 1, 2]

        monkeypatch.setattr("capstan.capture.run.now", lambda: later)
        done = capture(spark, lake, stream)

        assert (done.batches, done.fed) == (0, 0)
        moved = (later - self.IDLE - 2 * HOUR).replace(minute=0, second=0, microsecond=0)
        assert frontier(lake) == moved
        # A second one in the same hour moves nothing; a clock that jumps back neither.
        before = lake_contents.tape(lake)
        capture(spark, lake, stream)
        monkeypatch.setattr("capstan.capture.run.now", lambda: START)
        capture(spark, lake, stream)
        assert lake_contents.tape(lake) == before
        # What comes then is judged by it, and is not taken for a record of a far future.
        lay(source, "2", [(700, "a", moved + HOUR, 1, "new"), (701, "b", START, 1, "too late")])
        done = capture(spark, lake, stream)
        assert (done.records, done.late) == (1, {"late": 1})
        assert verify(spark, lake, tape, deep=True).valid

    def test_only_idle_workers_move_among_own_watermarks(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "source"
        lay(source, "0", rows(range(40)))
        stream = self.stream(source, watermark="worker")
        capture(spark, lake, stream)
        between = datetime.now(UTC)
        # Records of the first worker alone.
        lay(source, "1", rows([42]))
        capture(spark, lake, stream)
        tape = open_tape(lake, "little")

        def held() -> list[int]:
            states = index.worker_states(tape, newest_cut(tape))
            return [state.frontier.elements[0][0] for state in states]

        before = held()
        monkeypatch.setattr("capstan.capture.run.now", lambda: between + self.IDLE)
        capture(spark, lake, stream)
        assert held()[0] == before[0] < held()[1] == held()[2]
        assert verify(spark, lake, tape).valid


def _without_causes(lake: Lake) -> dict[str, list[str]]:
    """The rows of a tape; those of late records do not say why they are late."""
    causes, tape = ("field", "error", "file"), lake_contents.tape(lake)
    late = [{k: v for k, v in json.loads(row).items() if k not in causes} for row in tape["late"]]
    return {**tape, "late": sorted(json.dumps(row, sort_keys=True) for row in late)}


class TestFormats:
    def test_a_format_1_tape_is_unchanged_and_continues(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, source: Path
    ) -> None:
        stream = little_stream(source)
        old = Lake.at(tmp_path / "old")
        shutil.copytree(FORMATS / "1" / "little", old.stream("little").root)
        tape = open_tape(old, "little")
        assert format_of(tape.paths.events) == 1
        assert verify(spark, old, tape, deep=True).valid
        capture(spark, lake, stream)
        assert lake_contents.tape(old) == _without_causes(lake)
        actual = replay(spark, old, declared(stream), Request("little", "all", partial=True))
        assert actual.certificate.published
        replay(spark, lake, declared(stream), Request("little", "all", partial=True))
        assert lake_contents.rows(old.table("all")) == lake_contents.rows(lake.table("all")) != []

        # Who writes on it brings it up to this format, and goes on from the same checkpoint.
        moved_to(Path(tape.paths.checkpoint), source)
        lay(source, "2", rows(range(40, 44)))
        for item in (old, lake):
            assert capture(spark, item, stream).records == 4
            assert put_back(spark, item, "little").records == 2
        assert format_of(tape.paths.events) == schema.FORMAT
        assert lake_contents.tape(old) == _without_causes(lake)
        assert verify(spark, old, tape, deep=True).valid

    def test_a_format_1_tape_is_upgraded_at_the_first_write(
        self, spark: SparkSession, lake: Lake, source: Path
    ) -> None:
        stream = little_stream(source)
        capture(spark, lake, stream)
        paths = open_tape(lake, "little").paths
        # As it was before there was a feed.
        shutil.rmtree(paths.feed)
        arrow_writer.set_properties(paths.events, {"capstan.format": "1"})
        tape = open_tape(lake, "little")
        assert verify(spark, lake, tape, deep=True).valid
        assert count_late(tape, newest_cut(tape)) == {"late": 2, "unknown-worker": 1}

        with instrumentation.subscribe(lambda point, facts: reached.append((point, facts))):
            reached: list[tuple[str, dict[str, object]]] = []
            assert put_back(spark, lake, "little").records == 2
            lay(source, "2", rows(range(40, 44)))
            assert capture(spark, lake, stream).records == 4

        assert [facts for point, facts in reached if point == "tape.upgrade"] == [
            {"stream": "little", "format": 2}
        ]
        properties = delta.open_table(paths.events).metadata().configuration
        assert properties["capstan.format"] == str(schema.FORMAT)
        assert verify(spark, lake, tape, deep=True).valid
        require_all_fed(lake, 47)

    @pytest.mark.parametrize(
        ("newer", "refusal"),
        [
            (schema.STAMPED_FORMAT, "CAP-STAMP: stream little has messages under several times"),
            (schema.SETTLED_FORMAT + 1, "CAP-FORMAT.*format 6; this Capstan reads formats 1 to 5"),
        ],
    )
    def test_a_newer_one_is_refused_before_anything_is_written(
        self, spark: SparkSession, lake: Lake, source: Path, newer: int, refusal: str
    ) -> None:
        stream = little_stream(source)
        capture(spark, lake, stream)
        paths = open_tape(lake, "little").paths
        arrow_writer.set_properties(paths.events, {"capstan.format": str(newer)})
        before = lake_contents.rows(paths.records)
        for write in (
            lambda: capture(spark, lake, stream),
            lambda: put_back(spark, lake, "little"),
            lambda: close(spark, lake, "little"),
        ):
            with pytest.raises(CapstanError, match=f"^{refusal}"):
                write()
        assert lake_contents.rows(paths.records) == before


def test_a_table_with_a_time_of_its_own_cannot_place_them(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source)
    capture(spark, lake, stream)
    put_back(spark, lake, "little")
    own = Target(name="own", worker="place", time="at", columns=("id", "place", "at"))
    known = declared(stream, targets={"own": own})
    early = {"since": "2024-05-01", "until": "2024-05-01T03:00:00Z"}
    for requested in ({}, early):
        with pytest.raises(
            InvalidRequestError, match="CAP-OWN-TIME: 2 late records .* outside the range"
        ):
            replay(spark, lake, known, Request("little", "own", partial=True, **requested))  # type: ignore[arg-type]
        assert delta.version_of(lake.table("own")) is None
    # Where none of them lies the table is as good as any.
    late = {"since": "2024-05-01T03:00:00Z", "until": "2024-05-01T06:00:00Z"}
    done = replay(spark, lake, known, Request("little", "own", **late))
    assert done.certificate.published is True
    whole = replay(spark, lake, known, Request("little", "copy", partial=True))
    assert whole.certificate.published is True
