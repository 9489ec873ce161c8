"""The log: a line for each point, with the run that it belongs to, in either form."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.telemetry.instrumentation import emit
from capstan.telemetry.structured_logging import (
    LogContext,
    LogFormat,
    format_line,
    logging,
    owns_standard_error,
    read_format,
)

AT = datetime(2024, 6, 1, 12, 30, 5, 250, tzinfo=UTC)


def test_a_line_of_json_has_what_it_belongs_to_and_its_facts():
    about = LogContext("t-0a0a0a0a-1", 2, "flights")
    facts = {"run": "t-0a0a0a0a-1", "cells": 5, "level": "x", "when": AT}
    text = format_line(LogFormat.JSON, AT, "info", "replay.audit", about, facts)
    assert text.endswith("}\n")
    assert json.loads(text) == {
        "at": "2024-06-01T12:30:05.000250Z",
        "level": "info",
        "event": "replay.audit",
        "run": "t-0a0a0a0a-1",
        "attempt": 2,
        "stream": "flights",
        "cells": 5,
        "level_": "x",
        "when": "2024-06-01 12:30:05.000250+00:00",
    }


def test_a_line_for_people_leaves_out_what_is_not_known():
    text = format_line(
        LogFormat.PLAIN,
        AT,
        "info",
        "capture.events",
        LogContext(stream="s"),
        {"fed": 7, "to": "a b"},
    )
    assert text == '12:30:05 INFO capture.events stream=s fed=7 to="a b"\n'


def test_whatever_a_fact_says_it_stays_one_line():
    for form in LogFormat:
        text = format_line(
            form, AT, "error", "CAP-X", LogContext(), {"message": "two\nlines", "hint": ""}
        )
        assert text.count("\n") == 1


def test_what_is_known_stays_until_another_run_begins():
    about = LogContext().after({"stream": "s", "workers": 3}).after({"run": "a", "attempt": 2})
    assert about == LogContext("a", 2, "s")
    assert about.after({"run": "a"}) == about
    assert about.after({"cells": 1}) == about
    assert about.after({"run": "b"}) == LogContext("b", None, "s")


@pytest.fixture
def told(monkeypatch):
    """Set what the environment says of the log."""
    monkeypatch.delenv("CAPSTAN_LOG", raising=False)
    monkeypatch.delenv("CAPSTAN_LOG_FILE", raising=False)

    def tell(form, file=""):
        monkeypatch.setenv("CAPSTAN_LOG", form)
        monkeypatch.setenv("CAPSTAN_LOG_FILE", str(file))

    return tell


def test_points_are_logged_with_the_run_that_was_told_before(tmp_path, told):
    file = tmp_path / "log"
    told("json", file)
    with logging() as log:
        emit("replay.verify", stream="s", workers=2)
        emit("replay.claim", run="r", attempt=1)
        emit("replay.staging", run="r")
        log.failed(RangeLockedError("CAP-HELD", "another run holds it", "wait", holder="q"))
    emit("replay.publish", run="r")
    rows = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    assert [(r["event"], r["run"], r["attempt"], r["stream"]) for r in rows] == [
        ("replay.verify", None, None, "s"),
        ("replay.claim", "r", 1, "s"),
        ("replay.staging", "r", 1, "s"),
        ("CAP-HELD", "r", 1, "s"),
    ]
    assert [row["level"] for row in rows] == ["info", "info", "info", "error"]
    assert (rows[-1]["message"], rows[-1]["holder"]) == ("another run holds it", "q")
    # A file goes on where it was.
    with logging():
        emit("capture.events", stream="s")
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5


def test_standard_error_is_where_it_goes_otherwise(capsys, told):
    told("plain")
    with logging():
        emit("capture.events", stream="s", fed=1)
    assert capsys.readouterr().err.endswith("INFO capture.events stream=s fed=1\n")
    assert not owns_standard_error()
    told("json")
    assert owns_standard_error()
    told("json", "log")
    assert not owns_standard_error()


@pytest.mark.usefixtures("told")
def test_nothing_is_logged_unless_it_is_asked_for(capsys):
    with logging() as log:
        emit("capture.events", stream="s")
    assert log is None
    with logging(LogFormat.PLAIN):
        emit("capture.events", stream="s")
    assert capsys.readouterr().err.count("\n") == 1


def test_wrong_settings_are_refused(tmp_path, told):
    told("xml")
    with pytest.raises(InvalidRequestError, match="CAP-SETTING: CAPSTAN_LOG is 'xml'"):
        read_format()
    told("json", tmp_path / "none" / "log")
    with pytest.raises(InvalidRequestError, match="CAP-SETTING"), logging():
        pass


def test_a_log_that_cannot_be_written_stops_no_work(told):
    told("json", "/dev/full")
    with logging():
        emit("capture.events", stream="s")
