"""What a form comes to: a request, which of a declared replay is as that is declared."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException

from capstan.airflow.dags.audit import ListAuditsOperator
from capstan.airflow.dags.form import NOT_IN_FORM, filled, replay_form
from capstan.airflow.lake_queries import OWN_FIELDS, list_audits, read_request, resolve
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.core.config.help import fields_of
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books, lay_tape

if TYPE_CHECKING:
    from conftest import Place

HOUR = 3_600_000_000
DAGS = Path(__file__).parents[2] / "dags"
MORE = """
  some: {stream: little, target: some, workers: [a, b], mode: merge, keys: [id], approve: true}
  changed:
    {stream: little, target: changed, mode: merge, keys: [id], sequence_by: [amount],
     delete_when: amount = 0, history: true}
  hours: {stream: little, pipeline: places, sink: hours, target: place_hours}
  pairs:
    {stream: little, pipeline: places, sink: pairs, target: pairs, follow: f, since: 2024-05-01}
"""
DAY = {"stream": "little", "into": "by_day", "since": "2024-05-01", "until": "2024-05-02"}
SOME = {"stream": "little", "into": "some", "mode": "merge", "replay": "some"}


@pytest.fixture
def setting(place: Place) -> Settings:
    with place.streams.open("a", encoding="utf-8") as file:
        file.write(MORE.lstrip("\n"))
    return read_settings(DAGS / "any.py")


def test_each_field_of_a_request_is_in_the_form(setting: Settings) -> None:
    form, fields = replay_form(setting), {field.name: field for field in fields_of(Request)}
    assert set(form) == (set(fields) - NOT_IN_FORM) | set(OWN_FIELDS)
    assert "hold" not in form
    # Airflow opens those without a section, and marks none that may be left out.
    usual = [name for name, param in form.items() if param.schema["section"] is None]
    assert usual == ["stream", "replay", "into", "since", "until", "workers"]
    assert all("null" in param.schema["type"] for param in form.values())
    for name in set(fields) - NOT_IN_FORM:
        shown = form[name].schema
        assert (shown["title"], shown["description_md"]) == (fields[name].title, fields[name].form)


def test_what_is_left_empty_is_as_declared(setting: Settings) -> None:
    actual = resolve(setting, filled({**DAY, "replay": "by_day", "workers": [], "transform": None}))
    assert actual == read_request({**DAY, "replay": "by_day", "transform": "by_day"})
    actual = resolve(setting, filled({**SOME, "workers": None, "keys": [], "approve": False}))
    assert (actual.workers, actual.keys, actual.approve) == (("a", "b"), ("id",), True)
    assert resolve(setting, {**SOME, "workers": ["b"]}).workers == ("b",)


def test_a_declared_replay_is_enough(setting: Settings) -> None:
    actual = resolve(setting, filled({"replay": "by_day", "stream": None, "into": " ", "mode": ""}))
    bounds = {"since": "2024-05-01T00:00:00+00:00", "until": "2024-05-06T00:00:00+00:00"}
    expected = {**DAY, **bounds, "replay": "by_day", "transform": "by_day"}
    assert actual == read_request(expected)
    # One bound is given, the other one is as declared; and so is how the target changes.
    part = resolve(setting, {"replay": "by_day", "since": "2024-05-04"})
    assert (part.since, part.until) == ("2024-05-04", bounds["until"])
    assert resolve(setting, {"replay": "some"}) == resolve(setting, SOME)
    for given, key in (({"into": "t"}, "stream"), ({"stream": "little"}, "into"), ({}, "stream")):
        with pytest.raises(InvalidRequestError, match="nor a declared replay is chosen") as caught:
            resolve(setting, given)
        assert (caught.value.code, caught.value.fields["key"]) == ("CAP-REQUEST", key)


def test_the_rule_of_a_merge_is_always_as_declared(setting: Settings) -> None:
    fields = {"stream": "little", "into": "changed", "mode": "merge", "replay": "changed"}
    actual = resolve(setting, fields)
    assert (actual.sequence_by, actual.delete_when) == (("amount",), "amount = 0")
    assert (actual.keys, actual.history) == (("id",), True)


def test_a_declared_pipeline_is_what_is_played(setting: Settings) -> None:
    requested = {"stream": "little", "into": "place_hours", "replay": "hours"}
    actual = resolve(setting, requested)
    assert (actual.transform, actual.pipeline, actual.sink) == (None, "places", "hours")
    for more, key in (({"pipeline": "other", "sink": "hours"}, "pipeline"),
                      ({"pipeline": "places", "sink": "other"}, "sink")):  # fmt: skip
        with pytest.raises(InvalidRequestError) as caught:
            resolve(setting, {**requested, **more})
        assert (caught.value.code, caught.value.fields["key"]) == ("CAP-REQUEST", key)


def test_a_run_without_times_of_a_replay_that_follows_does_so(setting: Settings) -> None:
    requested = {"stream": "little", "into": "pairs", "replay": "pairs"}
    actual = resolve(setting, {**requested, "peers": 3})
    assert (actual.follow, actual.peers, actual.since) == ("f", 3, "2024-05-01T00:00:00+00:00")
    assert (actual.pipeline, actual.sink, actual.until) == ("places", "pairs", None)
    assert resolve(setting, {**requested, "follow": "f"}) == resolve(setting, requested)
    # A part is repaired as by any other replay.
    part = resolve(setting, {**requested, "since": "2024-05-01", "until": "2024-05-02"})
    assert (part.follow, part.since) == (None, "2024-05-01")
    for name, other in ((requested, "g"), (DAY | {"replay": "by_day", "until": None}, "f")):
        with pytest.raises(InvalidRequestError, match=f"has follow (f|none), not {other}"):
            resolve(setting, {**name, "follow": other})


@pytest.mark.parametrize(
    ("given", "lacks"), [({"stream": "little"}, "target"), ({"into": "t"}, "stream")]
)
def test_a_form_with_neither_a_replay_nor_what_it_declares_is_refused(
    setting: Settings, given: dict[str, str], lacks: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"neither a {lacks} nor a declared replay"):
        resolve(setting, given)


@pytest.mark.parametrize("into", ["some", "{lake}/tables/some"])
def test_a_table_that_a_person_decides_on_is_so_for_every_run(setting: Settings, into: str) -> None:
    requested = {**DAY, "into": into.format(lake=setting.lake)}
    assert resolve(setting, requested).approve
    assert not resolve(setting, {**requested, "into": "other"}).approve
    # Nobody knows yet which table has this name.
    assert resolve(setting, {**requested, "into": "shop.other"}).approve
    deltalake.DeltaTable.create(
        f"{setting.lake}/tables/shop.other", pa.schema([("id", pa.int64())])
    )
    assert not resolve(setting, {**requested, "into": "shop.other"}).approve
    with pytest.raises(InvalidRequestError, match="CAP-NAME"):
        resolve(setting, {**requested, "into": "../some"})


def test_without_a_declared_replay_nothing_is_added(setting: Settings) -> None:
    assert resolve(setting, {**DAY, "replay": None}) == read_request(DAY)


@pytest.mark.parametrize(
    ("more", "key", "said"),
    [
        ({"into": "other"}, "into", "replay by_day has into by_day, not other"),
        ({"mode": "append"}, "mode", "replay by_day has mode replace, not append"),
        ({"keys": ["id"]}, "keys", "replay by_day has keys none, not id"),
        ({"transform": "other"}, "transform", "replay by_day has transform by_day, not other"),
        ({"stream": "other"}, "stream", "replay by_day has stream little, not other"),
    ],
)
def test_what_is_declared_otherwise_is_refused(
    setting: Settings, more: dict[str, object], key: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(setting, {**DAY, "replay": "by_day", **more})
    assert (caught.value.code, caught.value.message) == ("CAP-REQUEST", said)
    assert caught.value.fields["key"] == key


@pytest.mark.parametrize(
    ("name", "code"), [("none_such", "CAP-REPLAY"), ("a'b", "CAP-NAME"), ("../x", "CAP-NAME")]
)
def test_a_replay_that_is_not_declared(setting: Settings, name: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(setting, {**DAY, "replay": name})
    assert caught.value.code == code


@pytest.fixture
def foreign(place: Place) -> Settings:
    """A lake with the stream on tape, and a table `old` that no replay has made."""
    lake = Lake.at(place.lake)
    lay_tape(lake, "little", "ab", [(HOUR,)], (2 * HOUR,))
    moment = datetime(1970, 1, 1, 1, tzinfo=UTC)
    rows = pa.table(
        {"id": [1], "house": ["a"], "at": pa.array([moment], pa.timestamp("us", "UTC"))}
    )
    deltalake.write_deltalake(lake.table("old"), rows)
    return read_settings(DAGS / "any.py")


def test_a_table_of_others_is_held_against_a_stream(
    foreign: Settings, execute: Any, context: Any
) -> None:
    def listed(**params: object) -> Any:
        requested = {"stream": "little", "target": "old", "runs": None, **params}
        task = ListAuditsOperator(task_id="plan", settings=foreign)
        return execute(task, {**context(), "params": requested})

    columns = {"worker_column": "house", "time_column": "at"}
    actual = listed(**columns)
    assert actual["request"] == {"stream": "little", "table": "old", **columns}
    more = {"columns": ["id"], "version": 0}
    assert listed(**columns, **more)["request"] == {**actual["request"], **more}
    for given, code in (
        ({**columns, "version": 7}, "CAP-VERSION"),
        ({}, "CAP-AUDIT-COLUMNS"),
        ({**columns, "target": None}, "CAP-REQUEST"),
        ({**columns, "runs": ["a"]}, "CAP-REQUEST"),
        ({**columns, "target": "older"}, "CAP-TABLE"),
        ({**columns, "target": "x' OR 1"}, "CAP-"),
        ({**columns, "time_column": "x`; DROP"}, "CAP-AUDIT-COLUMNS"),
    ):
        with pytest.raises(TaskRefusedError, match=f"^{code}"):
            listed(**given)


@pytest.fixture
def published(place: Place) -> Settings:
    """A lake in which two tables have three and four runs each that stand, a day each."""
    lake = Lake.at(place.lake)
    for table, days in (("aaa", 4), ("zzz", 3)):
        books = Books(lake, "little", lake.table(table))
        for day in range(days):
            books.published(f"{table}-{day}", (0,), Region(Box((day,), (day + 1,))))
    return read_settings(DAGS / "any.py")


def test_an_unpublished_target_has_nothing_to_audit(
    published: Settings, execute: Any, context: Any
) -> None:
    where = {**context(), "params": {"target": "by_day", "runs": None, "newest": None}}
    with pytest.raises(AirflowSkipException):
        execute(ListAuditsOperator(task_id="plan", settings=published), where)


def test_all_that_stands_in_every_table_is_audited(published: Settings) -> None:
    actual = list_audits(published, None, None, None)
    assert actual.left_out == ()
    names = [audit["run"] for audit in actual.audits]
    assert names == [*(f"aaa-{day}" for day in (3, 2, 1, 0)), *(f"zzz-{day}" for day in (2, 1, 0))]
    assert {audit["version"] for audit in actual.audits} == {None}


def test_what_is_left_out_of_audits_is_named(
    published: Settings, execute: Any, context: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {**context(), "params": {"target": None, "runs": None, "newest": 2}}
    actual = execute(ListAuditsOperator(task_id="plan", settings=published), where)
    runs = [item["run"] for item in actual["request"]["audits"]]
    # So many of each table: none is passed over for another.
    assert runs == ["aaa-3", "aaa-2", "zzz-2", "zzz-1"]
    assert (actual["count"], actual["left_out"]) == (4, ["aaa-1", "aaa-0", "zzz-0"])
    assert "`newest` leaves out 3 more: aaa-1, aaa-0, zzz-0" in capsys.readouterr().out


def test_audits_are_of_what_stands(place: Place, execute: Any, context: Any) -> None:
    lake = Lake.at(place.lake)
    books = Books(lake, "little", lake.table("twice"))
    # The later one is over half of what the first one has published.
    books.published("first", (0,), Region(Box((0,), (2,))))
    books.published("second", (0,), Region(Box((1,), (3,))))
    setting = read_settings(DAGS / "any.py")

    def listed(**params: object) -> Any:
        where = {**context(), "params": {"target": None, "runs": None, "newest": None, **params}}
        answer = execute(ListAuditsOperator(task_id="plan", settings=setting), where)
        return answer["request"]["audits"]

    actual = listed(target="twice")
    assert actual == [{"run": "second", "version": None}, {"run": "first", "version": 1}]
    assert listed(target="twice", newest=1) == actual[:1]
    assert listed(runs=["first"]) == actual[1:]
    with pytest.raises(TaskRefusedError, match="CAP-TARGET: no replay has published into 'by_dya'"):
        listed(target="by_dya")
    with pytest.raises(TaskRefusedError, match="CAP-RUN: run 'none' has no published rows"):
        listed(runs=["none"])
