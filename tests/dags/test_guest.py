"""Capstan as a guest: its operators, task group and DAGs in DAG files of somebody else."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from airflow.models.asset import AssetEvent
from airflow.sdk import DAG
from airflow.sdk.exceptions import DownstreamTasksSkipped
from airflow.sdk.execution_time import macros
from airflow.sdk.timezone import coerce_datetime
from airflow.sdk.types import TaskInstanceKey
from airflow.utils.session import create_session
from sqlalchemy import select

import capstan.airflow
from capstan.airflow import (
    AuditOperator,
    BackfillOperator,
    CapstanTaskGroup,
    CaptureOperator,
    PlanOperator,
    ReplayOperator,
    capstan_dags,
)
from capstan.airflow.assets import REPLAYED, stream_asset, table_asset
from capstan.airflow.dags.defaults import task_defaults
from capstan.airflow.lake_files import read_page_settings, remember_declarations
from capstan.airflow.operators.plan import ReplayArguments
from capstan.airflow.operators.replay import SubmitReplayOperator
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import TaskRefusedError, log_error_last
from capstan.airflow.tasks.lineage import lineage
from capstan.airflow.tasks.links import CertificateLink
from capstan.cli.scaffold import write_project
from capstan.core.config import load_sound
from capstan.core.config.help import fields_of
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from tests.support.docs import blocks, page, section, table
from tests.support.sample_streams import lay_in, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import FakeSubmit, Place

FILE = """
from airflow.sdk import DAG

from capstan.airflow import (
    AuditOperator, BackfillOperator, CaptureOperator, CapstanTaskGroup, FrontierSensor,
    ReplayOperator,
)

def alert(context):
    pass

with DAG("theirs", schedule=None, default_args={"owner": "ada", "pool": "big", "queue": "q",
                                                "on_failure_callback": alert}):
    captured = CaptureOperator(task_id="captured", stream="little")
    ready = FrontierSensor(task_id="ready", stream="little", until="{{ data_interval_end }}")
    one = ReplayOperator(task_id="one", stream="little", target="one", workers=["a"])
    two = ReplayOperator(task_id="two", stream="little", target="{{ params.into }}",
                         since="{{ ds }}", pool="small")
    first = CapstanTaskGroup("first", target="three", fields={"stream": "little"})
    second = CapstanTaskGroup("second", target="four", fields={"stream": "little"})
    filled = BackfillOperator(task_id="filled", replay="by_day")
    audited = AuditOperator(task_id="audited", runs="{{ ti.xcom_pull('one')['run'] }}")
    captured >> ready >> [one, two] >> first >> second >> filled >> audited
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dags" / "theirs.py"
    path.parent.mkdir()
    path.write_text(FILE, encoding="utf-8")
    return path


def test_operators_sensors_and_groups_stand_in_one_dag(place: Place, file: Path) -> None:
    bag = place.bag(file)
    assert bag.import_errors == {}
    dag = bag.dags["theirs"]
    parts = ("plan", "replay", "approve", "publish", "certificate")
    groups = {f"{group}.{part}" for group in ("first", "second") for part in parts}
    flat = {"captured", "ready", "one", "two", "filled", "audited"}
    assert set(dag.task_ids) == groups | flat
    assert {dag.get_task(name).owner for name in dag.task_ids} == {"ada"}
    assert {dag.get_task(name).queue for name in flat} == {"q"}
    pools = {name: dag.get_task(name).pool for name in ("captured", "one", "two", "filled")}
    assert pools == {"captured": "big", "one": "big", "two": "small", "filled": "big"}
    # The error's own line stays last.
    for name in dag.task_ids:
        callbacks = dag.get_task(name).on_failure_callback
        assert [callback.__name__ for callback in callbacks] == ["alert", "log_error_last"]
    for name in ("one", "two"):
        assert {"stream", "target", "workers", "since", "until", "lake", "config"} <= set(
            dag.get_task(name).template_fields
        )


def test_all_dags_take_what_dags_take(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    monkeypatch.delenv("CAPSTAN_CONFIG")
    bag = place.bag(folder)
    assert bag.import_errors == {}
    assert sorted(bag.dags) == [
        "capstan_attention", "capstan_audit", "capstan_backfill__revenue_by_day",
        "capstan_capture__orders", "capstan_gaps", "capstan_maintain", "capstan_pause",
        "capstan_put_back", "capstan_replay", "capstan_rollback", "capstan_unlock",
        "capstan_verify",
    ]  # fmt: skip
    (folder / "capstan_dags.py").write_text(
        "from capstan.airflow import capstan_dags\n"
        "globals().update(capstan_dags(__file__, prefix='sales_', tags=['sales'], pool='big',\n"
        "    default_args={'owner': 'ada', 'executor_config': {'a': 1}}, kinds=['capture']))\n",
        encoding="utf-8",
    )
    [(name, dag)] = place.bag(folder).dags.items()
    task = dag.get_task("capture")
    assert (name, dag.tags) == ("sales_capture__orders", {"capstan", "capture", "sales"})
    assert (task.owner, task.pool, task.executor_config) == ("ada", "big", {"a": 1})


def test_the_dag_s_pool_overrides_the_environment_s(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_POOL", "spark")
    dag = place.bag(file).dags["theirs"]
    assert {dag.get_task(name).pool for name in ("captured", "one", "first.replay")} == {"big"}
    assert dag.get_task("two").pool == "small"


def test_retries_and_callbacks_of_default_args_apply_to_all_dags(place: Place) -> None:
    given = {"retries": 7, "on_failure_callback": print}
    setting = replace(read_settings(place.root / "any.py"), default_args=given)
    usual = task_defaults(setting)
    assert (usual["retries"], usual["retry_delay"]) == (7, timedelta(seconds=30))
    assert usual["on_failure_callback"] == [print, log_error_last]


def test_tasks_keep_callbacks_of_default_args(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    monkeypatch.delenv("CAPSTAN_CONFIG")
    (folder / "capstan_dags.py").write_text(
        "from capstan.airflow import capstan_dags\n"
        "globals().update(capstan_dags(__file__, default_args={'on_failure_callback': print}))\n",
        encoding="utf-8",
    )
    tasks = [task for dag in place.bag(folder).dags.values() for task in dag.tasks]
    assert len(tasks) > 15
    for task in tasks:
        callbacks = task.on_failure_callback
        assert (callbacks[0], callbacks[-1]) == (print, log_error_last), task


def test_the_certificate_link_leads_to_the_task_that_shows_it() -> None:
    def address(operator: Any, task: str, number: int = -1) -> str:
        key = TaskInstanceKey(dag_id="d", task_id=task, run_id="r", map_index=number)
        return CertificateLink().get_link(operator, ti_key=key).partition("/tasks/")[2]

    alone = ReplayOperator(task_id="one", stream="little", target="t")
    assert address(alone, "group.one") == "group.one/rendered_templates"
    assert address(alone, "one", 3) == "one/mapped/3/rendered_templates"
    assert address(SubmitReplayOperator(task_id="t"), "first.replay") == (
        "first.certificate/rendered_templates"
    )


def test_a_templated_name_is_told_through_an_alias() -> None:
    assert ReplayOperator(task_id="a", target="t", stream="s").outlets == [REPLAYED]
    one = CaptureOperator(task_id="b", stream="little")
    assert one.outlets == [stream_asset("little")]
    assert one.max_active_tis_per_dag == 1
    [alias] = CaptureOperator(task_id="c", stream="{{ params.stream }}").outlets
    assert alias.name == "capstan/captured"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"approve": True}, "a run into t needs approval, which this task cannot ask for"),
        ({"dry_run": True}, "a ReplayOperator has no field 'dry_run'"),
    ],
)
def test_one_task_refuses_what_takes_several(
    taped: Place,
    submit: FakeSubmit,
    execute: Any,
    context: Any,
    fields: dict[str, object],
    told: str,
) -> None:
    task = ReplayOperator(
        task_id="t", stream="little", target="t", until="2024-05-02", fields=fields
    )
    with pytest.raises(TaskRefusedError, match=f"^CAP-REQUEST: {told}"):
        execute(task, context())
    assert submit.calls == []


def own_dag() -> str:
    """The DAG of the documentation."""
    [text] = blocks(section(page("airflow"), "In a DAG of your own"), "python")
    return text


def test_the_dag_of_the_documentation_loads(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    (folder / "shop.py").write_text(own_dag(), encoding="utf-8")
    bag = place.bag(folder)
    assert bag.import_errors == {}
    dag = bag.dags["shop"]
    assert {"captured", "complete", "copied", "revenue.plan", "revenue.approve"} < set(dag.task_ids)
    declared = load_sound(folder / "streams.yaml", lake="/l")
    assert {"orders"} == set(declared.streams) and "revenue_by_day" in declared.transforms
    # Its operators, and what of them is templated, are those of the table.
    for name, _, fields in table(page("airflow"), "operator"):
        kind = getattr(capstan.airflow, name.strip("`"))
        assert name == "`CapstanTaskGroup`" or {
            *re.findall(r"`(\w+)`", fields), "lake", "config"
        } <= set(kind.template_fields)  # fmt: skip


def test_the_dag_of_the_documentation_replays_a_day_in_each_run(
    place: Place, tmp_path: Path, context: Any
) -> None:
    """Of two runs that the scheduler makes, and of one by hand; see `test_other_operators.py`."""
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import DataInterval, TimeRestriction

    (tmp_path / "shop.py").write_text(own_dag(), encoding="utf-8")
    dag = place.bag(tmp_path / "shop.py").dags["shop"]
    timetable = coerce_to_core_timetable(dag.timetable)
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    made: list[DataInterval] = []
    for _ in range(2):
        actual = timetable.next_dagrun_info(
            last_automated_data_interval=made[-1] if made else None,
            restriction=TimeRestriction(coerce_datetime(begin), None, catchup=True),
        )
        assert actual is not None
        made.append(actual.data_interval)
    by_hand = coerce_datetime(begin + timedelta(days=3, hours=5))
    made.append(timetable.infer_manual_data_interval(run_after=by_hand))
    assert [interval.start for interval in made] == [begin + timedelta(days=n) for n in range(3)]
    for interval in made:
        where = {"data_interval_start": interval.start, "data_interval_end": interval.end}
        for name in ("copied", "revenue.plan"):
            task = copy.copy(dag.get_task(name))
            task.render_template_fields({**context(), **where, "macros": macros})
            fields = vars(task) if name == "copied" else task.fields
            bounds = (fields["since"], fields["until"])
            assert bounds == (str(interval.start), str(interval.end))
            assert interval.end - interval.start == timedelta(days=1)


def test_workers_can_be_mapped(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "mapped.py"
    path.write_text(
        "from airflow.sdk import DAG\n"
        "from capstan.airflow import ReplayOperator\n"
        "with DAG('mapped', schedule=None):\n"
        "    ReplayOperator.partial(task_id='each', stream='little', target='t').expand(\n"
        "        workers=[['a'], ['b']])\n",
        encoding="utf-8",
    )
    bag = place.bag(path)
    assert bag.import_errors == {}
    assert bag.dags["mapped"].get_task("each").is_mapped


def test_a_mistake_is_the_import_error_of_one_file(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    monkeypatch.delenv("CAPSTAN_CONFIG")
    streams = folder / "streams.yaml"
    streams.write_text(
        streams.read_text(encoding="utf-8").replace("late: dead-letter", "late: never"),
        encoding="utf-8",
    )
    bag = place.bag(folder)
    [(path, error)] = bag.import_errors.items()
    assert path.endswith("capstan_declarations.py") and "streams.orders.late" in error
    assert "capstan_maintain" in bag.dags


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (
            lambda: CaptureOperator(task_id="t", stream="little", reseat=True),
            {"stream": "little", "reseat": True},
        ),
        (
            lambda: BackfillOperator(
                task_id="t", replay="by_day", since="2024-05-01", fields={"chunk": 2}
            ),
            {"replay": "by_day", "since": "2024-05-01", "until": None, "chunk": 2},
        ),
        (lambda: AuditOperator(task_id="t", runs="one-1"), {"audits": [{"run": "one-1"}]}),
        (
            lambda: AuditOperator(task_id="t", stream="little", table="one"),
            {"stream": "little", "table": "one"},
        ),
    ],
)
def test_what_an_operator_is_given_is_the_request(
    place: Place,
    submit: FakeSubmit,
    execute: Any,
    context: Any,
    make: Callable[[], Any],
    request_: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.require_moving", lambda *_: None)
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: ["a"])
    submit.answers({"exit": 0, "result": {"stream": "little", "runs": []}})
    execute(make(), context())
    assert submit.calls[0]["request"] == request_


@pytest.mark.parametrize("name", ["config", "streams"])
def test_a_task_may_name_a_lake_of_its_own(
    place: Place, submit: FakeSubmit, execute: Any, context: Any, tmp_path: Path, name: str
) -> None:
    """And a declaration file of its own, also by the former name of that argument."""
    other, config = tmp_path / "other", tmp_path / "other.yaml"
    config.write_text("streams: {}\n", encoding="utf-8")
    submit.answers({"exit": 0, "result": {"runs": []}})
    given: Any = {"lake": str(other), name: str(config)}
    operator = BackfillOperator(task_id="t", replay="by_day", **given)
    execute(operator, context())
    arguments: Any = submit.calls[0]["arguments"]
    assert arguments[arguments.index("--lake") + 1] == str(other)
    assert arguments[arguments.index("--config") + 1] == str(config)


GROUPS = """
from airflow.sdk import DAG

from capstan.airflow import CapstanTaskGroup

with DAG("groups", schedule=None, params={"until": "2024-05-02"}):
    for name in ("first", "second"):
        CapstanTaskGroup(name, target=f"{name}_table",
                         fields={"stream": "little", "until": "{{ params.until }}"})
"""


def test_task_groups_hand_their_requests_on(
    taped: Place, submit: FakeSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing import dagbag

    path = tmp_path / "groups" / "groups.py"
    path.parent.mkdir()
    path.write_text(GROUPS, encoding="utf-8")
    monkeypatch.setattr(dagbag, "BundleDagBag", lambda **_: taped.bag(path))
    done = {
        "run": "t-1", "stream": "little", "cut": 1, "records": 32, "published": True,
        "target": "t", "target_path": "/t", "target_version": 1, "attempt": 1, "times": 1,
        "workers": ["a"], "since": None, "until": "2024-05-02", "frontier": [], "complete": True,
    }  # fmt: skip
    submit.answers({"exit": 0, "result": done})
    run = taped.bag(path).dags["groups"].test()
    states = {task.task_id: task.state for task in run.get_task_instances()}
    for group in ("first", "second"):
        assert [states[f"{group}.{task}"] for task in ("plan", "replay", "certificate")] == [
            "success"
        ] * 3
        assert states[f"{group}.approve"] == states[f"{group}.publish"] == "skipped"
    requests: Any = [call["request"] for call in submit.calls]
    assert {request["into"] for request in requests} == {"first_table", "second_table"}
    assert {request["until"] for request in requests} == {"2024-05-02"}


SETTINGS = """
    spark: {spark.executor.memory: 3g, spark.dynamicAllocation.enabled: true}
"""


@pytest.mark.parametrize(
    ("make", "declared"),
    [
        (lambda: CaptureOperator(task_id="t", stream="little"), 'schedule: "@hourly"'),
        (lambda: BackfillOperator(task_id="t", replay="by_day"), 'schedule: "@daily"'),
    ],
)
def test_declared_spark_settings_are_submitted(
    place: Place,
    submit: FakeSubmit,
    execute: Any,
    context: Any,
    make: Callable[[], Any],
    declared: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.require_moving", lambda *_: None)
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: ["a"])
    text = place.streams.read_text(encoding="utf-8")
    place.streams.write_text(text.replace(declared, declared + SETTINGS), encoding="utf-8")
    submit.answers({"exit": 0, "result": {"stream": "little", "runs": []}})
    execute(make(), context())
    arguments: Any = submit.calls[0]["arguments"]
    confs = {arguments[n + 1] for n, item in enumerate(arguments) if item == "--conf"}
    assert {"spark.executor.memory=3g", "spark.dynamicAllocation.enabled=true"} <= confs
    memory = make()
    memory.conf = {"spark.driver.memory": "5g"}
    execute(memory, context())
    # The option would win over the setting.
    assert "--driver-memory" in arguments and "--driver-memory" not in submit.calls[1]["arguments"]


def test_names_of_spark_settings_and_assets_are_checked(place: Place) -> None:
    text = place.streams.read_text(encoding="utf-8")
    text = text.replace('schedule: "@hourly"', "spark: {sparkle.memory: 3g}").replace(
        "by_day: {time: day}", "by_day: {time: day, asset: orders}"
    )
    place.streams.write_text(text, encoding="utf-8")
    errors = [str(mistake.error) for mistake in load_sound(place.streams, lake="/l").mistakes]
    assert len(errors) == 3
    assert "streams.little.spark.sparkle.memory: 'sparkle.memory' is no Spark setting" in errors[0]
    assert "targets.by_day.asset: 'orders' is not a URI" in errors[1] + errors[2]


def test_a_declared_asset_stands_in_for_the_derived_one(place: Place) -> None:
    text = place.streams.read_text(encoding="utf-8")
    uri = "s3://shop/by_day"
    text = text.replace("by_day: {time: day}", f"by_day: {{time: day, asset: '{uri}'}}")
    place.streams.write_text(text, encoding="utf-8")
    bag = place.bag()
    assert bag.import_errors == {}
    [outlet] = bag.dags["capstan_backfill__by_day"].get_task("replay").outlets
    declared = load_sound(place.streams, lake=str(place.lake))
    assert (outlet.name, outlet.uri) == (uri, uri)
    assert outlet == table_asset("by_day", declared) != table_asset("by_day")
    assert table_asset("other", declared) == table_asset("other")
    certificate = {
        "stream": "little", "cut": 3, "published": True, "records": 1, "target_version": 2,
        "target_path": str(place.lake / "tables" / "by_day"),
    }  # fmt: skip
    [table] = lineage("replay", str(place.lake), certificate, declared).outputs
    assert (table.namespace, table.name) == ("s3://shop", "by_day")


def test_the_page_finds_the_declarations_in_the_lake(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = place.streams.read_text(encoding="utf-8").replace("{lake}/source", "{here}/source")
    place.streams.write_text(text, encoding="utf-8")
    nowhere = tmp_path / "nowhere"
    remember_declarations(read_settings(place.streams))
    own = read_page_settings(nowhere)
    assert own.config == place.streams
    monkeypatch.delenv("CAPSTAN_CONFIG")
    copied = read_page_settings(nowhere)
    assert copied.config == place.lake / "streams.yaml"
    assert copied.declarations.mistakes == ()
    assert copied.declarations.streams == own.declarations.streams
    copied.config.unlink()
    [mistake] = read_page_settings(nowhere).declarations.mistakes
    assert mistake.error.code == "CAP-DECLARE"


_WITHOUT_SPARK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "delta", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from airflow.dag_processing.dagbag import DagBag

bags = [DagBag(dag_folder=d, bundle_path=d, bundle_name="b") for d in sys.argv[1:]]
assert all(bag.import_errors == {} for bag in bags), [bag.import_errors for bag in bags]
assert all(bag.dags for bag in bags)

from starlette.testclient import TestClient
from capstan.airflow.web.plugin import CapstanPlugin, app

assert CapstanPlugin.fastapi_apps[0]["app"] is app
answer = TestClient(app).get("/")
print(answer.status_code, answer.text)
"""


def test_dag_files_and_the_plugin_load_without_pyspark(
    place: Place, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    folders = [str(Path(__file__).parents[2] / "dags"), str(folder), str(file.parent)]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK, *folders],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": os.defpath},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Only Capstan's own pages lack it; they say which package.
    assert "503 Capstan's pages need the package" in done.stdout


TWO_STREAMS = """
from datetime import timedelta
import os, tempfile

from airflow.sdk import DAG, TaskGroup

from capstan.airflow import CaptureOperator, FrontierSensor, ReplayOperator

def fresh(context):
    # Each task in a container of its own: nothing of an earlier one is left.
    os.environ["HOME"] = tempfile.mkdtemp(prefix="home-", dir={root!r})
    os.environ["CAPSTAN_WORK"] = os.environ["HOME"] + "/capstan"
    os.chdir(tempfile.mkdtemp(prefix="work-", dir={root!r}))

with DAG("two", schedule=None, default_args={{"pre_execute": fresh}}) as dag:
    with TaskGroup("read"):
        captured = [CaptureOperator(task_id=name, stream=name) for name in ("little", "other")]
    with TaskGroup("write") as write:
        ready = FrontierSensor(task_id="ready", stream="other", until="2024-05-02")
        first = ReplayOperator(task_id="first", stream="little", target="by_day",
                               fields={{"transform": "by_day"}}, since="2024-05-01",
                               until="{{{{ params.until }}}}", params={{"until": "2024-05-02"}})
        second = ReplayOperator(task_id="second", stream="other", target="copied",
                                workers=["a", "c"], until="2024-05-02")
        ready >> [first, second]
    captured >> write
"""


@pytest.mark.rest
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_two_streams_replay_without_a_shared_folder(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing import dagbag

    lay_in(place.lake / "source", rows(range(144), step=timedelta(minutes=30)), 1)
    declared = place.streams.read_text(encoding="utf-8")
    uri = "s3://shop/by_day"
    declared = declared.replace("by_day: {time: day}", f"by_day: {{time: day, asset: '{uri}'}}")
    start, end = declared.index("  little:"), declared.index("transforms:")
    other = declared[start:end].replace("  little:", "  other:", 1)
    place.streams.write_text(declared[:end] + other + declared[end:], encoding="utf-8")
    path = tmp_path / "two" / "two.py"
    path.parent.mkdir()
    path.write_text(TWO_STREAMS.format(root=str(tmp_path)), encoding="utf-8")
    for name in ("HOME", "CAPSTAN_WORK"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dagbag, "BundleDagBag", lambda **_: place.bag(path))
    assert place.bag(path).dags["two"].test().state == "success"
    labels = json.loads((place.lake / "labels.json").read_text(encoding="utf-8"))
    assert labels == {"little": ["a", "b", "c"], "other": ["a", "b", "c"]}
    days = deltalake.DeltaTable(place.lake / "tables" / "by_day").to_pyarrow_table().to_pylist()
    assert sum(row["seen"] for row in days) == 48
    copied = deltalake.DeltaTable(place.lake / "tables" / "copied").to_pyarrow_table()
    assert copied.num_rows == 32
    with create_session() as session:
        events = session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc()).limit(2))
        reported = {event.uri: event.extra["audit"]["passed"] for event in events}
    assert reported == {uri: True, "capstan://tables/copied": True}
    assert len(list(tmp_path.glob("home-*"))) == 5


def test_names_that_are_wrong_are_told_with_the_right_ones(place: Place) -> None:
    assert {"ReplayOperator", "ResultOperator", "capstan_dags"} <= set(dir(capstan.airflow))
    with pytest.raises(InvalidRequestError, match="'captures', did you mean 'capture'"):
        capstan_dags(place.root / "d.py", kinds=["captures"])
    assert set(capstan_dags(place.root / "d.py", kinds="replay")) == {"capstan_replay"}


def test_a_missing_airflow_is_told_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['airflow.providers.apache'] = None\n"
        "import capstan.airflow; capstan.airflow.ReplayOperator"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'capstan-replay[airflow]'" in done.stderr.splitlines()[-1]


def test_a_task_group_takes_what_a_replay_takes(taped: Place, execute: Any, context: Any) -> None:
    with DAG("d", schedule=None) as dag:
        CapstanTaskGroup("g", target="by_day", replay="by_day", until="2024-05-02", workers="a")
    plan = dag.get_task("g.plan")
    where = context()
    # It needs no approval, so the plan skips the tasks of one.
    with pytest.raises(DownstreamTasksSkipped):
        execute(plan, where)
    request = where["ti"].pushed["request"]
    assert (request["stream"], request["into"]) == ("little", "by_day")
    assert (request["workers"], request["until"][:10]) == (["a"], "2024-05-02")


def test_a_replay_that_fails_shows_no_certificate(
    taped: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 1, "result": {"error": "CAP-AUDIT", "message": "no", "hint": "look"}})
    task = ReplayOperator(task_id="t", stream="little", target="t", until="2024-05-02")
    with pytest.raises(TaskRefusedError, match="^CAP-AUDIT: no"):
        execute(task, context())
    assert task.shown == ""


def test_what_asks_for_a_replay_takes_the_same_arguments() -> None:
    takes = {
        kind: {
            name: (one.default, one.annotation)
            for name, one in inspect.signature(kind.__init__).parameters.items()
            if one.kind is one.KEYWORD_ONLY
        }
        for kind in (ReplayArguments, ReplayOperator, PlanOperator, CapstanTaskGroup)
    }
    first = takes[ReplayArguments]
    assert all(issubclass(kind, ReplayArguments) for kind in (ReplayOperator, PlanOperator))
    assert takes[ReplayOperator] == first
    assert takes[PlanOperator] == {"attempt": (None, "str | None")}
    # The group's tasks all need the place, and `wait` is one of its fields.
    more = takes[CapstanTaskGroup].items() - first.items()
    assert {name for name, _ in more} == {"lake", "config", "streams"}
    assert first.keys() - takes[CapstanTaskGroup].keys() == {"wait_for_times"}
    # Each is a field of a request under the same name, but for the target.
    assert first.keys() - {"wait_for_times", "fields"} <= {
        "target",
        *(field.name for field in fields_of(Request)),
    }
