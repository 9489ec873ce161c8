"""Backfills in Spark: chunks are one run over all, what stands is left alone, failures are told."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.backfill.pauses import set_paused
from capstan.backfill.planner import BackfillMode, BackfillRequest
from capstan.backfill.run import BackfillResult
from capstan.backfill.survey import survey
from capstan.capture.run import capture
from capstan.cli import main
from capstan.core.config import Mode, Order, ProjectConfig, Replay, Transform
from capstan.errors import InvalidRequestError
from capstan.jobs import handlers
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.telemetry import instrumentation
from tests.support import lake_contents
from tests.support.contexts import DeclaredContext, backfill
from tests.support.sample_streams import HOUR, START, SUM_BY_DAY, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Six days and three hours, of which the last hour can still receive records.
ROWS = rows(range(6 * 24 + 3), step=HOUR)
UNTIL = START + timedelta(days=6)


class Killed(BaseException):
    """Ends the work as a kill does: nobody catches it."""


class Days:
    """Six days on tape, and short ways to backfill them."""

    def __init__(self, spark: SparkSession, lake: Lake, declarations: ProjectConfig) -> None:
        self.spark, self.lake, self.declarations = spark, lake, declarations

    def fill(self, name: str, **asked: object) -> BackfillResult:
        request = BackfillRequest(name, **asked)  # type: ignore[arg-type]
        return backfill(self.spark, self.lake, self.declarations, request)

    def states(self, name: str) -> list[str]:
        return [
            str(interval.state) for interval in survey(self.lake, self.declarations, name).intervals
        ]

    def version(self, target: str) -> int | None:
        return delta.version_of(self.lake.table(target))

    def ledgers(self) -> list[int | None]:
        names = ("runs", "coverage", "claims")
        return [delta.version_of(self.lake.ledger(name)) for name in names]

    def rows(self, target: str) -> list[str]:
        return lake_contents.rows(self.lake.table(target))


def named(name: str, **more: object) -> Replay:
    fields = {"stream": "little", "target": name, "since": START, "until": UNTIL, **more}
    return Replay(name=name, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Days:
    folder: Path = tmp_path_factory.mktemp("backfill")
    lay(folder / "source", "0", ROWS)
    stream = little_stream(folder / "source")
    lake = Lake.at(folder / "lake")
    capture(spark, lake, stream)
    replays = (
        named("chunks", transform="sum_by_day"),
        named("paused", transform="sum_by_day"),
        named("newest"),
        named("stale", transform="sum_by_day"),
        named("guarded"),
        named("asked", approve=True),
        named("kept", transform="sum_by_day"),
        named("added", mode=Mode.APPEND),
    )
    known = declared(stream, (SUM_BY_DAY,), {})
    return Days(spark, lake, replace(known, replays={item.name: item for item in replays}))


def test_chunks_are_one_run_over_all_and_twice_changes_nothing(days: Days) -> None:
    whole = Request(
        "little", "whole", since=START.isoformat(), until=UNTIL.isoformat(), transform="sum_by_day"
    )
    replay(days.spark, days.lake, days.declarations, whole)
    assert days.states("chunks") == ["gap"] * 6
    points: list[dict[str, object]] = []

    with instrumentation.subscribe(
        lambda p, facts: points.append(facts) if p == "backfill.run" else None
    ):
        actual = days.fill("chunks", chunk=2)

    assert actual.error is None
    value = actual.to_json()
    assert (value["done"], value["unchanged"], value["failed"], value["left"]) == (3, 0, 0, 0)
    assert [(point["number"], point["of"]) for point in points] == [(1, 3), (2, 3), (3, 3)]
    json.dumps(value)
    assert days.rows("chunks") == days.rows("whole")
    assert len(days.rows("chunks")) == 18
    assert days.states("chunks") == ["covered"] * 6

    before = days.version("chunks"), days.ledgers()
    assert days.fill("chunks", chunk=2).replays == ()
    again = days.fill("chunks", what=BackfillMode.ALL, chunk=2).to_json()
    assert (again["done"], again["unchanged"]) == (0, 3)
    assert (days.version("chunks"), days.ledgers()) == before


def test_what_was_paused_goes_on_where_it_was(days: Days) -> None:
    def pause(point: str, _: object) -> None:
        if point == "backfill.run":
            set_paused(days.lake, "paused", paused=True)

    with instrumentation.subscribe(pause):
        actual = days.fill("paused", chunk=2)
    assert actual.held is not None
    assert (actual.held.code, actual.to_json()["left"]) == ("CAP-PAUSED", 2)
    assert days.states("paused") == ["covered"] * 2 + ["gap"] * 4
    set_paused(days.lake, "paused", paused=False)
    value = days.fill("paused", chunk=2).to_json()
    assert (value["done"], value["unchanged"], value["left"]) == (2, 0, 0)
    assert days.states("paused") == ["covered"] * 6


@pytest.mark.parametrize("point", ["replay.claim", "replay.publish"])
def test_what_was_killed_goes_on_with_the_chunk_that_is_missing(days: Days, point: str) -> None:
    name = "newest"
    seen: list[object] = []

    def kill(reached: str, facts: dict[str, object]) -> None:
        if reached == "replay.claim":
            seen.append(facts["run"])
        if reached == point:
            raise Killed

    target = f"killed_{point.rpartition('.')[2]}"
    declarations = replace(days.declarations, replays={name: named(name, target=target)})
    requested = BackfillRequest(name, order=Order.NEWEST, chunk=3)
    with instrumentation.subscribe(kill), pytest.raises(Killed):
        backfill(days.spark, days.lake, declarations, requested)

    actual = backfill(days.spark, days.lake, declarations, requested)

    assert actual.error is None
    assert actual.to_json()["runs"][0]["run"] == seen[0]  # type: ignore[index]
    since = [str(item.since)[:10] for item in actual.replays]
    assert since == ["2024-05-04", "2024-05-01"]
    assert lake_contents.publishes(days.lake, target, str(seen[0])) == 1
    ids = [json.loads(row)["id"] for row in days.rows(target)]
    assert sorted(ids) == list(range(6 * 24))


def test_changed_code_makes_everything_stale_and_stale_mends_it(days: Days) -> None:
    assert days.fill("stale").to_json()["done"] == 1
    assert days.states("stale") == ["covered"] * 6
    changed = Transform(
        name="sum_by_day",
        sql=str(SUM_BY_DAY.sql).replace("sum(amount)", "-sum(amount)"),
        time="day",
        grain=timedelta(days=1),
        worker="_worker",
    )
    known = replace(days.declarations, transforms={"sum_by_day": changed})
    later = Days(days.spark, days.lake, known)
    assert later.states("stale") == ["stale"] * 6
    version = later.version("stale")

    assert later.fill("stale").replays == ()
    actual = later.fill("stale", what=BackfillMode.STALE, chunk=3)

    assert (actual.error, actual.to_json()["done"]) == (None, 2)
    assert later.states("stale") == ["covered"] * 6
    assert later.version("stale") == (version or 0) + 2
    assert all(json.loads(row)["amount"] <= 0 for row in later.rows("stale"))


@pytest.mark.nightly
def test_a_failed_interval_stops_unless_told_to_keep_going(days: Days) -> None:
    first = Request("little", "guarded", since="2024-05-01", until="2024-05-02")
    replay(days.spark, days.lake, days.declarations, first)
    table = f"delta.`{days.lake.table('guarded')}`"
    # Rows of the third day that no replay has put there.
    days.spark.sql(
        f"INSERT INTO {table} SELECT _worker, named_struct('event', _time.event + INTERVAL 2 DAYS)"
        f", id, place, at, amount, note FROM {table}"
    )

    actual = days.fill("guarded", chunk=1)

    assert actual.error is not None
    assert (actual.error.code, actual.error.exit_code) == ("CAP-ADOPT", 2)
    value = actual.to_json()
    assert (value["done"], value["failed"], value["left"]) == (1, 1, 3)
    assert [item.get("error") for item in value["runs"]][:2] == [None, "CAP-ADOPT"]  # type: ignore[attr-defined]

    answer = handlers.fill_all(
        DeclaredContext(days.lake, days.declarations, days.spark),
        [
            BackfillRequest("guarded", chunk=1, keep_going=True),
            BackfillRequest("guarded", adopt=True),
        ],
    )

    assert answer.refusal is not None
    assert answer.refusal.code == "CAP-ADOPT"
    one, other = answer.value["backfills"]  # type: ignore[misc]
    assert (one["done"], one["failed"], one["left"], one["error"]) == (3, 1, 0, "CAP-ADOPT")
    assert (other["done"], other["failed"]) == (1, 0)
    assert days.states("guarded") == ["covered"] * 6


def test_what_a_person_approves_is_not_published(days: Days) -> None:
    actual = days.fill("asked").to_json()
    [run] = actual["runs"]  # type: ignore[misc]
    assert (run["published"], run["target_version"]) == (False, None)
    assert days.states("asked") == ["waiting"] * 6
    # Somebody has to decide: nothing is staged anew.
    assert [days.fill("asked", what=what).replays for what in BackfillMode] == [()] * 4


STREAMS = """
streams:
  little:
    source: {format: parquet, path: "{lake}/source", schema: "id BIGINT, at TIMESTAMP"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour}
replays:
  typed: {stream: little, target: typed, since: 2024-05-01, until: 2024-05-03}
"""


def test_the_command_fills_and_prints_one_object(
    days: Days, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "streams.yaml").write_text(STREAMS, encoding="utf-8")
    shared = ["--lake", days.lake.root, "--config", str(tmp_path / "streams.yaml")]

    assert main(["backfill", "typed", "--order", "newest", "--json", *shared]) == 0

    out, err = capsys.readouterr()
    assert (err, out.count("\n")) == ("", 1)
    actual = json.loads(out)
    assert (actual["done"], actual["left"], actual["runs"][0]["records"]) == (1, 0, 48)
    assert main(["gaps", "typed", *shared]) == 0
    assert main(["backfill", "typed", "--all", "--every", "1 day", *shared]) == 0
    assert "already published" in capsys.readouterr().out


@pytest.mark.nightly
def test_what_is_captured_later_changes_no_interval_that_stands(days: Days) -> None:
    names = ("kept", "added")
    assert [days.fill(name, chunk=3).to_json()["done"] for name in names] == [2, 2]
    before = [days.version(name) for name in names], days.ledgers()
    source = Path(days.lake.root).with_name("source")
    lay(source, "1", rows(range(6 * 24 + 3, 8 * 24), step=HOUR))
    assert capture(days.spark, days.lake, little_stream(source)).batches == 1

    def again(name: str, **asked: object) -> ReplayResult:
        declared = days.declarations.replays[name]
        request = Request("little", name, replay=name, transform=declared.transform,
                          mode=declared.mode, **{**asked, "since": "2024-05-01"})  # type: ignore[arg-type]  # fmt: skip
        return replay(days.spark, days.lake, days.declarations, request)

    assert all(again(name, until="2024-05-04").unchanged for name in names)
    # Part of what stands: of rows that replace others it is a run, of others it would double them.
    with pytest.raises(InvalidRequestError, match="^CAP-APPEND: "):
        again("added", until="2024-05-05")
    assert ([days.version(name) for name in names], days.ledgers()) == before

    days.spark.sql(f"DELETE FROM delta.`{days.lake.table('kept')}` WHERE day = '2024-05-02'")
    mended = again("kept", until="2024-05-04")
    assert not mended.unchanged
    assert again("kept", until="2024-05-04").certificate.run == mended.certificate.run
    assert len(days.rows("kept")) == 18
