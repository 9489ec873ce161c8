"""Replays through pipelines: what comes out, over edges, aside; what fails, what is taken back."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.cli import main
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.pipeline import definition
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.replay.execution.approval import Decision
from capstan.replay.result import ReplayResult
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.lake import exists
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.runs import Step
from tests.support import two_sink_pipeline
from tests.support.pipeline_samples import REFERENCES
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, START, lay, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


# Half an hour apart: five days, of which all but the last two hours are complete.
ROWS = rows(range(240))
FIRST = 150
DAY2, DAY4 = "2024-05-02", "2024-05-04"
HOUR = timedelta(hours=1)


class Piped(Play):
    """A tape, and short ways to replay it through a pipeline."""

    def __call__(self, into: str, pipeline: str = "places", **asked: object) -> ReplayResult:
        return super().__call__(into, pipeline=pipeline, **asked)

    def multiset(self, into: str) -> Counter[tuple[object, ...]]:
        return Counter(json.dumps(row, default=str) for row in self.rows(into).rows())  # type: ignore[misc]

    def history(self, into: str) -> runs.History:
        return next(iter(runs.read_histories(self.lake, target=self.lake.table(into)).values()))


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Piped:
    folder = tmp_path_factory.mktemp("piped")
    first = Piped.of(spark, folder, ROWS[:FIRST])
    made = replace(first, declarations=replace(first.declarations, pipelines=REFERENCES))
    # What is followed is played once before the rest is there.
    made("followed", sink="pairs", follow="nightly", peers=2)
    lay(folder / "source", "1", ROWS[FIRST:])
    capture(spark, made.lake, made.declarations.streams[NAME])
    return made


def by_hour(first: int, after: int) -> dict[tuple[str, datetime], list[int]]:
    """Amounts that are not set aside by place and hour, of the rows with these numbers."""
    actual: dict[tuple[str, datetime], list[int]] = {}
    for number in range(first, after):
        _, place, at, amount, _ = ROWS[number]
        assert at is not None
        assert amount is not None
        if amount % 5:
            hour = at.replace(minute=0)
            actual.setdefault((str(place), hour), []).append(amount)
    return actual


def test_a_sink_goes_into_its_table(play: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    held = play("hours", sink="hours", since=DAY2, until=DAY4, peers=3, approve=True)
    run = str(held.certificate.run)
    assert play.rows("hours").height == 0
    diff = held.certificate.diff
    assert isinstance(diff, dict)
    with monkeypatch.context() as patch:
        patch.setattr(definition, "_text", lambda pipeline, module: "other")
        with pytest.raises(
            InvalidRequestError, match="^CAP-CODE: pipeline places at hours is not what"
        ):
            play.publish(run, Decision("ann"))
    assert play.rows("hours").height == 0
    done = play.publish(run, Decision("ann")).certificate.to_json()

    expected = by_hour(48, 144)
    got = play.rows("hours").select("place", "window_start", "rows", "sum_amount").rows()
    assert {(place, hour): (n, total) for place, hour, n, total in got} == {
        at: (len(amounts), sum(amounts)) for at, amounts in expected.items()
    }
    assert len(got) == len(expected) == diff["added"]
    audit, printed = done["audit"], done["pipeline"]
    assert isinstance(audit, dict)
    assert isinstance(printed, dict)
    assert (audit["kind"], audit["passed"]) == ("pipeline", True)
    # Eight hours before and two after the range are read, and what comes of them is left out.
    assert done["records"] == 96 + 2 * 8 + 2 * 2
    around = by_hour(48 - 16, 48), by_hour(144, 148)
    aside = [n for n in range(32, 148) if n % 5 == 0]
    assert printed == {
        "name": "places",
        "sink": "hours",
        "reads": {"since": "2024-05-01T16:00:00.000000Z", "until": "2024-05-04T02:00:00.000000Z"},
        "resumed": None,
        "trimmed": sum(map(len, around)),
        "put_aside": [{"node": "odd", "output": "side", "rows": len(aside)}],
    }
    kept = pl.read_delta(play.lake.side_outputs("places")).filter(pl.col("run") == run)
    assert sorted(json.loads(row)["id"] for row in kept["row"]) == aside
    assert set(kept.select("attempt", "sink", "node", "output", "name", "target").rows()) == {
        (1, "hours", "odd", "side", "fives", play.lake.table("hours"))
    }
    metrics = pl.read_delta(play.lake.ledger("metrics")).filter(pl.col("run") == run)
    odd = metrics.filter(pl.col("node") == "odd")
    assert (odd["rows_in"].sum(), odd["side_rows"].sum()) == (done["records"], len(aside))
    # Of the graph only what the sink depends on ran.
    assert set(metrics["node"]) == {"rows", "odd", "by_hour", "hours"}
    assert not exists(str(held.certificate.staging))
    assert play("hours", sink="hours", since=DAY2, until=DAY4, peers=1).unchanged


@pytest.mark.nightly
def test_every_sink_goes_into_its_own_table_by_one_command(
    play: Piped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(f"pipelines: {{split: {two_sink_pipeline.REFERENCE!r}}}", encoding="utf-8")
    words = ["--lake", play.lake.root, "--config", str(declared), "--json", "replay", "little"]
    words += ["--pipeline", "split", "--all-sinks", "--until", DAY2, "--peers", "2"]
    reported = []
    for _ in range(2):
        capsys.readouterr()
        assert main(words) == 0
        reported.append(json.loads(capsys.readouterr().out)["runs"])
    first, again = reported
    assert [run["pipeline"]["sink"] for run in first] == ["dear", "cheap"]
    assert all(run["published"] and run["audit"]["passed"] for run in first)
    assert [run["run"] for run in again] == [run["run"] for run in first]
    amounts = [amount for _, _, _, amount, _ in ROWS[:48] if amount is not None]
    expected = {
        "dear_rows": sorted(item for item in amounts if item >= two_sink_pipeline.DEAR),
        "cheap_rows": sorted(item for item in amounts if item < two_sink_pipeline.DEAR),
    }
    assert {name: sorted(play.rows(name)["amount"]) for name in expected} == expected
    assert all(expected.values())


def test_a_followed_run_over_pieces_is_one_run_over_all(play: Piped) -> None:
    second = play("followed", sink="pairs", follow="nightly", peers=3).certificate.to_json()
    whole = play("pairs", sink="pairs").certificate.to_json()
    assert second["generation"] == 2
    assert second["until"] == whole["until"] == "2024-05-05T19:00:00.000000Z"
    # Sessions and joins reach over the edge; it lies where the first run had to stop.
    assert "2024-05-03" < str(second["since"]) < "2024-05-05"
    assert play.multiset("followed") == play.multiset("pairs")
    assert play.rows("pairs").height > 100
    assert play("followed", sink="pairs", follow="nightly").unchanged


@pytest.mark.nightly
def test_pieces_with_what_lies_ahead_are_the_whole(play: Piped) -> None:
    # At an odd hour: a window of two hours begins in the first piece and ends in the second.
    edge = "2024-05-02T13:00:00Z"
    play("pieces", sink="starts", since=DAY2, until=edge, peers=1)
    second = play("pieces", sink="starts", since=edge, until="2024-05-03", peers=2)
    expected = Counter(
        (place, hour - timedelta(hours=hour.hour % 2))
        for (place, hour), amounts in by_hour(48, 96).items()
        for _ in amounts
    )
    actual = play.rows("pieces")
    assert {(place, start): n for place, start, n in _starts(actual)} == expected
    assert actual.height == len(expected)
    assert actual["_time"].struct.field("event").to_list() == actual["window_start"].to_list()
    play.rollback(str(second.certificate.run))
    left = play.rows("pieces")
    assert {(place, start): n for place, start, n in _starts(left)} == {
        at: n for at, n in expected.items() if at[1].hour < 13
    }


def _starts(found: pl.DataFrame) -> list[tuple[str, datetime, int]]:
    return found.select("place", "window_start", "rows").rows()


def test_workers_are_played_alone_where_the_sink_keeps_them(play: Piped) -> None:
    done = play("workers", "by_worker", since=DAY2, until="2024-05-03", workers=("c", "a"))
    assert Counter(play.rows("workers")["_worker"]) == {0: 16, 2: 16}
    table = f"delta.`{play.lake.table('workers')}`"
    play.spark.sql(f"UPDATE {table} SET id = -1 WHERE _worker = 2 AND id = 50")
    history = require_auditable(play.lake, str(done.certificate.run), None)
    actual = audit_run(play.spark, play.lake, play.declarations, history).audit
    assert (actual.kind, actual.passed) == ("pipeline", False)
    assert (actual.totals["changed"], actual.differing) == (1, 1)


def test_unbounded_depends_on_the_very_first_records(play: Piped) -> None:
    done = play("firsts", "firsts", since=DAY2, until=DAY4).certificate.to_json()
    assert done["records"] == 144
    assert play.rows("firsts").height == 0
    assert done["pipeline"]["trimmed"] == 3  # type: ignore[index]


def test_an_operator_that_fails_publishes_nothing(play: Piped) -> None:
    with pytest.raises(OperatorFailed, match="a hundred") as failed:
        play("shaky", "shaky", since=DAY2, until=DAY4)
    assert failed.value.exit_code == 5
    assert failed.value.fields["node"] == "op"
    # Of the batch that row 100 was in: its first time.
    first = int((START + 24 * HOUR).timestamp()) * 1_000_000
    assert failed.value.fields["time"] == first
    assert play.rows("shaky").height == 0
    last = play.history("shaky").last
    assert (last.step, last.detail["node"]) == (Step.FAILED, "op")
    assert [claim for claim in claims.active(play.lake) if claim.run == last.run] == []


def test_a_missing_column_is_refused_before_locking(play: Piped) -> None:
    with pytest.raises(
        InvalidRequestError, match="strange reads price, but the stream has"
    ) as refused:
        play("strange", "strange", since=DAY2, until=DAY4)
    assert refused.value.code == "CAP-PIPELINE"
    assert not exists(play.lake.table("strange"))
    assert runs.read_histories(play.lake, target=play.lake.table("strange")) == {}


def test_results_that_depend_on_worker_counts_are_found(play: Piped) -> None:
    with pytest.raises(CheckFailedError, match=r"CAP-AUDIT.*\(pipeline audit\)"):
        play("unsteady", "unsteady", since=DAY2, until=DAY4, peers=3)
    assert play.rows("unsteady").height == 0


def test_output_that_depends_on_the_order_of_records_fails_its_audit(play: Piped) -> None:
    with pytest.raises(CheckFailedError, match=r"CAP-AUDIT.*\(pipeline audit\)") as failed:
        play("counted", "counted", since=DAY2, until=DAY4)

    assert failed.value.fields["totals"]["changed"] + failed.value.fields["totals"]["extra"] > 40
    assert play.rows("counted").height == 0
