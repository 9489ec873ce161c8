"""What is given and empty, in each way in that needs neither Spark nor Airflow; and other types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from capstan.api.context import Context
from capstan.backfill.planner import BackfillRequest
from capstan.cli import main
from capstan.core.config import load_config
from capstan.core.config.loading.validation import read_request, reread
from capstan.core.config.request_fields import is_empty
from capstan.errors import CapstanError, InvalidRequestError
from capstan.jobs import handlers
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import lay_tape

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000
MIDNIGHT = datetime.fromisoformat("1970-01-01")
EMPTY = ("", " \t", "None", "null", "[]", "{}", "{{ x }}")
TEXTS = ("stream", "into", "since", "until", "workers", "transform", "pipeline", "sink", "mode",
         "keys", "sequence_by", "delete_when", "follow", "replay", "as_of", "known_at",
         "peers")  # fmt: skip
DECLARED = """
streams:
  s:
    source: {{format: parquet, path: /x, schema: "id BIGINT, at TIMESTAMP, p STRING"}}
    workers: {{by: column, column: p}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 2 hours}}
replays:
  r: {{stream: s, target: x, {key}: {value}}}
"""


def asked(**fields: object) -> dict[str, object]:
    return {"stream": "s", "into": "t", **fields}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a stream of two workers on tape."""
    made = Lake.at(tmp_path / "lake")
    lay_tape(made, "s", "ab", [(HOUR,), (2 * HOUR,)], (5 * HOUR,))
    return made


@pytest.mark.parametrize("name", TEXTS)
def test_an_empty_text_is_refused_by_name(lake: Lake, name: str) -> None:
    context = Context(lake.root)
    for value in EMPTY:
        fields: Any = asked(**{name: value})
        for way in (
            partial(read_request, Request, fields),
            partial(handlers.replay, fields, context),
            partial(context.plan, **fields),
        ):
            with pytest.raises(InvalidRequestError, match=rf"\b{name}\b"):
                way()


@pytest.mark.parametrize("value", [[], (), set(), [[]], [None], [[None]], {}, [{}]])
def test_an_empty_list_is_no_bound_and_no_workers(value: object) -> None:
    for name in ("since", "until", "workers"):
        with pytest.raises(InvalidRequestError):
            read_request(Request, asked(**{name: value}))
    with pytest.raises(InvalidRequestError):
        read_request(Request, asked(until="[null, null]"))


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (BackfillRequest, {"replay": "r"}),
        (handlers.VerifyRequest, {"stream": "s"}),
        (handlers.MaintainRequest, {}),
        (handlers.CaptureRequest, {"stream": "s"}),
        (handlers.PublishRequest, {"run": "x"}),
    ],
)
def test_each_request_refuses_what_is_empty(model: Any, fields: dict[str, object]) -> None:
    assert read_request(model, fields)
    for name in model.__dataclass_fields__:
        # A reason may be empty; who decides has a check of its own.
        if name not in ("by", "at", "reason"):
            with pytest.raises(InvalidRequestError, match=rf"\b{name}\b"):
                read_request(model, {**fields, name: ""})


def test_the_command_line_refuses_what_is_empty(
    lake: Lake, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("into", "workers", "workers-of", "since", "until", "known-at", "as-of", "lookup",
               "peers", "transform", "pipeline", "sink", "mode", "keys", "sequence-by",
               "delete-when", "follow")  # fmt: skip
    for option in options:
        for value in ("", " ") if option in ("since", "until") else ("",):
            words = ["--lake", lake.root, "plan", "s", "--into", "t", f"--{option}", value]
            assert main(words) == 2, (option, capsys.readouterr().out)
    assert main(["--lake", "", "plan", "s", "--into", "t"]) == 2
    assert main(["--lake", lake.root, "plan", "", "--into", "t"]) == 2
    # Without an empty option it is not refused: it looks for the records, which this tape lacks.
    assert main(["--lake", lake.root, "plan", "s", "--into", "t"]) == 5


@pytest.mark.parametrize("key", ["workers", "since", "until", "transform", "pipeline", "sink",
                                 "mode", "keys", "sequence_by", "delete_when", "schedule",
                                 "follow"])  # fmt: skip
def test_a_declaration_refuses_what_is_empty(tmp_path: Path, key: str) -> None:
    file = tmp_path / "streams.yaml"
    for value in ('""', '" "', "[]", "{}", "[[]]", "[~]"):
        file.write_text(DECLARED.format(key=key, value=value), encoding="utf-8")
        with pytest.raises(InvalidRequestError, match=key):
            load_config(file, lake="/l")
    file.write_text(DECLARED.format(key="workers", value='"a, b"'), encoding="utf-8")
    assert load_config(file, lake="/l").replay("r").workers == ("a", "b")


@pytest.mark.parametrize("variable", ["CAPSTAN_LAKE", "CAPSTAN_CONFIG"])
@pytest.mark.parametrize("value", ["", " "])
def test_the_environment_names_no_empty_place(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequestError, match=f"{variable} is empty"):
        Context().declarations  # noqa: B018
    assert main(["streams"]) == 2


def test_a_lake_and_a_declaration_file_are_not_empty(lake: Lake) -> None:
    for place, config in (("", None), (lake.root, ""), (lake.root, " ")):
        with pytest.raises(InvalidRequestError, match="path of the declarations|the lake's path"):
            Context(place, config=config).declarations  # noqa: B018
    assert main(["--lake", lake.root, "--config", "", "streams"]) == 2
    assert main(["--lake", "", "streams"]) == 2


def test_python_refuses_workers_that_are_empty(lake: Lake) -> None:
    for workers in ("", "None", [], (), "['a']"):
        with pytest.raises(CapstanError, match="workers"):
            Context(lake.root).verify("s", workers=workers)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2024, 5, 1), "2024-05-01"),
        (datetime.fromisoformat("2024-05-01T06:00"), "2024-05-01T06:00:00"),
        (datetime(2024, 5, 1, 6, tzinfo=UTC), "2024-05-01T06:00:00+00:00"),
        # An offset with seconds, as of local mean time.
        (datetime(2024, 5, 1, tzinfo=timezone(timedelta(seconds=3208))),
         "2024-04-30T23:06:32+00:00"),
        (17, "17"),
        ([3, None], "[3, null]"),
        ([3, datetime.fromisoformat("2024-05-01")], '[3, "2024-05-01T00:00:00"]'),
        (" 2024-05-01", " 2024-05-01"),
    ],
)  # fmt: skip
def test_times_of_python_are_bounds(value: object, text: str) -> None:
    assert read_request(Request, asked(until=value)).until == text
    assert read_request(BackfillRequest, {"replay": "r", "since": value}).since == text


def test_what_is_no_time_is_no_bound() -> None:
    low = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    for value in (low, True, 1.5, math.nan, timedelta(1), {"epoch": 3}, object()):
        with pytest.raises(InvalidRequestError, match="until"):
            read_request(Request, asked(until=value))


def test_times_of_other_libraries_are_bounds() -> None:
    pandas = pytest.importorskip("pandas")
    stamp = pandas.Timestamp("2024-05-01T06:00", tz="Europe/Oslo")
    assert read_request(Request, asked(until=stamp)).until == "2024-05-01T04:00:00+00:00"
    with pytest.raises(InvalidRequestError, match="until"):
        read_request(Request, asked(until=pandas.NaT))


def test_a_request_that_python_makes_is_read_alike(lake: Lake) -> None:
    context = Context(lake.root)
    made: Any = Request
    bound = datetime.fromisoformat("1970-01-01T03:00")
    expected = Request("s", "t", workers=("a",), until="1970-01-01T03:00:00")
    assert reread(made("s", "t", workers="a", until=bound)) == reread(expected) == expected
    with pytest.raises(InvalidRequestError, match="until"):
        context.plan(made("s", "t", until=""))


@pytest.mark.parametrize(
    ("text", "names"),
    [("EWR,LGA", ("EWR", "LGA")), (" EWR , EWR", ("EWR",)), ('"a,b", c', ("a,b", "c")),
     ("[x]", ("[x]",))],
)  # fmt: skip
def test_a_text_of_names_is_a_list(text: str, names: tuple[str, ...]) -> None:
    assert read_request(Request, asked(workers=text)).workers == names
    actual = read_request(Request, asked(streams={}, workers=list(names)))
    assert actual.workers == names


def test_the_text_of_a_list_is_refused_with_what_to_write() -> None:
    for text in ("['EWR', 'LGA']", '["EWR"]', "('a',)", "[1, 2]", " []", '"a'):
        with pytest.raises(InvalidRequestError, match="workers"):
            read_request(Request, asked(workers=text))
    with pytest.raises(InvalidRequestError, match="join"):
        read_request(Request, asked(workers="['EWR', 'LGA']"))


def test_what_is_not_empty() -> None:
    assert not any(map(is_empty, (0, False, "0", "none", [0], ["a", None], {"a": 1})))
    assert all(map(is_empty, (None, "", [None, ""], {"a": ""}, ((),))))


def test_the_stored_form_of_no_keys_is_taken() -> None:
    stored = Request("s", "t").to_json()
    assert read_request(Request, {**stored, "keys": []}) == Request("s", "t")


def test_equal_bounds_lead_to_the_schedule_of_a_dag(lake: Lake) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Context(lake.root).plan("s", into="t", since=MIDNIGHT, until=MIDNIGHT.date())
    assert caught.value.code == "CAP-RANGE"
    assert "CronDataIntervalTimetable" in caught.value.hint
    with pytest.raises(InvalidRequestError) as caught:
        Context(lake.root).plan("s", into="t", since="1970-01-02", until="1970-01-01")
    assert "Timetable" not in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        ["orders=a, b", "payments=c"],
        ["orders=a", "b", "payments=c"],
        {"orders": "a,b", "payments": "c"},
    ],
)
def test_workers_of_each_stream_are_taken_apart_or_not(text: object) -> None:
    several = {"stream": "x+y", "into": "t", "streams": {"orders": "x", "payments": "y"}}
    request = read_request(Request, {**several, "pipeline": "paid", "workers_of": text})
    assert request.workers_of == {"orders": ("a", "b"), "payments": ("c",)}
