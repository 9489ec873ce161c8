"""The DAGs as the scheduler sees them: structure, schedules, parameters, parse time, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.exceptions import ParamValidationError
from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable, PartitionedAtRuntime
from airflow.serialization.serialized_objects import DagSerialization

from capstan.airflow.assets import declared_tables, table_asset
from capstan.airflow.dags.declaration_errors import require_none
from capstan.airflow.dags.declared import backfill_dags
from capstan.airflow.operators.frontier_sensor import FrontierSensor
from capstan.airflow.operators.plan import PlanReplayOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import read_settings
from capstan.core.config import ByKey, ProjectConfig, Target
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import CHANGES, HOW, INPUT, OUTPUT
from tests.bench.airflow_overhead import TASKS
from tests.bench.dag_parsing import parse
from tests.support.many_streams import many_streams

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from conftest import Place

DAGS = Path(__file__).parents[2] / "dags"
FILES = sorted(path.name for path in DAGS.glob("*.py"))


def test_the_dags_are_those_of_the_declarations(dags: dict[str, DAG]) -> None:
    tasks = {name: [task.task_id for task in dag.topological_sort()] for name, dag in dags.items()}
    assert tasks == {
        "capstan_capture__little": ["capture"],
        "capstan_replay": ["plan", "replay", "approve", "publish", "certificate"],
        "capstan_backfill__by_day": [
            "complete",
            "plan",
            "replay",
            "approve",
            "publish",
            "certificate",
        ],
        "capstan_attention": ["look"],
        "capstan_audit": ["plan", "audit"],
        "capstan_gaps": ["gaps", "fill"],
        "capstan_maintain": ["maintain"],
        "capstan_pause": ["pause"],
        "capstan_put_back": ["put_back"],
        "capstan_rollback": ["plan", "rollback"],
        "capstan_unlock": ["unlock"],
        "capstan_verify": ["verify"],
        "example_follow_flights": ["worst_day"],
    }
    edges = {
        task.task_id: task.downstream_task_ids for task in dags["capstan_backfill__by_day"].tasks
    }
    assert edges == {
        "complete": {"plan"}, "plan": {"replay", "approve", "publish"},
        "replay": {"approve", "certificate"}, "approve": {"publish"}, "publish": {"certificate"},
        "certificate": set(),
    }  # fmt: skip


def test_each_declared_table_is_an_asset_of_capstan_s_group(dags: dict[str, DAG]) -> None:
    # Of a table that Airflow hears of by an alias alone, it would make one in no group.
    [table] = dags["capstan_audit"].get_task("audit").inlets
    assert (table.name, table.group) == ("capstan/tables/by_day", "capstan")
    [outlet] = dags["capstan_backfill__by_day"].get_task("replay").outlets
    assert (outlet, outlet.group) == (table, "capstan")
    away = Target(name="away", path="/data/away")
    config = ProjectConfig(DAGS, {}, {}, {"away": away}, {})
    assert [asset.name for asset in declared_tables(config)] == ["capstan/tables/away"]


def test_the_project_s_own_declarations_make_their_dags(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPSTAN_CONFIG")
    bag = place.bag()
    assert bag.import_errors == {}
    assert {"capstan_capture__flights", "capstan_backfill__flights_by_day"} <= set(bag.dags)
    follower = bag.dags["example_follow_flights"]
    backfill = bag.dags["capstan_backfill__flights_by_day"]
    [followed] = follower.timetable.asset_condition.objects  # type: ignore[attr-defined]
    assert [followed] == backfill.get_task("replay").outlets


def is_job(task: object) -> bool:
    """Whether a task starts Spark in each of its runs: a plan does only where it is asked to."""
    return isinstance(task, CapstanSubmitOperator) and not isinstance(task, PlanReplayOperator)


def test_a_run_is_few_hops_and_one_spark_job(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        dag.check_cycle()
        jobs = [task for task in dag.tasks if is_job(task)]
        # The second one is small, and runs only where a person was asked.
        asks = any(task.task_id == "approve" for task in dag.tasks)
        sparkless = {"capstan_attention", "capstan_unlock", "capstan_pause"}
        none = dag.dag_id in sparkless | {"example_follow_flights"}
        assert len(jobs) == (0 if none else 1 + asks)
        assert all(task.retries == 2 for task in jobs)
        assert all(task.retry_delay == timedelta(seconds=30) for task in jobs)
        assert len(dag.tasks) <= 6


def test_a_plan_starts_spark_only_where_that_is_asked_for(dags: dict[str, DAG]) -> None:
    plans = [
        task for dag in dags.values() for task in dag.tasks if isinstance(task, PlanReplayOperator)
    ]
    assert {task.dag.dag_id for task in plans} == {"capstan_replay", "capstan_backfill__by_day"}
    assert not any(task.dag.params["diff"] for task in plans)


def test_the_bench_knows_the_tasks_of_a_replay(dags: dict[str, DAG]) -> None:
    tasks = {task.task_id for task in dags["capstan_replay"].tasks}
    assert set(TASKS) == tasks - {"approve", "publish"}


def test_what_waits_long_is_tried_again(dags: dict[str, DAG]) -> None:
    waiting = [
        task for dag in dags.values() for task in dag.tasks if isinstance(task, FrontierSensor)
    ]
    assert [task.retries for task in waiting] == [5] * len(waiting) != []


def test_every_dag_and_task_says_what_it_is(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        assert dag.doc_md
        assert "capstan" in dag.tags
        assert all(task.doc_md for task in dag.tasks)
        if dag.dag_id.startswith("capstan"):
            assert "| 4 | another run holds that range |" in dag.doc_md


def test_schedules_are_named_and_in_utc(dags: dict[str, DAG]) -> None:
    capture, backfill = dags["capstan_capture__little"], dags["capstan_backfill__by_day"]
    assert capture.timetable == CronTriggerTimetable("@hourly", timezone="UTC")
    assert backfill.timetable == CronDataIntervalTimetable("@daily", timezone="UTC")
    assert isinstance(dags["capstan_replay"].timetable, PartitionedAtRuntime)
    assert capture.max_active_runs == 1
    assert not any(dag.catchup for dag in dags.values())
    assert str(backfill.start_date)[:10] == "2024-05-01"
    assert str(backfill.end_date)[:10] == "2024-05-05"


def test_a_table_in_a_catalog_has_one_asset_however_it_is_named() -> None:
    declared = ProjectConfig(
        Path("streams.yaml"),
        {},
        {},
        {
            "sold": Target(name="sold", table="Shop.`sold`", asset="s3://shop/sold"),
            "paid": Target(name="paid", path="/data/paid"),
        },
        {},
    )
    assert table_asset("spark_catalog.shop.sold", declared).uri == "s3://shop/sold"
    assert table_asset("Shop.Paid", declared).uri == "capstan://tables/shop.paid"
    assert table_asset("shop.paid").name == "capstan/tables/shop.paid"


def test_spark_tasks_are_in_the_pool_that_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_POOL", "spark")
    monkeypatch.setenv("CAPSTAN_CONNECTION", "other")
    for dag in place.bag().dags.values():
        for task in dag.tasks:
            assert task.pool == ("spark" if is_job(task) else "default_pool")
            if isinstance(task, CapstanSubmitOperator):
                assert task._conn_id == "other"


def test_dags_survive_serialization(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        once = DagSerialization.to_dict(dag)
        json.dumps(once)
        again = DagSerialization.from_dict(once)
        assert [t.task_id for t in again.tasks] == [t.task_id for t in dag.tasks]
        assert DagSerialization.to_dict(dag) == once


def test_tapes_are_kept_up_each_night_one_run_at_a_time(dags: dict[str, DAG]) -> None:
    dag = dags["capstan_maintain"]
    assert dag.timetable == CronTriggerTimetable("0 0 * * *", timezone="UTC")
    assert dag.max_active_runs == 1
    task = dag.get_task("maintain")
    assert isinstance(task, CapstanSubmitOperator)
    assert Path(str(task.application)).is_file()
    assert dag.params.get_param("streams").schema["examples"] == ["little"]
    assert validated(dag, {})["streams"] is None
    assert validated(dag, {"streams": ["little"]})["streams"] == ["little"]
    with pytest.raises(ParamValidationError):
        validated(dag, {"streams": "little"})


def validated(dag: DAG, conf: dict[str, object]) -> dict[str, object]:
    params = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params
    return dict(params.deep_merge(conf).validate())  # type: ignore[attr-defined]


def test_the_form_offers_what_exists(dags: dict[str, DAG]) -> None:
    params = DagSerialization.from_dict(DagSerialization.to_dict(dags["capstan_replay"])).params
    form = {name: params.get_param(name) for name in params}
    assert (form["stream"].value, form["stream"].schema["enum"]) == ("little", [None, "little"])
    assert form["into"].schema["examples"] == ["by_day"]
    assert form["transform"].schema["enum"] == [None, "by_day"]
    assert form["pipeline"].schema["enum"] == [None, "places"]
    sections = [param.schema.get("section") for param in form.values()]
    assert list(dict.fromkeys(sections)) == [None, INPUT, OUTPUT, CHANGES, HOW]
    assert all(param.schema["title"] for param in form.values())


def test_approval_asks_only_for_a_reason(dags: dict[str, DAG]) -> None:
    for name in ("capstan_replay", "capstan_backfill__by_day"):
        assert list(dags[name].get_task("approve").params) == ["reason"]


def test_the_form_takes_a_replay(dags: dict[str, DAG]) -> None:
    actual = validated(dags["capstan_replay"], {"into": "t", "workers": ["a"], "as_of": 3})
    assert (actual["stream"], actual["mode"], actual["since"]) == ("little", None, None)
    for text in (None, "", "orders=sold+resold, payments=paid"):
        requested = {"into": "t", "streams": text}
        assert validated(dags["capstan_replay"], requested)["streams"] == text
    several = {"into": "t", "workers_of": ["orders=a", "payments=b"]}
    assert validated(dags["capstan_replay"], several)["workers_of"] == several["workers_of"]
    assert validated(dags["capstan_backfill__by_day"], {})["workers"] is None
    assert validated(dags["capstan_audit"], {"newest": 1})["target"] is None
    assert validated(dags["capstan_audit"], {})["newest"] is None
    assert validated(dags["capstan_rollback"], {"run": "t-1"})["run"] == "t-1"
    for conf in ({}, {"run": ""}, {"run": None}):
        with pytest.raises(ParamValidationError):
            validated(dags["capstan_rollback"], conf)


@pytest.mark.parametrize(
    "conf",
    [
        {"into": ""},
        {"into": "t", "stream": "other"},
        {"into": "t", "workers": "a"},
        {"into": "t", "workers": [1]},
        {"into": "t", "since": 7},
        {"into": "t", "transform": "other"},
        {"into": "t", "pipeline": "other"},
        {"into": "t", "sink": 1},
        {"into": "t", "streams": "sold"},
        {"into": "t", "streams": {"orders": "sold", "payments": "paid"}},
        {"into": "t", "mode": "overwrite"},
        {"into": "t", "as_of": -1},
        {"into": "t", "peers": 0},
        {"into": "t", "partial": "yes"},
        {"into": "t", "dry_run": "no"},
        {"into": "t", "workers_of": {"orders": ["a"]}},
        {"into": "t", "cuts": {"orders": 1}},
    ],
)
def test_the_form_refuses_what_is_none(dags: dict[str, DAG], conf: dict[str, object]) -> None:
    with pytest.raises(ParamValidationError):
        validated(dags["capstan_replay"], conf)


def test_the_form_offers_labels_that_were_captured(place: Place) -> None:
    from capstan.airflow.lake_files import labels_by_stream, remember_labels

    setting = read_settings(DAGS / "any.py")
    assert labels_by_stream(setting) == {"little": ()}
    remember_labels(setting, "little", ["a", "b"])
    remember_labels(setting, "gone", ["c"])
    assert labels_by_stream(setting) == {"little": ("a", "b")}
    by_key = replace(setting.declarations.streams["little"], workers=ByKey(("id",), 2))
    rescaled = replace(
        setting, declarations=replace(setting.declarations, streams={"little": by_key})
    )
    remember_labels(setting, "little", ["0", "1", "2", "3", "4"])
    assert labels_by_stream(rescaled) == {"little": ("0", "1", "2", "3", "4")}
    remember_labels(setting, "little", ["a", "b"])
    params = place.bag().dags["capstan_replay"].params
    assert params.get_param("workers").schema["examples"] == ["a", "b"]
    (Path(setting.lake) / "labels.json").write_text("[not json", encoding="utf-8")
    assert labels_by_stream(setting) == {"little": ()}


def test_without_streams_there_is_no_replay_by_hand(place: Place) -> None:
    place.streams.write_text("streams: {}\n", encoding="utf-8")
    bag = place.bag()
    assert bag.import_errors == {}
    assert sorted(bag.dags) == [
        "capstan_attention", "capstan_audit", "capstan_maintain", "example_follow_flights",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "key"),
    [
        ("    workers: {by:", "    wrokers: {by:", 10, "streams.little.wrokers"),
        ('    schedule: "@hourly"', '    schedule: "@often"', 12, "streams.little.schedule"),
        ('    schedule: "@hourly"', '    schedule: "99 * * * *"', 12, "streams.little.schedule"),
        ('    schedule: "@daily"', '    schedule: "0 0 31 2 *"', 33, "replays.by_day.schedule"),
        ("  by_day: {time: day}", "  by_day: {tame: day}", 23, "targets.by_day.tame"),
    ],
)
def test_a_wrong_declaration_is_an_import_error_with_its_place(
    place: Place, old: str, new: str, line: int, key: str
) -> None:
    assert old in place.streams.read_text(encoding="utf-8")
    place.streams.write_text(
        place.streams.read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )
    [(file, text)] = place.bag().import_errors.items()
    assert file.endswith("capstan_declarations.py")
    reported = f"CAP-DECLARE: {place.streams}:{line}: {key}: "
    assert reported in text.strip().splitlines()[-1]


OTHER = """
  web:
    source: {format: parquet, path: "{lake}/../web"}
    worker: {by: key, columns: [id], count: 2}
    time: {domain: epoch}
"""


@pytest.mark.parametrize(
    ("mistake", "gone"),
    [
        (("streams:\n", f"streams:{OTHER}"), set()),
        (('    schedule: "@hourly"', '    schedule: "@often"'), {"capstan_capture__little"}),
        (('    schedule: "@daily"', '    schedule: "@often"'), {"capstan_backfill__by_day"}),
        (("  by_day: {time: day}", "  by_day: {tame: day}"), set()),
        (("streams:\n", "stremas: {}\nstreams:\n"), set()),
    ],
)
def test_a_mistake_takes_down_its_own_dags_alone(
    place: Place, mistake: tuple[str, str], gone: set[str]
) -> None:
    before = set(place.bag().dags)
    text = place.streams.read_text(encoding="utf-8")
    assert mistake[0] in text
    place.streams.write_text(text.replace(*mistake, 1), encoding="utf-8")
    bag = place.bag()
    assert len(bag.import_errors) == 1
    assert before - set(bag.dags) == gone


def test_a_file_that_is_no_yaml_leaves_what_needs_none(place: Place) -> None:
    place.streams.write_text("streams: [", encoding="utf-8")
    bag = place.bag()
    assert [file.rpartition("/")[2] for file in bag.import_errors] == ["capstan_declarations.py"]
    assert {"capstan_audit", "capstan_maintain"} <= set(bag.dags)


FOLLOWS = """
  pairs:
    stream: little
    pipeline: places
    sink: pairs
    target: pairs
    follow: pairs
"""


@pytest.mark.parametrize("schedule", ["@daily", None])
def test_a_replay_that_follows_has_a_dag_of_its_own(place: Place, schedule: str | None) -> None:
    with place.streams.open("a", encoding="utf-8") as file:
        file.write(FOLLOWS + (f'    schedule: "{schedule}"\n' if schedule else ""))
    bag = place.bag()
    assert bag.import_errors == {}
    # Runs that wait for a person or for times are in nobody's way.
    assert bag.dags["capstan_replay"].max_active_runs == 32
    assert bag.dags["capstan_backfill__by_day"].max_active_runs == 16
    assert "capstan_backfill__pairs" not in bag.dags
    dag = bag.dags["capstan_follow__pairs"]
    tasks = [task.task_id for task in dag.topological_sort()]
    assert tasks == ["plan", "replay", "approve", "publish", "certificate"]
    expected = CronTriggerTimetable("@daily", timezone="UTC") if schedule else None
    assert (dag.timetable == expected) if schedule else (dag.schedule is None)
    # A run goes on from the one before.
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert set(dag.params) == {"peers", "adopt", "dry_run", "diff"}
    assert dag.params["peers"] is None


def test_intervals_of_epochs_are_refused_with_their_place(place: Place) -> None:
    text = place.streams.read_text(encoding="utf-8")
    text = text.replace(
        "time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}",
        "time: {domain: epoch}",
    ).replace("    since: 2024-05-01\n    until: 2024-05-06\n", "")
    place.streams.write_text(text, encoding="utf-8")
    setting = read_settings(DAGS / "any.py")
    assert list(backfill_dags(setting)) == []
    with pytest.raises(
        InvalidRequestError,
        match="replays.by_day.schedule: needs data intervals, but the times of little are epochs",
    ):
        require_none(setting)


def test_dag_files_parse_fast_and_load_no_spark(place: Place) -> None:
    actual = [parse(place.streams, place.root)]
    # Of processor time, and the best of three: other work on the machine does not count.
    while max(spent for spent, _, _ in actual[-1].values()) >= 0.5 and len(actual) < 3:
        actual.append(parse(place.streams, place.root))
    best = {name: min(item[name][0] for item in actual) for name in FILES}
    assert set(best) == {"capstan_dags.py", "capstan_declarations.py", "example_follow_flights.py"}
    assert max(best.values()) < 0.5, best
    assert {loaded for _, _, loaded in actual[-1].values()} == {()}


@pytest.mark.rest
def test_a_hundred_streams_make_a_hundred_dags_and_load_no_spark(place: Place) -> None:
    place.streams.write_text(many_streams(100), encoding="utf-8")
    actual = parse(place.streams, place.root)
    # Of a hundred streams and ten replays; the rest does not grow with them.
    assert actual["capstan_dags.py"][1] == 120
    assert {loaded for _, _, loaded in actual.values()} == {()}


def test_the_package_imports_neither_airflow_nor_spark() -> None:
    code = (
        "import capstan.airflow, sys; print(any(m in sys.modules for m in ('airflow', 'pyspark')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
