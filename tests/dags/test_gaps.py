"""The DAG `capstan_gaps`: what it reports, what it asks the job to fill, what it leaves alone."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.exceptions import ParamValidationError
from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowRescheduleException, DownstreamTasksSkipped

from capstan.airflow.assets import REPLAYED
from capstan.airflow.dags.declared import backfill_dags
from capstan.airflow.dags.gaps import ListGapsOperator, gaps_dags
from capstan.airflow.documents import backfills_document
from capstan.airflow.operators.jobs import SubmitBackfillOperator
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.backfill.interval import IntervalState
from capstan.backfill.pauses import set_paused
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from tests.dags.test_tasks import Store
from tests.support.jvmless_lake import FIRST, Books, lay_tape

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Place

DAGS = Path(__file__).parents[2] / "dags"
DAY = timedelta(days=1) // timedelta(microseconds=1)
MORE = """
  copy: {stream: little, target: copy, since: 2024-05-01, until: 2024-05-03}
  asked: {stream: little, target: asked, since: 2024-05-01, until: 2024-05-03, approve: true}
  endless: {stream: little, target: endless}
"""


def days(since: int, until: int) -> Region:
    return Region(Box((FIRST + since * DAY,), (FIRST + until * DAY,)))


@pytest.fixture
def setting(place: Place) -> Settings:
    """A lake on which three days of the stream are complete, all of it written without a JVM."""
    with place.streams.open("a", encoding="utf-8") as file:
        file.write(MORE.lstrip("\n"))
    lay_tape(Lake.at(place.lake), "little", "abc", [(FIRST,)], (FIRST + 3 * DAY,))
    return read_settings(DAGS / "any.py")


def books(setting: Settings, target: str, code: str = "") -> Books:
    lake = Lake.at(setting.lake)
    transform = "by_day" if code else ""
    return Books(lake, "little", lake.table(target), transform, code)


@pytest.fixture
def look(
    setting: Settings, context: Callable[[], dict[str, Any]], execute: Callable[[Any, Any], Any]
) -> Callable[..., tuple[dict[str, Any], str, bool]]:
    """Runs the task `gaps`: its result, what it shows, and whether it has the rest go on."""

    def look(where: Settings = setting, /, **params: object) -> tuple[dict[str, Any], str, bool]:
        [dag] = gaps_dags(where)
        task = dag.get_task("gaps")
        assert isinstance(task, ListGapsOperator)
        run = {**context(), "params": {"fill": False, **params}, "task": task}
        try:
            return execute(task, run), task.found, True
        except DownstreamTasksSkipped as skipped:
            assert list(skipped.tasks) == ["fill"]
            return run["ti"].pushed["return_value"], task.found, False

    return look


def test_the_dag_has_two_tasks_and_is_for_every_day(setting: Settings) -> None:
    [dag] = gaps_dags(setting)
    assert [task.task_id for task in dag.topological_sort()] == ["gaps", "fill"]
    assert isinstance(dag.get_task("fill"), SubmitBackfillOperator)
    assert dag.max_active_runs == 1
    assert dag.params.validate()["fill"] is False
    with pytest.raises(ParamValidationError):
        dag.params["chunk"] = 0


def test_the_dag_file_defines_the_dag(place: Place) -> None:
    bag = place.bag()
    assert bag.import_errors == {}
    assert "capstan_gaps" in bag.dags


def test_gaps_are_reported_and_nothing_is_filled_by_default(look: Any) -> None:
    result, shown, goes_on = look()
    assert not goes_on
    counts = {item["replay"]: item["counts"] for item in result["replays"]}
    none = dict.fromkeys(IntervalState, 0)
    # Of the replays that have a range or a schedule; the fifth of May has no end yet.
    assert counts == {
        "by_day": {**none, "gap": 3, "incomplete": 2},
        "copy": {**none, "gap": 2},
        "asked": {**none, "gap": 2},
    }
    assert "\nby_day  by_day  3 gap, 2 incomplete\n" in shown
    stretch = "2024-05-01T00:00:00.000000Z  2024-05-04T00:00:00.000000Z  gap    a, b, c"
    assert stretch in shown
    assert "Not filled: its runs need approval" in shown
    json.dumps(result)


def test_fill_uses_one_job_at_a_pinned_cut(setting: Settings, look: Any) -> None:
    books(setting, "by_day", "f00").published("old", [0, 1, 2], days(0, 2))
    result, _, goes_on = look(fill=True, chunk=2)
    assert goes_on
    more: dict[str, object] = {"chunk": 2, "as_of": 0, "keep_going": True}
    assert result["request"] == {
        "backfills": [
            {"replay": "by_day", "what": "gaps", **more},
            {"replay": "by_day", "what": "stale", **more},
            {"replay": "copy", "what": "gaps", **more},
        ]
    }
    part = {"since": "2024-05-01", "until": "2024-05-02"}
    result, shown, goes_on = look(fill=True, replays=["by_day"], what="stale", **part)
    more |= part
    del more["chunk"]
    assert result["request"] == {"backfills": [{"replay": "by_day", "what": "stale", **more}]}
    assert "\nby_day  by_day  1 stale" in shown
    assert look(fill=True, replays=["endless"])[0]["count"] == 1
    assert look(fill=True, replays=["asked"])[2] is False


@pytest.mark.parametrize("target", ["copy", "{lake}/tables/copy"])
def test_a_table_with_approval_is_not_filled(setting: Settings, look: Any, target: str) -> None:
    """Also by none that asks for no approval itself, whatever it calls the table."""
    printed = target.format(lake=setting.lake)
    with setting.config.open("a", encoding="utf-8") as file:
        file.write(f"  strict: {{stream: little, target: '{printed}', approve: true}}\n")
    # What is declared is read anew.
    result, shown, goes_on = look(read_settings(DAGS / "any.py"), fill=True, replays=["copy"])
    assert (result["count"], goes_on) == (0, False)
    assert "Not filled: replay strict requires approval of every run into its table" in (shown)
    assert "\ncopy    copy    2 gap" in shown


def test_what_is_paused_is_left_out_unless_it_is_named(setting: Settings, look: Any) -> None:
    lake = Lake.at(setting.lake)
    set_paused(lake, "by_day", paused=True, because="a move")
    result, shown, _ = look(fill=True)
    assert [each["replay"] for each in result["request"]["backfills"]] == ["copy"]
    said = "Not filled: backfills of replay by_day are paused by .* UTC: a move"
    assert re.search(said, shown)
    result, shown, goes_on = look(fill=True, replays=["by_day"])
    assert (result["count"], goes_on, "Not filled" in shown) == (1, True, False)


def test_what_is_paused_is_waited_for_without_spark(
    setting: Settings, submit: Any, execute: Any, context: Any, caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lake, request = Lake.at(setting.lake), {"backfills": [{"replay": "copy"}, {"replay": "by_day"}]}
    task = SubmitBackfillOperator(task_id="fill", settings=setting, request=request)
    by_interval = next(backfill_dags(setting)).get_task("replay")
    by_interval.request = {"stream": "little", "into": "by_day"}
    set_paused(lake, "by_day", paused=True)
    where = {**context(), "task_state_store": Store()}
    with pytest.raises(AirflowRescheduleException):
        execute(by_interval, where)
    # What is not held is done at once, and not again for what is.
    assert task._has_left({"replay": "copy"})
    with monkeypatch.context() as patch, pytest.raises(AirflowRescheduleException):
        patch.setattr(task, "_has_left", lambda backfill: False)
        execute(task, where)
    assert "paused by" in caplog.text
    assert submit.calls == []
    set_paused(lake, "by_day", paused=False)
    # A pause amid the job, however long the task has waited before.
    where["ti"].since = timezone.utcnow() - timedelta(days=8)
    error = {"error": "CAP-PAUSED", "message": "paused by ada", "hint": ""}
    submit.answers({"exit": 3, "result": {**RESULT, **error}})
    with pytest.raises(AirflowRescheduleException):
        execute(task, where)
    set_paused(lake, "by_day", paused=True)
    submit.answers({"exit": 0, "result": {"runs": [{**RUN, "run": "by_day-9"}]}})
    execute(task, where)
    assert [call["request"] for call in submit.calls] == [request] * 2
    # In the end, of what was published before the pause, too.
    told = [(asset.name, extra["run"]) for asset, extra in where["outlet_events"][REPLAYED].added]
    assert told == [("capstan/tables/copy", "copy-1"), ("capstan/tables/copy", "by_day-9")]


def test_few_runs_of_the_replay_s_own_dag_are_at_work_at_once(place: Place) -> None:
    few = '  few: {stream: little, target: few, schedule: "@daily", backfill: {at_most: 2}}\n'
    with place.streams.open("a", encoding="utf-8") as file:
        file.write(few)
    dags = backfill_dags(read_settings(DAGS / "any.py"))
    tasks = {dag.dag_id: dag.get_task("replay").max_active_tis_per_dag for dag in dags}
    assert tasks == {"capstan_backfill__by_day": None, "capstan_backfill__few": 2}


def test_the_dag_pauses_and_resumes_for_who_has_triggered_it(
    place: Place, execute: Any, context: Any
) -> None:
    place.lake.mkdir(exist_ok=True)
    task = place.bag().dags["capstan_pause"].get_task("pause")
    asked = {"replay": "by_day", "resume": False, "because": "a move"}
    where = {**context(), "dag_run": SimpleNamespace(triggering_user_name="ada"), "params": asked}
    paused = execute(task, where)
    assert (paused["paused"], paused["by"], paused["because"]) == (True, "ada", "a move")
    where["params"] = {"replay": "by_day", "resume": True, "because": None}
    assert execute(task, where) == {"replay": "by_day", "paused": False}


def test_a_range_that_cannot_be_meant_fails_the_task(look: Any) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-RANGE|CAP-TIME"):
        look(replays=["copy"], since="2024-05-03", until="2024-05-01")


def test_nothing_missing_is_nothing_to_fill(setting: Settings, look: Any) -> None:
    books(setting, "copy").published("all", [0, 1, 2], days(0, 2))
    result, shown, goes_on = look(fill=True, replays=["copy"])
    assert (result["count"], goes_on) == (0, False)
    assert "\ncopy    copy    2 covered" in shown


def test_a_stream_without_a_tape_does_not_hide_the_others(setting: Settings, look: Any) -> None:
    import shutil

    lake = Path(setting.lake)
    shutil.rmtree(lake / "streams")
    result, shown, _ = look(fill=True)
    assert {item["error"] for item in result["replays"]} == {"CAP-STREAM"}
    assert "there is no stream little" in shown


def test_an_unreadable_tape_does_not_hide_the_others(
    setting: Settings, execute: Any, context: Any
) -> None:
    text = setting.config.read_text(encoding="utf-8")
    one = text.split("streams:\n")[1].split("transforms:")[0]
    other = "  torn: {stream: torn, target: torn, since: 2024-05-01, until: 2024-05-02}\n"
    more = text.replace(one, one + one.replace("  little:", "  torn:", 1)) + other
    setting.config.write_text(more, encoding="utf-8")
    lake = Lake.at(setting.lake)
    lay_tape(lake, "torn", "abc", [(FIRST,)], (FIRST + 3 * DAY,))
    [log] = Path(lake.stream("torn").events, "_delta_log").glob("*0.json")
    log.write_text("{torn", encoding="utf-8")
    [dag] = gaps_dags(read_settings(DAGS / "any.py"))
    task = dag.get_task("gaps")
    assert isinstance(task, ListGapsOperator)
    where = {**context(), "params": {"fill": False}, "task": task}
    with pytest.raises(DownstreamTasksSkipped):
        execute(task, where)
    reported = {item["replay"]: item for item in where["ti"].pushed["return_value"]["replays"]}
    assert reported["torn"]["error"] == "CAP-TABLE"
    assert reported["copy"]["counts"]["gap"] == 2
    torn = rf"\ntorn +torn +{re.escape(reported['torn']['message'][:40])}"
    assert re.search(torn, task.found)


def test_an_undeclared_replay_is_refused(look: Any) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-REPLAY"):
        look(replays=["copies"])


RUN = {
    "since": "2024-05-01", "until": "2024-05-02", "workers": ["a"], "records": 7,
    "target": "copy", "target_version": 3, "run": "copy-1", "published": True, "unchanged": False,
}  # fmt: skip
LEFT = {**RUN, "run": None, "published": None, "records": None, "target_version": None}
RESULT = {
    "backfills": [
        {"runs": [RUN, {**RUN, "unchanged": True, "run": "copy-2"}]},
        {"runs": [{**LEFT, "error": "CAP-HELD", "message": "a | b"}, LEFT]},
    ]
}


def test_each_published_run_emits_an_event(setting: Settings, context: Any) -> None:
    [dag] = gaps_dags(setting)
    reported: list[tuple[str, Any]] = []
    event = type(
        "Event", (), {"add": lambda _, asset, extra: reported.append((asset.uri, extra))}
    )()
    where = {**context(), "outlet_events": dict.fromkeys(dag.get_task("fill").outlets, event)}
    task = dag.get_task("fill")
    task.kind.tell(task, where, RESULT)
    assert [(uri, extra["run"]) for uri, extra in reported] == [("capstan://tables/copy", "copy-1")]


def test_the_result_of_a_fill_is_shown() -> None:
    assert str(backfills_document(RESULT)).splitlines()[2:] == [
        "since       until       workers  records  version  run",
        "-----       -----       -------  -------  -------  ---",
        "2024-05-01  2024-05-02  a        7        3        copy-1  published",
        "2024-05-01  2024-05-02  a        7        3        copy-2  already published",
        "2024-05-01  2024-05-02  a                                  CAP-HELD: a | b",
        "2024-05-01  2024-05-02  a                                  not started",
    ]


def test_the_whole_dag_submits_one_job(
    place: Place, setting: Settings, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit.answers({"exit": 0, "result": RESULT})
    actual = place.run("capstan_gaps", {"fill": True, "replays": ["copy"]})
    assert actual.state == "success"
    [call] = submit.calls
    assert call["request"]["backfills"][0]["replay"] == "copy"
    assert place.run("capstan_gaps", {"fill": False}).state == "success"
    assert len(submit.calls) == 1
