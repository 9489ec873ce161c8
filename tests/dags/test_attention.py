"""The DAG `capstan_attention`: whom it tells what, and that it tells of nothing twice."""

from __future__ import annotations

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException
from airflow.sdk.execution_time.comms import ErrorResponse

from capstan.airflow.dags.attention import AttentionOperator, attention_dags
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskBrokenError
from capstan.airflow.tasks.run_progress import TaskPlace, seen_by_task
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting.activity import TaskProgress
from capstan.storage.lake import Lake
from tests.support import recorded_tapes
from tests.support.jvmless_lake import FIRST, Books, lay_tape

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Place

DAGS = Path(__file__).parents[2] / "dags"
DAY = timedelta(days=1) // timedelta(microseconds=1)
ALERTS = """
told = []

def keep(context):
    told.append(("everything", context["exception"]))

def of_stream(context):
    told.append(("stream", context["exception"]))

def of_replay(context):
    told.append(("replay", context["exception"]))

def broken(context):
    raise ValueError("the pager is gone")
"""


def days(since: int, until: int) -> Region:
    return Region(Box((FIRST + since * DAY,), (FIRST + until * DAY,)))


@pytest.fixture
def alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of notifiers, which the stream, the replay and the environment name."""
    import sys

    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "attention_of_test.py").write_text(ALERTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("attention_of_test", None)
    import attention_of_test

    return attention_of_test


@pytest.fixture
def setting(place: Place, alerts: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A lake on which three days of the stream are complete, and the replay has all of them."""
    text = place.streams.read_text(encoding="utf-8").replace(
        '    schedule: "@hourly"\n',
        '    schedule: "@hourly"\n    notify: [attention_of_test:of_stream]\n',
    )
    place.streams.write_text(f"{text}    notify: [attention_of_test:of_replay]\n", encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_NOTIFY", "attention_of_test:keep")
    lake = Lake.at(place.lake)
    lay_tape(lake, "little", "abc", [(FIRST,)], (FIRST + 3 * DAY,))
    for table, schema in (("records", recorded_tapes._RECORDS), ("late", recorded_tapes._LATE)):
        path = f"{lake.stream('little').root}/{table}"
        recorded_tapes.write(path, schema.empty_table())
    return read_settings(DAGS / "any.py")


@pytest.fixture
def kept(setting: Settings) -> Books:
    lake = Lake.at(setting.lake)
    return Books(lake, "little", lake.table("other"), _now=datetime.now(UTC))


@pytest.fixture
def look(
    context: Callable[[], dict[str, Any]], execute: Callable[[Any, Any], Any], setting: Settings
) -> Callable[[], dict[str, Any]]:
    """Runs the task."""

    def look() -> dict[str, Any]:
        [dag] = attention_dags(setting)
        task = dag.get_task("look")
        assert isinstance(task, AttentionOperator)
        result: dict[str, Any] = execute(task, context())
        json.dumps(result)
        return result

    return look


def waits(kept: Books, run: str, region: Region, replay: str | None = None) -> None:
    kept.claimed(run, [0, 1], region)
    kept.stepped(run, "intent", {"request": {"replay": replay}, "certificate": {"records": 4}})
    kept.stepped(run, "audited", {})


def told(alerts: Any) -> list[tuple[str, list[str]]]:
    """Who was told of what since the last question."""
    actual = [
        (who, [item["name"] for item in error.about["attention"]]) for who, error in alerts.told
    ]
    alerts.told.clear()
    return sorted(actual)


def test_what_is_new_is_told_once_to_whom_it_concerns(kept: Books, look: Any, alerts: Any) -> None:
    assert look()["new"] == ["gap replay by_day"]
    assert told(alerts) == [
        ("everything", ["by_day"]), ("replay", ["by_day"]), ("stream", ["by_day"]),
    ]  # fmt: skip
    assert look()["new"] == []
    assert told(alerts) == []
    waits(kept, "other-0000000a-1", days(0, 1))
    assert look()["new"] == ["waiting run other-0000000a-1"]
    # The run belongs to no declared replay.
    assert told(alerts) == [
        ("everything", ["other-0000000a-1"]), ("stream", ["other-0000000a-1"])
    ]  # fmt: skip
    waits(kept, "other-0000000b-1", days(1, 2), "by_day")
    assert look()["total"] == 3
    assert [who for who, _ in told(alerts)] == ["everything", "replay", "stream"]
    kept.stepped("other-0000000a-1", "rejected", {})
    assert (look()["total"], told(alerts)) == (2, [])


def test_several_things_are_one_message_that_says_what_to_do(
    kept: Books, look: Any, alerts: Any
) -> None:
    waits(kept, "other-0000000a-1", days(0, 1))
    look()
    [(_, error)] = [entry for entry in alerts.told if entry[0] == "everything"]
    assert str(error).startswith(
        "CAP-ATTENTION: 2 things need a person: waiting: run other-0000000a-1: 4 records "
    )
    assert (error.about["error"], error.about["hint"] != "") == ("CAP-ATTENTION", True)
    commands = [item["command"] for item in error.about["attention"]]
    assert commands == ["capstan publish other-0000000a-1", "capstan backfill by_day"]


def test_more_gaps_of_a_replay_are_new_and_fewer_are_not(
    setting: Settings, look: Any, alerts: Any
) -> None:
    lake = Lake.at(setting.lake)
    daily = Books(lake, "little", lake.table("by_day"), "by_day", "older")
    look()
    told(alerts)
    daily.published("by_day-0000000a-1", [0, 1, 2], days(0, 1))
    assert look()["new"] == ["stale replay by_day"]
    daily.rolled_back("by_day-0000000a-1", [0, 1, 2], days(0, 1))
    assert look()["new"] == ["gap replay by_day"]


@pytest.mark.parametrize(
    ("state", "new"),
    [
        ("up_for_retry", False), ("queued", False), ("running", False), ("scheduled", False),
        ("failed", True), ("success", True), ("gone", True),
    ],
)  # fmt: skip
def test_a_try_that_is_followed_by_another_has_told_nobody(
    state: str, new: bool, kept: Books, setting: Settings, execute: Any, context: Any
) -> None:
    by = {"dag": "d", "dag_run": "r:1", "task": "replay", "map_index": 3, "try_number": 1}
    kept.claimed("other-0000000a-1", [0], days(0, 1))
    kept.stepped("other-0000000a-1", "failed", {"error": "CAP-BROKEN", "made_by": by})
    [dag] = attention_dags(setting)
    where = context()
    where["ti"].states = {} if state == "gone" else {"replay": "success", "replay_3": state}
    found = execute(dag.get_task("look"), where)["new"]
    assert ("failed run other-0000000a-1" in found) == new


def test_a_notifier_that_breaks_keeps_nobody_else_from_being_told(
    place: Place, setting: Settings, alerts: Any, caplog: pytest.LogCaptureFixture,
    execute: Any, context: Any,
) -> None:  # fmt: skip
    text = place.streams.read_text(encoding="utf-8")
    broken = text.replace("attention_of_test:of_stream", "attention_of_test:broken")
    place.streams.write_text(broken, encoding="utf-8")
    [dag] = attention_dags(read_settings(DAGS / "any.py"))
    for new in (["gap replay by_day"], []):
        assert execute(dag.get_task("look"), context())["new"] == new
    assert [who for who, _ in told(alerts)] == ["everything", "replay"]
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage() == "attention_of_test:broken could not be notified"


def test_what_could_not_be_remembered_fails_the_task(
    setting: Settings, look: Any, alerts: Any
) -> None:
    Path(setting.lake, "attention.json").mkdir()
    with pytest.raises(TaskBrokenError):
        look()


def test_a_file_that_cannot_be_read_is_as_none(setting: Settings, look: Any) -> None:
    file = Path(setting.lake, "attention.json")
    for text in ("{torn", "[]", '{"gap replay by_day": "many"}'):
        file.write_text(text, encoding="utf-8")
        assert look()["new"] == ["gap replay by_day"]
    assert json.loads(file.read_text(encoding="utf-8")) == {"gap replay by_day": 3}


def test_the_whole_dag_runs(place: Place, setting: Settings, alerts: Any) -> None:
    assert place.run("capstan_attention").state == "success"
    assert len(alerts.told) == 3


def test_without_a_lake_nothing_is_told(
    place: Place, alerts: Any, execute: Any, context: Any
) -> None:
    shutil.rmtree(place.lake)
    [dag] = attention_dags(read_settings(DAGS / "any.py"))
    with pytest.raises(AirflowSkipException, match="no lake yet"):
        execute(dag.get_task("look"), context())
    assert alerts.told == []


def test_many_tasks_are_asked_about_in_turn() -> None:
    class Told:
        asked: list[int] = []  # noqa: RUF012

        def get_task_states(self, *, run_ids: list[str], **_: object) -> dict[str, dict[str, str]]:
            self.asked.append(len(run_ids))
            if "r-000" in run_ids:
                raise AirflowRuntimeError(ErrorResponse())
            # In cluster mode a task is deferred while its driver works.
            return {run: {"t": "deferred" if run[-1] in "02468" else "running"} for run in run_ids}

    places = {TaskPlace("d", f"r-{number:03}", "t") for number in range(120)}
    known = seen_by_task(Told())(places)
    assert Told.asked == [50, 50, 20]
    # Of those that Airflow does not tell, nothing is known.
    assert sorted(place.dag_run for place in known) == [f"r-{n:03}" for n in range(50, 120)]
    assert {task.progress for task in known.values()} == {TaskProgress.RUNNING}
