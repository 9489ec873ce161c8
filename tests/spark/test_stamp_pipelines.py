"""Pipelines, transforms and merges over streams whose messages have several times, or none."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from capstan.audit import played_records
from capstan.audit.row_view import has_stamps
from capstan.backfill.planner import BackfillRequest
from capstan.backfill.survey import survey
from capstan.cli import main
from capstan.core.config import Mode, ProjectConfig, Replay, Target, Transform
from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.pipeline import STAMP, pipelines, reach_of
from capstan.pipeline.spark.runner import play, require_fit
from capstan.replay.output.row_times import require_own_times
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.run import replay, rollback
from capstan.replay.target import engine_sample
from capstan.storage.delta import delta
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.storage.tape.upgrade import take_stamps
from capstan.telemetry.instrumentation import subscribe
from tests.support.contexts import backfill
from tests.support.jvmless_lake import lay_records
from tests.support.socket_senders import heard
from tests.support.stamped_streams import (
    MODELS,
    Rows,
    Sent,
    expected,
    form,
    frames,
    put,
    recordings,
    shown,
)

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from capstan.storage.lake import Lake
    from capstan.storage.ledger.certificate import Certificate

TRANSFORMS = (
    Transform(
        name="sizes",
        sql="SELECT _worker, _time, f0, size(_stamp) AS n, array_max(_stamp).t AS last "
        "FROM records",
        time="_time",
        worker="_worker",
    ),
    Transform(
        name="by_time",
        sql="SELECT array_min(_stamp).t AS at, count(*) AS n, sum(size(_stamp)) AS times "
        "FROM records GROUP BY ALL",
        time="at",
    ),
    Transform(
        name="greatest",
        sql="SELECT _time, f0, max(f1) AS f1 FROM records GROUP BY ALL",
        time="_time",
        keys=("f0",),
    ),
    # Their rows leave the place of their records.
    Transform(name="each", sql="SELECT explode(_stamp) AS _time, f1 FROM records", time="_time"),
    Transform(
        name="fours",
        sql="SELECT at - at % 4 AS at, count(*) AS n FROM records LATERAL VIEW "
        "explode(_stamp.t) AS at GROUP BY ALL",
        time="at",
        grain=timedelta(microseconds=4),
    ),
)

BY_DAY = Transform(
    name="by_day",
    sql="SELECT date_trunc('DAY', _time.event) AS day, max(upper(_stamp)) AS last FROM records "
    "GROUP BY ALL",
    time="day",
)
"""Of a stream with a text that is named as the stamp."""


class Stamped:
    """A stream with stamps on tape, its records, and replays of it."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake
        self.sent: list[Sent] = []
        transforms = {each.name: each for each in TRANSFORMS}
        # A copy would have no such column; the transform has.
        targets = {"own": Target(name="own", time="at")}
        self.config = ProjectConfig(Path("streams.yaml"), {}, transforms, targets, {})

    @property
    def timeless(self) -> int:
        """The number of its records under no time."""
        return sum(not each.stamp for each in self.sent)

    def replay(self, into: str, **asked: Any) -> Certificate:
        """Replay it into a table."""
        done = replay(self.spark, self.lake, self.config, Request("sent", into, **asked))
        assert done.certificate is not None
        return done.certificate

    def rows(self, name: str, into: str) -> Rows:
        """The rows of a table, as the model of a pipeline has them."""
        return shown(name, (row.asDict(recursive=True) for row in self.table(into)))

    def table(self, into: str) -> list[Row]:
        """The rows of a table."""
        return delta.load(self.spark, self.lake.table(into)).collect()


@pytest.fixture
def stamped(spark: SparkSession, lake: Lake, tmp_path: Path) -> Stamped:
    made = Stamped(spark, lake)
    made.sent = put(spark, lake, "sent", tmp_path / "files", 25)
    return made


@pytest.mark.parametrize("name", sorted(MODELS))
def test_spark_the_engine_and_each_record_agree(stamped: Stamped, name: str) -> None:
    tape, pipeline = open_tape(stamped.lake, "sent", stamps=True), pipelines().get(name)
    cut = newest_cut(tape)
    workers = index.worker_labels(tape, cut)
    reach = reach_of(pipeline, tape.time_type, Box.everything(tape.time_type), Antichain())
    region = Region(Box((0,), (None,)))
    records = played_records(stamped.spark, tape, cut, workers, region, place=True, stamp=True)
    for engine in (False, True):
        run = play(stamped.spark, records, pipeline, reach, engine=engine)
        rows = [row.asDict(recursive=True) for row in run.sinks["out"].collect()]
        run.release()
        assert shown(name, rows) == expected(name, stamped.sent)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_ranges_together_are_the_whole(stamped: Stamped, name: str) -> None:
    whole = stamped.replay("whole", pipeline=name)
    assert stamped.rows(name, "whole") == expected(name, stamped.sent)
    timeless = {"read": 0, "left_out": stamped.timeless}
    assert (whole.timeless, whole.records) == (timeless, len(stamped.sent) - stamped.timeless)
    # Records are at each of the bounds.
    runs = [
        stamped.replay("parts", pipeline=name, since=since, until=until)
        for since, until in pairwise((None, "6", "9", "12", None))
    ]
    assert stamped.rows(name, "parts") == expected(name, stamped.sent)
    assert all(run.timeless == timeless for run in runs)
    before = stamped.rows(name, "parts")
    rollback(stamped.spark, stamped.lake, stamped.config, str(runs[2].run))
    assert stamped.rows(name, "parts") < before
    stamped.replay("parts", pipeline=name, since="9", until="12")
    assert stamped.rows(name, "parts") == before
    assert main(["--lake", stamped.lake.root, "audit", str(runs[1].run), "--deep"]) == 0


@pytest.mark.parametrize(
    ("name", "keys"), [("stamp_windows", ()), ("stamp_pairs", ()), ("stamp_sessions", ("f0",))]
)
def test_the_engine_computes_a_part_again(
    stamped: Stamped, monkeypatch: pytest.MonkeyPatch, name: str, keys: tuple[str, ...]
) -> None:
    monkeypatch.setattr(engine_sample, "FEW_RECORDS", 5)
    audit = stamped.replay("part", pipeline=name).audit
    assert audit is not None
    assert (audit["passed"], audit["engine"].get("keys", ())) == (True, keys)
    assert stamped.rows(name, "part") == expected(name, stamped.sent)


@pytest.mark.parametrize("name", ["stamp_pairs", "stamp_states", "stamp_windows"])
def test_a_follower_goes_on_with_its_state(spark: SparkSession, lake: Lake, name: str) -> None:
    stamped = Stamped(spark, lake)
    recorded, stamped.sent = recordings(25)
    bytes_of = [[frames([event]) for event in events] for events in recorded]
    ends = [len(each) * 3 // 4 for each in bytes_of]
    first = {n: b"".join(each[: ends[n]]) for n, each in enumerate(bytes_of)}
    rest = {n: b"".join(each[ends[n] :]) for n, each in enumerate(bytes_of)}
    heard(spark, lake, "sent", form(), first, idle=1, every=1)
    one = stamped.replay("followed", pipeline=name, follow="f")
    before = stamped.rows(name, "followed")
    heard(spark, lake, "sent", form(), rest, every=1)
    two = stamped.replay("followed", pipeline=name, follow="f")
    assert two.pipeline is not None
    assert two.pipeline["resumed"] is not None
    assert stamped.rows(name, "followed") == expected(name, stamped.sent)
    assert one.records + two.records == len(stamped.sent) - stamped.timeless
    assert main(["--lake", lake.root, "state", name]) == 0
    rollback(spark, lake, stamped.config, str(two.run))
    assert 0 < before.total() == stamped.rows(name, "followed").total()


def sizes_of(sent: list[Sent]) -> Counter[tuple[object, ...]]:
    """What the transform `sizes` makes of records."""
    return Counter(
        (s.worker, s.time if s.stamp else None, s.key, len(s.stamp), max(s.stamp, default=None))
        for s in sent
    )


def test_transforms_see_the_stamp(stamped: Stamped) -> None:
    def found(into: str) -> Counter[tuple[object, ...]]:
        rows = stamped.table(into)
        return Counter((r[0], None if r[1] is None else r[1][0], *r[2:]) for r in rows)

    timed = [each for each in stamped.sent if each.stamp]
    for since, until in pairwise((None, "6", "13", None)):
        part = stamped.replay("parts", transform="sizes", since=since, until=until)
        assert part.timeless == {"read": 0, "left_out": stamped.timeless}
    assert found("parts") == sizes_of(timed)
    # What has no time is in a range without bounds alone, and its rows have none.
    whole = stamped.replay("whole", transform="sizes")
    assert whole.timeless == {"read": stamped.timeless, "left_out": 0}
    assert found("whole") == sizes_of(stamped.sent)
    rollback(stamped.spark, stamped.lake, stamped.config, str(whole.run))
    assert not stamped.table("whole")


def test_a_table_with_a_time_of_its_own_is_filled_and_rolled_back(stamped: Stamped) -> None:
    model: dict[int, tuple[int, int]] = {}
    for each in stamped.sent:
        if each.stamp:
            count, times = model.get(each.time, (0, 0))
            model[each.time] = count + 1, times + len(each.stamp)
    runs = [
        stamped.replay("own", transform="by_time", since=since, until=until)
        for since, until in (("0", "9"), ("9", None))
    ]
    assert {row["at"]: (row["n"], row["times"]) for row in stamped.table("own")} == model
    rollback(stamped.spark, stamped.lake, stamped.config, str(runs[1].run))
    assert {row["at"] for row in stamped.table("own")} == {at for at in model if at < 9}


@pytest.mark.parametrize(("name", "since"), [("each", "100"), ("each", "5"), ("fours", "8")])
def test_rows_keep_the_place_of_their_records(stamped: Stamped, name: str, since: str) -> None:
    """Also in a range without a record, which would take the rows of earlier ones away."""
    stamped.replay("moved", transform=name)
    rows = Counter(stamped.table("moved"))
    with pytest.raises(InvalidRequestError, match=f"{name} puts records whose `_time` is") as told:
        stamped.replay("moved", transform=name, since=since)
    assert told.value.code == "CAP-STAMP"
    assert Counter(stamped.table("moved")) == rows


def test_merges_take_the_latest(stamped: Stamped) -> None:
    timed = [each for each in stamped.sent if each.stamp]
    ranges = list(pairwise((None, "5", "11", None)))
    latest = {}
    for key in "ab":
        last = max(each.time for each in timed if each.key == key)
        latest[key] = max(each.number for each in timed if (each.key, each.time) == (key, last))
    for since, until in ranges:
        asked = {"transform": "greatest", "mode": Mode.MERGE, "since": since, "until": until}
        stamped.replay("latest", **asked)
    assert {row["f0"]: row["f1"] for row in stamped.table("latest")} == latest
    # What has no time is before all times.
    stamped.replay("at_once", transform="greatest", mode=Mode.MERGE)
    assert {row["f0"]: row["f1"] for row in stamped.table("at_once")} == latest
    for since, until in reversed(ranges):
        asked = {"sequence_by": ("f1",), "keys": ("f0",), "since": since, "until": until}
        stamped.replay("greatest", mode=Mode.MERGE, **asked)
    found = {row["f0"]: row["f1"] for row in stamped.table("greatest")}
    assert found == {key: max(s.number for s in timed if s.key == key) for key in "ab"}


@pytest.mark.parametrize("name", [None, "stamp_sizes", "stamp_windows"])
def test_a_backfill_fills_the_gaps(stamped: Stamped, name: str | None) -> None:
    """Of copies, several intervals are carried out together."""
    declared = Replay(name="fill", stream="sent", target="filled", pipeline=name)
    config = dataclasses.replace(stamped.config, replays={"fill": declared})
    request = BackfillRequest("fill", every="6", chunk=1)
    steps: list[str] = []
    with subscribe(lambda point, _: steps.append(point)):
        done = backfill(stamped.spark, stamped.lake, config, request)
    assert done.error is None
    begun = [step for step in steps if step in ("replay.claim", "replay.intent")]
    assert begun[1] == ("replay.claim" if name is None else "replay.intent")
    if name is not None:
        assert stamped.rows(name, "filled") == expected(name, stamped.sent)
    else:
        rows = Counter(
            (r["_worker"], r["_time"][0], r["f0"], r["f1"]) for r in stamped.table("filled")
        )
        assert rows == Counter((s.worker, s.time, s.key, s.number) for s in stamped.sent if s.stamp)
    states = [str(i.state) for i in survey(stamped.lake, config, "fill", every=6).intervals]
    assert states == ["covered"] * len(states)


def test_a_column_of_the_stream_hides_the_stamp(spark: SparkSession, lake: Lake) -> None:
    time = {"event": datetime(2024, 5, 1, tzinfo=UTC)}
    row = {"worker": 0, "batch": 0, "time": time, "pos": 0, "data": {STAMP: "mine"}}
    lay_records(lake, "own", ["a"], pa.Table.from_pylist([row]))
    tape = open_tape(lake, "own")
    region = Region(Box.everything(tape.time_type))
    read = played_records(spark, tape, newest_cut(tape), {0: "a"}, region, stamp=True)
    assert [each[STAMP] for each in read.collect()] == ["mine"]
    assert not has_stamps(read.schema)
    pipeline = pipelines().get("stamp_sizes")
    reach = reach_of(pipeline, tape.time_type, region.box, Antichain())
    with pytest.raises(InvalidRequestError, match="reads f0, but the stream has"):
        require_fit(
            read.withColumn(STAMP, F.array(F.lit(1).cast("bigint"))), pipeline, "out", reach
        )
    with pytest.raises(InvalidRequestError, match="_stamp as array<bigint>, but the stream has it"):
        require_fit(read, pipeline, "out", reach)
    # Of a tape without stamps, and of one with them.
    config = ProjectConfig(Path("streams.yaml"), {}, {BY_DAY.name: BY_DAY}, {}, {})
    for stamped in (False, True):
        if stamped:
            take_stamps(tape)
        request = Request("own", "t", transform=BY_DAY.name, since="2024-04-30T12:00")
        plan = make_plan(lake, config, request)
        assert (plan.computation.reads_stamp, plan.inputs.tape.stamped) == (True, stamped)
        with pytest.raises(InvalidRequestError, match="CAP-GRAIN"):
            require_own_times(spark, plan)


def test_of_single_times_the_stamp_is_the_time(spark: SparkSession, lake: Lake) -> None:
    """No column of the tape is read for it."""
    time = {"event": datetime(2024, 5, 1, tzinfo=UTC)}
    row = {"worker": 0, "batch": 0, "time": time, "pos": 0, "data": {"n": 7}}
    lay_records(lake, "single", ["a"], pa.Table.from_pylist([row]))
    tape = open_tape(lake, "single")
    of = spark, tape, newest_cut(tape), {0: "a"}, Region(Box.everything(tape.time_type))
    [each] = played_records(*of, stamp=True).collect()
    assert each[STAMP] == [each["_time"]]
    assert STAMP not in played_records(*of).columns
