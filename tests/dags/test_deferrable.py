"""Tasks that wait by a trigger: they hold no slot, and go on wherever they are woken."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred
from airflow.sdk.module_loading import import_string

from capstan.airflow import CaptureOperator, FrontierSensor, PlanOperator, ResultOperator
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.airflow.tasks.lake_triggers import FrontierTrigger, LakeTrigger, ResultTrigger
from capstan.storage import job_attempts
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake
from tests.dags.conftest import DAGS, Place
from tests.support.jvmless_lake import lay_tape

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.dags

ATTEMPT = "job-1"
SINCE = "2026-11-30T10:00:00+00:00"
HOUR_US = 3_600_000_000
START = datetime(2024, 5, 1, tzinfo=UTC)
BEGIN = int(START.timestamp()) * 1_000_000


@pytest.fixture
def setting(place: Place) -> Settings:
    """A stream that is complete up to noon of its first day."""
    lay_tape(Lake.at(place.lake), "little", ["a", "b"], [(BEGIN,)], (BEGIN + 12 * HOUR_US,))
    return read_settings(DAGS / "any.py")


def fired(trigger: LakeTrigger) -> list[object]:
    """The events of a trigger that another process makes of what is stored."""

    async def run() -> list[object]:
        name, arguments = trigger.serialize()
        other = import_string(name)(**arguments)
        return [event.payload async for event in other.run()]

    return asyncio.run(run())


def soon(seconds: float = 20) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def looking(place: Place, **more: Any) -> dict[str, Any]:
    """The arguments of a trigger that looks for a result."""
    usual = {"lake": str(place.lake), "interval": 60.0, "since": SINCE, "until": soon()}
    return {"attempt": ATTEMPT, **usual, **more}


def deferred(task: Any, context: Any, event: str | None = None) -> dict[str, Any]:
    """The arguments of the trigger of a task that defers, at first or when an event wakes it."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context) if event is None else task.resume(context, event)
    assert caught.value.method_name == "resume"
    return caught.value.trigger.serialize()[1]


def result(place: Place, **more: Any) -> ResultOperator:
    return ResultOperator(
        task_id="result", lake=str(place.lake), attempt=ATTEMPT, deferrable=True, **more
    )


def test_a_trigger_fires_once_the_result_is_there(place: Place) -> None:
    attempt = JobAttempt(Lake.at(place.lake), ATTEMPT)
    looked: list[bool] = []

    class Watched(ResultTrigger):
        def is_there(self) -> bool:
            looked.append(super().is_there())
            if len(looked) == 2:
                attempt.end("verify", 0, {"valid": True}, None)
            return looked[-1]

    trigger = Watched(**looking(place, interval=0.01))

    async def run() -> int:
        return len([event async for event in trigger.run()])

    assert asyncio.run(run()) == 1
    assert looked == [False, False, True]


def test_a_trigger_stops_when_its_time_is_over(place: Place) -> None:
    assert fired(ResultTrigger(**looking(place, until=soon(0.2)))) == [SINCE]
    assert fired(ResultTrigger(**looking(place, until=soon(-1)))) == [SINCE]


def test_a_trigger_that_cannot_look_leaves_it_to_the_task(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails now and then does not end its wait."""
    failed = OSError()
    outcomes = [failed, failed, False, *[failed] * 4, False, *[failed] * 5, True, True]

    def look(_: ResultTrigger) -> bool:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ResultTrigger, "is_there", look)
    assert fired(ResultTrigger(**looking(place, interval=0.0))) == [SINCE]
    assert outcomes == [True, True]


@pytest.mark.parametrize(("hour", "complete"), [(12, True), (13, False)])
def test_a_trigger_looks_at_the_frontier_as_the_sensor_does(
    setting: Settings, place: Place, hour: int, complete: bool, context: Any
) -> None:
    until = (START + timedelta(hours=hour)).isoformat()
    asked = {"stream": "little", "until": until}
    sensor = FrontierSensor(task_id="t", settings=setting, **asked)
    usual = {"lake": str(place.lake), "interval": 1.0, "since": SINCE, "until": soon()}
    fields = [{"into": "any", "stream": "little", "until": START.isoformat()}]
    fields.append({"into": "any", **asked})
    trigger = FrontierTrigger(config=str(place.streams), fields=fields, **usual)
    assert sensor.poke(context()) is complete
    assert trigger.is_there() is complete


def test_a_sensor_waits_by_a_trigger_and_goes_on(
    setting: Settings, place: Place, context: Any
) -> None:
    until = (START + timedelta(hours=13)).isoformat()
    task = FrontierSensor(
        task_id="t", settings=setting, stream=["little"], workers=("a",), until=until,
        deferrable=True, poke_interval=timedelta(seconds=7),
    )  # fmt: skip
    where = context()
    first = deferred(task, where)
    assert (first["interval"], first["config"]) == (7.0, str(place.streams))
    [event] = fired(FrontierTrigger(**{**first, "until": soon(0.2)}))
    # Not complete yet, and not longer than from the first time on.
    assert deferred(task, where, str(event)) == first

    lay_tape(Lake.at(place.lake), "later", ["a"], [(BEGIN,)], (BEGIN + 13 * HOUR_US,))
    complete = FrontierSensor(task_id="t", settings=setting, stream="later", deferrable=True,
                              until=until)  # fmt: skip
    assert complete.resume(where, first["since"]) is None

    long_ago = (datetime.now(UTC) - timedelta(days=8)).isoformat()
    with pytest.raises(TaskRefusedError, match="^CAP-INCOMPLETE: stream little: "):
        task.resume(where, long_ago)


def test_a_result_is_waited_for_by_a_trigger(place: Place, execute: Any, context: Any) -> None:
    where, task = context(), result(place)
    first = deferred(task, where)
    assert first["attempt"] == ATTEMPT
    since, until = (datetime.fromisoformat(first[name]) for name in ("since", "until"))
    assert until - since == timedelta(days=7)

    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    hasty = result(place, patience=timedelta(hours=1))
    with pytest.raises(TaskRefusedError, match="^CAP-RESULT: the job has left no result at "):
        hasty.resume(where, long_ago)

    error = {"error": "CAP-RULE", "message": "it is broken", "hint": "look"}
    JobAttempt(Lake.at(place.lake), ATTEMPT).end("verify", 1, None, error)
    with pytest.raises(TaskRefusedError, match="^CAP-RULE: it is broken"):
        task.resume(where, first["since"])
    JobAttempt(Lake.at(place.lake), ATTEMPT).end("verify", 0, {"valid": True}, None)
    assert task.resume(where, first["since"]) == {"valid": True}


def test_a_job_that_died_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    where, task = context(), result(place)
    attempt = JobAttempt(Lake.at(place.lake), ATTEMPT)
    attempt.sign({})
    arguments = deferred(task, where)
    assert not ResultTrigger(**arguments).is_there()
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    assert ResultTrigger(**arguments).is_there()
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: .* was last seen at work at 20"):
        task.resume(where, arguments["since"])
    # The next start may be queued for longer than a living one is silent.
    assert deferred(task, where)["attempt"] == ATTEMPT


def test_airflow_s_default_holds_unless_a_task_says_otherwise(
    place: Place, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    usual: dict[str, Any] = {"lake": str(place.lake), "attempt": ATTEMPT}
    hours = timedelta(hours=1)
    deferred(ResultOperator(task_id="result", patience=hours, **usual), context())
    # As before: without patience, a result that is not there is none.
    with pytest.raises(TaskRefusedError, match="CAP-RESULT"):
        ResultOperator(task_id="result", **usual).execute(context())
    patient = {**usual, "deferrable": False, "patience": timedelta(hours=1)}
    with pytest.raises(AirflowRescheduleException):
        ResultOperator(task_id="result", **patient).execute(context())


@pytest.mark.parametrize(
    "make",
    [
        lambda: CaptureOperator(task_id="t", stream="little", deferrable=True),
        lambda: PlanOperator(task_id="t", stream="little", target="t", deferrable=True),
        lambda: CaptureOperator(task_id="t", stream="x", deferrable=True, deploy_mode="client"),
    ],
)
def test_a_driver_below_its_task_cannot_be_left(
    place: Place, make: Callable[[], Any], context: Any
) -> None:
    with pytest.raises(TaskRefusedError, match="^CAP-REQUEST: .* driver runs below") as caught:
        make().pre_execute(context())
    assert "deploy mode cluster" in str(caught.value)
    assert "ResultOperator(deferrable=True)" in str(caught.value)
