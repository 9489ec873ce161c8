"""What a replay would change, and what a person then decides: approved, rejected, overtaken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from capstan.core.config import Mode, Transform
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.execution.approval import Decision, reject
from capstan.replay.planning.planner import make_plan
from capstan.replay.preview import preview
from capstan.replay.publish.diff import Difference, difference
from capstan.replay.run import unlock
from capstan.storage.delta import delta
from capstan.storage.lake import exists
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.runs import Step
from capstan.telemetry import instrumentation
from tests.bench.counters import Watch, commits
from tests.support.replay_harness import Play
from tests.support.sample_streams import SUM_BY_DAY, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Half an hour apart: five days, of which all but the last two hours are complete.
ROWS = rows(range(240))
DAY2, DAY3, DAY4 = "2024-05-02", "2024-05-03", "2024-05-04"
PLACES = Transform(name="places", sql="SELECT place, count(*) AS n FROM records GROUP BY place")
ANN = Decision("ann", reason="looks right")


class Planned(Play):
    """A tape, and a short way to plan what would change."""

    def diff(self, into: str, **asked: object) -> Difference:
        before = commits(self.lake.root)
        plan = make_plan(self.lake, self.declarations, self.request(into, **asked))
        actual = difference(self.spark, plan)
        assert commits(self.lake.root) == before, "a plan writes nothing"
        json.dumps(actual.to_json(plan.inputs.tape.time_type))
        return actual


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return Planned.of(spark, tmp_path_factory.mktemp("diff"), ROWS, (SUM_BY_DAY, PLACES))


def figures(found: Difference) -> tuple[int, int, int]:
    return found.added, found.removed, found.changed


DAMAGE = (
    "UPDATE {table} SET amount = 1000 WHERE id IN (60, 61)",
    "DELETE FROM {table} WHERE id = 62",
    "INSERT INTO {table} SELECT * FROM {table} WHERE id = 63",
    "INSERT INTO {table} SELECT * FROM {table} WHERE id = 63",
)


def test_all_rows_are_added_where_there_is_no_target(play: Planned) -> None:
    actual = play.diff("new", since=DAY2, until=DAY4)
    assert figures(actual) == (96, 0, 0)
    assert {finding.kind for finding in actual.findings} == {"missing"}
    assert len(actual.findings) == 20
    assert not exists(play.lake.table("new"))


def test_a_copy_s_plan_diff_equals_what_its_replay_does(play: Planned) -> None:
    play("copied", since=DAY2, until=DAY4)
    assert figures(play.diff("copied", since=DAY2, until=DAY4)) == (0, 0, 0)
    for statement in DAMAGE:
        play.sql(statement, "copied")
    before = play.rows("copied")
    requested: dict[str, object] = {"since": DAY2, "until": "2024-05-05"}
    actual = play.diff("copied", **requested)
    # The third day is new; of the first two 62 is missing, 63 is there three times too often.
    assert figures(actual) == (48 + 1, 3, 2)
    changed = [item for item in actual.findings if item.kind == "changed"]
    assert {(item.actual or {})["amount"] for item in changed} == {1000}
    reported = actual.to_json(
        make_plan(play.lake, play.declarations, play.request("copied")).inputs.tape.time_type
    )
    kinds = {item["kind"] for item in reported["sample"]}  # type: ignore[attr-defined]
    assert kinds <= {"added", "removed", "changed"}
    play("copied", **requested)
    after = play.rows("copied")
    assert after.height - before.height == actual.added - actual.removed
    assert figures(play.diff("copied", **requested)) == (0, 0, 0)


def test_cells_that_stay_cost_no_look_at_the_records(play: Planned) -> None:
    play("quiet", since=DAY2, until=DAY4)
    with Watch(play.spark) as watch:
        assert figures(play.diff("quiet", since=DAY2, until=DAY4)) == (0, 0, 0)
    assert watch.scans(f"{play.lake.root}/streams/little/records") == ()
    assert [scan.rows for scan in watch.scans(play.lake.table("quiet"))] == [96]


def test_a_transform_of_other_code_changes_its_rows(play: Planned) -> None:
    play("by_day", transform="sum_by_day", until=DAY4)
    assert figures(play.diff("by_day", transform="sum_by_day")) == (3, 0, 0)
    play.sql("UPDATE {table} SET amount = -1 WHERE _worker = 1", "by_day")
    actual = play.diff("by_day", transform="sum_by_day")
    assert figures(actual) == (3, 0, 3)
    assert {finding.worker for finding in actual.findings if finding.kind == "changed"} == {1}


def test_append_adds_all_and_merge_takes_nothing_away(play: Planned) -> None:
    requested: dict[str, object] = {"transform": "sum_by_day", "until": DAY4}
    keys: dict[str, object] = {"mode": Mode.MERGE, "keys": ("_worker", "day")}
    play("merged", **requested, **keys)
    play.sql("UPDATE {table} SET amount = -1 WHERE _worker = 1", "merged")
    play.sql("INSERT INTO {table} SELECT 7, * EXCEPT (_worker) FROM {table} LIMIT 1", "merged")
    actual = play.diff("merged", transform="sum_by_day", **keys)
    assert figures(actual) == (3, 0, 3)
    before = play.rows("merged").height
    play("merged", transform="sum_by_day", **keys)
    assert play.rows("merged").height == before + 3
    assert figures(play.diff("merged", transform="sum_by_day", **keys)) == (0, 0, 0)

    play("appended", since=DAY2, until=DAY3)
    actual = play.diff("appended", since=DAY3, until=DAY4, mode=Mode.APPEND)
    assert figures(actual) == (48, 0, 0)


def test_without_worker_and_time_the_whole_output_is_one_cell(play: Planned) -> None:
    play("places", transform="places")
    play.sql("UPDATE {table} SET n = 1 WHERE place = 'a'", "places")
    actual = play.diff("places", transform="places")
    assert figures(actual) == (0, 0, 1)
    assert (actual.cells, actual.differing) == (1, 1)


def test_a_column_that_the_target_lacks_is_named(play: Planned) -> None:
    play("narrow", since=DAY2, until=DAY3)
    narrow = play.spark.read.format("delta").load(play.lake.table("narrow")).drop("note")
    narrow = narrow.localCheckpoint()
    writer = narrow.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy("_worker").save(play.lake.table("narrow"))
    with pytest.raises(
        InvalidRequestError, match="CAP-ADOPT: target narrow lacks columns .*: note;"
    ):
        play.diff("narrow", since=DAY2, until=DAY3)
    actual = play.diff("narrow", since=DAY2, until=DAY3, adopt=True)
    assert actual.new_columns == ("note",)
    assert figures(actual) == (0, 0, 0)


def held(play: Planned, into: str, **asked: object) -> tuple[str, dict[str, object]]:
    actual = play(into, **{"since": DAY2, "until": DAY4, "approve": True, **asked})
    value = actual.to_json()
    assert value["published"] is False
    return str(value["run"]), value


def test_waiting_runs_show_changes_and_certify_approvers(play: Planned) -> None:
    play("approved", since=DAY2, until=DAY3, workers=("a",))
    run, waits = held(play, "approved")
    diff = waits["diff"]
    assert isinstance(diff, dict)
    assert (diff["added"], diff["removed"], diff["changed"]) == (80, 0, 0)
    assert exists(str(waits["staging"]))
    assert play.rows("approved").height == 16
    with pytest.raises(InvalidRequestError, match="^CAP-DECISION"):
        play.publish(run)
    assert play.rows("approved").height == 16

    done = play.publish(run, ANN)

    assert done.certificate.approval == ANN.to_json()
    assert play.rows("approved").height == 96
    history = runs.read_history(play.lake, run)
    assert [row.step for row in history.rows][-3:] == [Step.AUDITED, Step.APPROVED, Step.DONE]
    assert play.publish(run, Decision("bob")).unchanged
    assert runs.read_history(play.lake, run).certificate.approval == ANN.to_json()
    assert play("approved", since=DAY2, until=DAY4, approve=True).unchanged


def test_an_approved_interrupted_publish_is_finished(play: Planned) -> None:
    run, _ = held(play, "cut_off")

    def cut(point: str, _: dict[str, object]) -> None:
        if point == "replay.approved":
            raise KeyboardInterrupt

    with instrumentation.subscribe(cut), pytest.raises(KeyboardInterrupt):
        play.publish(run, ANN)
    assert play.rows("cut_off").height == 0
    # Who has approved it did so; nobody has to be asked again.
    done = play.publish(run)
    assert done.certificate.approval == ANN.to_json()
    actual = [row.step for row in runs.read_history(play.lake, run).rows]
    assert actual.count(Step.APPROVED) == actual.count(Step.DONE) == 1


def test_a_rejected_run_keeps_the_target_and_holds_no_lock(play: Planned) -> None:
    run, waits = held(play, "rejected")
    version = delta.version_of(play.lake.table("rejected"))
    row = reject(play.lake, run, Decision("ann", reason="the wrong month"))
    assert row.step is Step.REJECTED
    assert (row.detail["by"], row.detail["reason"]) == ("ann", "the wrong month")
    assert row.detail["staging"] == waits["staging"]
    assert delta.load(play.spark, str(waits["staging"])).count() == 96
    assert delta.version_of(play.lake.table("rejected")) == version
    assert [claim for claim in claims.active(play.lake) if claim.run == run] == []
    # Rejected again it stays as it was, and nobody can publish it any more.
    assert reject(play.lake, run, Decision("bob")).detail["by"] == "ann"
    with pytest.raises(
        CheckFailedError, match="^CAP-REJECTED.* by ann .*the wrong month"
    ) as caught:
        play.publish(run, ANN)
    assert caught.value.exit_code == 1
    # Others are not held, and the same asked again is a new attempt.
    play("rejected", since=DAY2, until=DAY3, workers=("b",))
    again, _ = held(play, "rejected")
    assert again == run
    assert runs.read_history(play.lake, run).attempts == 2
    assert play.publish(run, ANN).certificate.attempt == 2
    with pytest.raises(InvalidRequestError, match="^CAP-NOT-AUDITED"):
        reject(play.lake, run, ANN)


def test_what_was_overtaken_while_it_waited_is_not_published(play: Planned) -> None:
    run, _ = held(play, "overtaken")
    assert unlock(play.lake, run) == 1
    other = play("overtaken", since=DAY3, until=DAY4, workers=("c",)).certificate.run
    with pytest.raises(InvalidRequestError, match=f"^CAP-LATER: run {other} wrote over part"):
        play.publish(run, ANN)
    assert play.rows("overtaken").height == 16


def test_the_whole_plan(play: Planned) -> None:
    play("whole", since=DAY2, until=DAY3, workers=("a", "b"))
    run, _ = held(play, "whole", since=DAY3, until=DAY4)
    actual = preview(play.lake, play.declarations, play.request("whole", since=DAY2, until=DAY4))
    reported = actual.to_json()
    assert reported["standing"] == {"current": 32, "stale": 0, "missing": 64}
    assert reported["held_by"] == [run]
    assert [item["records"] for item in reported["covered"]] == [32]  # type: ignore[attr-defined]
    assert (reported["behind"], reported["silent"], reported["not_on_tape"]) == ({}, [], [])
