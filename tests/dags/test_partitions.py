"""Partitions of streams and of tables: keys on which Airflow schedules a user's DAG."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.asset import AssetEvent
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.sdk import AssetOrTimeSchedule
from airflow.utils.session import create_session
from sqlalchemy import select, update

from capstan.airflow import CaptureOperator
from capstan.airflow.dags import declaration_errors, defaults
from capstan.airflow.tasks import job_operator, partitions
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.backfill import passed_intervals
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from tests.support.docs import blocks, page, section
from tests.support.jvmless_lake import FIRST, Books, go_on, lay_tape

if TYPE_CHECKING:
    from conftest import FakeSubmit, Place

# Events of other tests are of other streams.
NAME, CONSUMER = "clocked", "bookkeeping"
URI, CAPTURE = f"capstan://streams/{NAME}", f"capstan_capture__{NAME}"
HOUR = 3_600_000_000
DAY = [f"2024-05-01T{hour:02}:00:00" for hour in range(24)]


TABLE, TELLER = "capstan://tables/clocked_days", "capstan_partitions__days"
TOLD = "capstan://replays/days/told"
DAYS = f"""
  days:
    stream: {NAME}
    target: clocked_days
    since: 2024-05-01
    schedule: "@daily"
    partitions: true
"""


def at(hours: float) -> tuple[int]:
    return (FIRST + int(hours * HOUR),)


def events(uri: str = URI) -> list[tuple[str | None, str | None, int]]:
    """The stream's events: their partition keys, in order, their tasks and map indexes."""
    with create_session() as session:
        told = [e for e in session.scalars(select(AssetEvent)) if e.uri == uri]
        return sorted((e.partition_key, e.source_task_id, e.source_map_index) for e in told)


def keys(uri: str = URI) -> list[str | None]:
    """The partition keys of the events of the stream, or of another asset; all of them have one."""
    return [key for key, _, _ in events(uri)]


@pytest.fixture
def hourly(place: Place, submit: FakeSubmit) -> Place:
    """A place whose captures are faked: a test writes to the tape what one would."""
    hours = 'schedule: "@hourly"\n    partitions: {every: 1 hour}'
    text = place.streams.read_text(encoding="utf-8").replace('schedule: "@hourly"', hours)
    place.streams.write_text(text.replace("little", NAME), encoding="utf-8")
    submit.answers({"exit": 0, "result": {"stream": NAME, "cut": 0, "frontier": []}})
    with create_session() as session:
        for event in session.scalars(select(AssetEvent)):
            if event.uri.startswith((URI, TABLE, "capstan://replays/days")):
                session.delete(event)
    return place


@pytest.fixture
def covered(hourly: Place) -> Books:
    """The ledgers of a table with partitions, before anything of its stream is on tape."""
    with hourly.streams.open("a", encoding="utf-8") as file:
        file.write(DAYS.lstrip("\n"))
    lake = Lake.at(hourly.lake)
    return Books(lake, NAME, lake.table("clocked_days"))


def days(since: int, until: int) -> Region:
    return Region(Box(at(24 * since), at(24 * until)))


def dates(*numbers: int) -> list[str]:
    return [f"2024-05-{number:02}T00:00:00" for number in numbers]


def consume(place: Place, heading: str, before: str, now: str) -> None:
    """Make the consumers of the documentation known, as a DAG processor does, of another asset."""
    [text] = blocks(section(page("airflow"), heading), "python")
    file = place.root / "folder" / "consumers.py"
    file.parent.mkdir()
    file.write_text(text.replace(before, now), encoding="utf-8")
    bag = place.bag(file.parent)
    assert bag.import_errors == {}
    DagBundlesManager().sync_bundles_to_db()
    with create_session() as session:
        sync_bag_to_db(bag, "dags-folder", None, session=session)
        unpaused = update(DagModel).where(DagModel.dag_id.in_(list(bag.dags)))
        session.execute(unpaused.values(is_paused=False))


@pytest.fixture
def daily(hourly: Place) -> Place:
    """The same with the consumer of the documentation."""
    consume(hourly, "Partitions", "streams/orders", f"streams/{NAME}")
    return hourly


def scheduled(consumer: str = CONSUMER) -> list[str | None]:
    """The partition keys of a consumer's runs, after a turn of the scheduler."""
    with create_session() as session:
        runner = SchedulerJobRunner(Job())
        runner._create_dagruns_for_partitioned_asset_dags(session)
        runs = session.scalars(select(DagRun).where(DagRun.dag_id == consumer))
        return sorted(run.partition_key for run in runs)


def test_a_day_runs_once_when_its_late_hour_is_complete(daily: Place) -> None:
    lake = Lake.at(daily.lake)
    lay_tape(lake, NAME, "ab", [at(n) for n in range(23)], at(10.5))
    assert daily.run(CAPTURE).state == "success"
    assert (keys(), scheduled()) == (DAY[:10], [])
    # Worker b is in the next day; worker a is late with the last hour.
    go_on(lake, NAME, [at(30)], at(30), workers=[1])
    go_on(lake, NAME, [at(23)], at(23), workers=[0])
    assert daily.run(CAPTURE).state == "success"
    assert (keys(), scheduled()) == (DAY[:23], [])
    go_on(lake, NAME, [at(25)], at(25.5), workers=[0])
    assert daily.run(CAPTURE).state == "success"
    assert keys() == [*DAY, "2024-05-02T00:00:00"]
    assert scheduled() == ["2024-05-01"]
    # A capture of nothing new emits nothing, and the day does not run again.
    assert daily.run(CAPTURE).state == "success"
    assert (len(keys()), scheduled()) == (25, ["2024-05-01"])


def test_a_task_that_ends_between_capture_and_event_loses_no_interval_and_doubles_none(
    hourly: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []

    def ends(*_: object) -> None:
        """After the task has named the keys, and before Airflow has them."""
        tried.append(keys())
        if len(tried) == 1:
            go_on(Lake.at(hourly.lake), NAME, [at(4)], at(5))
            raise SystemExit(9)

    monkeypatch.setattr(defaults, "RETRY_DELAY", timedelta(0))
    monkeypatch.setattr(job_operator, "remember_labels", ends)
    lay_tape(Lake.at(hourly.lake), NAME, "a", [at(0)], at(3))
    assert hourly.run(CAPTURE).state == "success"
    assert (tried, keys()) == ([[], []], DAY[:5])


def test_a_capture_catches_up_in_bounded_batches_once_each(
    hourly: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_intervals, "BATCH", 7)
    lay_tape(Lake.at(hourly.lake), NAME, "a", [at(0)], at(24))
    assert hourly.run(CAPTURE).state == "success"
    assert keys() == DAY
    by_task = [(task, index) for _, task, index in events()]
    batches = {"capture": 1, "partitions": 3}
    assert {task for task, _ in by_task} == set(batches)
    assert sorted(map(by_task.count, set(by_task))) == [3, 7, 7, 7]


def test_the_partitions_of_a_table_are_told_after_its_changes_and_daily(
    covered: Books, hourly: Place
) -> None:
    dag = hourly.bag().dags[TELLER]
    assert [task.task_id for task in dag.topological_sort()] == ["count", "partitions"]
    assert dag.max_active_runs == 1
    assert isinstance(dag.timetable, AssetOrTimeSchedule)
    backfill = hourly.bag().dags["capstan_backfill__days"]
    assert [dag.timetable.asset_condition] == backfill.get_task("replay").outlets
    assert [each.uri for each in dag.get_task("partitions").outlets] == [TABLE, f"{TABLE}/gone"]


def test_a_table_tells_what_it_covers_and_what_it_has_lost(covered: Books, hourly: Place) -> None:
    consume(hourly, "Partitions of tables", "tables/revenue", "tables/clocked_days")
    assert hourly.run(TELLER).state == "success"
    assert keys(TABLE) == []
    lay_tape(Lake.at(hourly.lake), NAME, "a", [at(0)], at(240))
    covered.published("r1", [0], days(0, 2))
    covered.published("r2", [0], days(2, 4))
    assert hourly.run(TELLER).state == "success"
    assert (keys(TABLE), keys(f"{TABLE}/gone")) == (dates(1, 2, 3, 4), [])
    covered.rolled_back("r2", [0], days(2, 4))
    covered.published("r3", [0], days(4, 5))
    assert hourly.run(TELLER).state == "success"
    assert (keys(TABLE), keys(f"{TABLE}/gone")) == (dates(1, 2, 3, 4, 5), dates(3, 4))
    with create_session() as session:
        extras = [e.extra for e in session.scalars(select(AssetEvent)) if e.uri == f"{TABLE}/gone"]
    about = {"replay": "days", "stream": NAME, "target": "clocked_days"}
    lost = {"state": "gap", "changes": [], "rolled_back": ["r2"]}
    assert extras == [{**about, **lost}] * 2
    # What is back is told again; nothing is twice.
    covered.published("r4", [0], days(2, 4))
    assert hourly.run(TELLER).state == hourly.run(TELLER).state == "success"
    assert (keys(TABLE), keys(f"{TABLE}/gone")) == (dates(1, 2, 3, 3, 4, 4, 5), dates(3, 4))
    assert scheduled("send_revenue") == dates(1, 2, 3, 4, 5)
    assert scheduled("recall_revenue") == dates(3, 4)


def test_a_table_catches_up_in_bounded_batches_also_after_a_kill(
    covered: Books, hourly: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str | None]] = []

    def ends(*rest: Any) -> None:
        """After a task has named the keys, and before Airflow has them."""
        tried.append(keys(TABLE))
        if len(tried) == 2:
            raise SystemExit(9)
        record(*rest)

    record = partitions._record
    monkeypatch.setattr(passed_intervals, "BATCH", 4)
    monkeypatch.setattr(partitions, "_record", ends)
    monkeypatch.setattr(defaults, "RETRY_DELAY", timedelta(0))
    lay_tape(Lake.at(hourly.lake), NAME, "a", [at(0)], at(240))
    covered.published("r1", [0], days(0, 10))
    assert hourly.run(TELLER).state == "success"
    assert keys(TABLE) == dates(*range(1, 11))
    assert list(map(len, tried)) == [0, 4, 4, 8]
    by_task = [index for _, _, index in events(TABLE)]
    assert sorted(map(by_task.count, set(by_task))) == [2, 4, 4]


def test_what_was_told_of_a_quiet_table_is_written_again_after_a_week(
    covered: Books, hourly: Place
) -> None:
    def told(aged: float) -> list[object]:
        """What all records say after a run, when those before it are older by some days."""
        with create_session() as session:
            for event in session.scalars(select(AssetEvent)):
                if event.uri == TOLD:
                    event.timestamp -= timedelta(days=aged)
        assert hourly.run(TELLER).state == "success"
        with create_session() as session:
            return [e.extra for e in session.scalars(select(AssetEvent)) if e.uri == TOLD]

    assert told(0) == []
    lay_tape(Lake.at(hourly.lake), NAME, "a", [at(0)], at(240))
    covered.published("r1", [0], days(0, 2))
    [first] = told(0)
    assert told(6.9) == [first]
    assert told(0.2) == told(0) == [first, first]
    assert keys(TABLE) == dates(1, 2)


@pytest.mark.parametrize(
    ("older", "target"), [(True, ""), (False, "clocked_days"), (False, "others")]
)
def test_partitions_of_a_table_that_cannot_be_told_are_refused(
    *, older: bool, target: str, covered: Books, hourly: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "are those of replay days, whose table has the same asset"
    if target == "others":
        shared = "".join(f"  {each}: {{asset: x://days}}\n" for each in ("clocked_days", target))
        text = hourly.streams.read_text(encoding="utf-8")
        hourly.streams.write_text(
            text.replace("targets:\n", f"targets:\n{shared}"), encoding="utf-8"
        )
    if older:
        problem = "needs Airflow 3.3 or later"
        monkeypatch.setattr(declaration_errors, "HAS_PARTITIONS", False)
    else:
        with hourly.streams.open("a", encoding="utf-8") as file:
            others = DAYS.replace("days:", "others:").replace("clocked_days", target)
            file.write(others.lstrip("\n"))
    bag = hourly.bag()
    refused = "days" if older else "others"
    assert f"capstan_partitions__{refused}" not in bag.dags
    [error] = bag.import_errors.values()
    assert f"replays.{refused}.partitions" in error
    assert problem in error


@pytest.mark.parametrize("templated", [True, False])
def test_what_cannot_tell_partitions_is_refused_before_anything_is_captured(
    *, templated: bool, hourly: Place, submit: FakeSubmit, execute: Any, context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    task = CaptureOperator(task_id="t", stream="{{ params.stream }}" if templated else NAME)
    task.stream = NAME
    if not templated:
        monkeypatch.setattr(partitions, "HAS_PARTITIONS", False)
    problem = "needs the stream's asset as an outlet" if templated else "needs Airflow 3.3 or later"
    with pytest.raises(TaskRefusedError, match=f"^CAP-PARTITIONS: .*clocked {problem}"):
        execute(task, context())
    assert submit.calls == []


def test_an_airflow_without_partition_keys_names_the_declaration(
    hourly: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaration_errors, "HAS_PARTITIONS", False)
    bag = hourly.bag()
    assert CAPTURE not in bag.dags
    [error] = bag.import_errors.values()
    assert "streams.clocked.partitions" in error
    assert "needs Airflow 3.3 or later" in error


def asked(place: Place, key: str | None, **form: object) -> Any:
    """The fields of a run of `capstan_replay` with a partition key."""
    plan = place.bag().dags["capstan_replay"].task_dict["plan"]
    given = {"stream": NAME, "into": "t", "since": None, "workers": [], **form}
    return plan._asked({"params": given, "partition_key": key})  # type: ignore[attr-defined]


def test_a_replay_takes_its_range_from_a_partition_key(hourly: Place) -> None:
    day = {"since": "2024-05-01T00:00:00+00:00", "until": "2024-05-02T00:00:00+00:00"}
    named = {"stream": NAME, "into": "t"}
    assert asked(hourly, "2024-05-01") == {**named, **day}
    hour = {**day, "until": "2024-05-01T01:00:00+00:00"}
    assert asked(hourly, DAY[0]) == {**named, **hour}
    of_replay = {"stream": None, "into": None, "replay": "by_day"}
    of_worker = {"replay": "by_day", "workers": ["a, b"], **hour}
    assert asked(hourly, f"a, b|{DAY[0]}", **of_replay) == of_worker
    # What the form names wins.
    assert asked(hourly, f"a|{DAY[0]}", workers=["b"]) == {**named, **hour, "workers": ["b"]}
    until = {"until": "2024-05-03"}
    assert asked(hourly, "2024-05-01", **until) == {**named, **until}
    assert asked(hourly, f"a|{DAY[0]}", **until) == {**named, **until, "workers": ["a"]}
    assert asked(hourly, None) == named
