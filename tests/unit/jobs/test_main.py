"""Submitted apps: arguments, requests, results and exit codes, with a session that is a fake."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capstan.context import Context
from capstan.errors import (
    CapstanError,
    CheckFailedError,
    IncompleteError,
    RangeLockedError,
    SystemFailureError,
)
from capstan.jobs import handlers
from capstan.jobs.job_types import Handler, JobResult, JsonObject
from capstan.jobs.main import main

APPS = Path(__file__).parents[3] / "spark_apps"
NAMES = (
    "audit",
    "backfill",
    "capture",
    "maintain",
    "plan",
    "publish",
    "replay",
    "rollback",
    "verify",
)


class FakeSession:
    """Counts the sessions that were started, and those that were stopped."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped = 0

    def __call__(self, name: str) -> Any:
        self.started.append(name)
        return self

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


def app(answer: JobResult | Exception) -> Any:
    """An app that gives this answer, and keeps the requests that it was given."""

    def fake(fields: JsonObject, context: Context) -> JobResult:
        """Start a session, and do nothing."""
        fake.asked.append((dict(fields), context))  # type: ignore[attr-defined]
        with context.session():
            if isinstance(answer, Exception):
                raise answer
            return answer

    fake.asked = []  # type: ignore[attr-defined]
    return fake


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_a_request_comes_from_a_file_or_from_an_argument(
    tmp_path: Path, session: FakeSession
) -> None:
    fake = app(JobResult({"a": 1}))
    written = tmp_path / "request.json"
    written.write_text('{"stream": "s"}', encoding="utf-8")
    lake = ["--lake", str(tmp_path)]
    assert main(fake, [str(written), *lake], session) == 0
    assert main(fake, ["--request", '{"stream": "t"}', *lake, "--streams", "x.yaml"], session) == 0
    assert [fields["stream"] for fields, _ in fake.asked] == ["s", "t"]
    assert [context._config for _, context in fake.asked] == [None, "x.yaml"]
    assert {context.lake.root for _, context in fake.asked} == {str(tmp_path)}
    assert session.started == ["capstan fake"] * 2
    assert session.stopped == 2


def test_the_result_is_written_whole(tmp_path: Path, session: FakeSession) -> None:
    result = tmp_path / "result.json"
    result.write_text("of an earlier run", encoding="utf-8")
    assert (
        main(app(JobResult({"a": 1})), ["--request", "{}", "--result", str(result)], session) == 0
    )
    assert json.loads(result.read_text(encoding="utf-8")) == {"a": 1}
    assert list(tmp_path.iterdir()) == [result]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "CAP-USAGE"),
        (["a.json", "--request", "{}"], "CAP-USAGE"),
        (["--request"], "CAP-USAGE"),
        (["--request", "{}", "--nonsense"], "CAP-USAGE"),
        (["--req", "{}"], "CAP-USAGE"),
        (["--request", "{}", "--lake", ""], "CAP-LAKE"),
        (["/nowhere/request.json"], "CAP-REQUEST"),
        (["--request", "{"], "CAP-REQUEST"),
        (["--request", "[]"], "CAP-REQUEST"),
        (["--request", "[" * 100_000], "CAP-REQUEST"),
    ],
)
def test_wrong_arguments_end_with_2_before_a_session(
    arguments: list[str], code: str, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(app(JobResult({})), arguments, session) == 2
    assert last_line(capsys).startswith(f"{code}: ")
    assert session.started == []


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (CheckFailedError("CAP-X", "no"), 1),
        (IncompleteError("CAP-X", "early"), 3),
        (RangeLockedError("CAP-X", "held", holder="r"), 4),
        (SystemFailureError("CAP-X", "broken", "mend\nit"), 5),
    ],
)
def test_errors_end_with_the_code_of_their_class(
    error: CapstanError,
    exit_code: int,
    tmp_path: Path,
    session: FakeSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = tmp_path / "result.json"
    arguments = ["--request", "{}", "--result", str(result)]
    assert main(app(error), arguments, session) == exit_code
    assert last_line(capsys) == f"CAP-X: {error.message}"
    assert json.loads(result.read_text(encoding="utf-8")) == error.to_json()
    assert session.stopped == 1


def test_an_unexpected_error_exits_with_5(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    arguments = ["--request", "{}", "--result", str(result)]
    assert main(app(RuntimeError("first\nsecond")), arguments, session) == 5
    assert last_line(capsys) == "CAP-BROKEN: RuntimeError: first"
    assert json.loads(result.read_text(encoding="utf-8"))["error"] == "CAP-BROKEN"


def test_a_refusal_has_a_result_and_an_exit_code(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    answer = JobResult({"valid": False}, CheckFailedError("CAP-VIOLATION", "seq 3", "look"))
    assert main(app(answer), ["--request", "{}", "--result", str(result)], session) == 1
    assert last_line(capsys) == "CAP-VIOLATION: seq 3"
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found == {
        "valid": False, "error": "CAP-VIOLATION", "message": "seq 3", "hint": "look",
    }  # fmt: skip


def test_an_unwritable_result_exits_with_5(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "no" / "folder" / "result.json"
    assert main(app(JobResult({})), ["--request", "{}", "--result", str(result)], session) == 5
    assert last_line(capsys).startswith("CAP-NO-ACCESS: ")


@pytest.mark.parametrize(
    ("handler", "request_", "code"),
    [
        (handlers.capture, {"stream": "nowhere"}, "CAP-STREAM"),
        (handlers.capture, {}, "CAP-REQUEST"),
        (handlers.capture, {"stream": "s", "reset": True}, "CAP-REQUEST"),
        (handlers.verify, {"stream": "nowhere"}, "CAP-STREAM"),
        (handlers.verify, {"stream": "nowhere", "deep": "perhaps"}, "CAP-REQUEST"),
        (handlers.replay, {"stream": "nowhere", "into": "t"}, "CAP-STREAM"),
        (handlers.replay, {"stream": "../s", "into": "t"}, "CAP-NAME"),
        (handlers.replay, {"stream": "s", "into": "t", "mode": "overwrite"}, "CAP-REQUEST"),
        (handlers.replay, {"stream": "s", "into": "t", "workers": []}, "CAP-WORKERS"),
        (handlers.replay, {"stream": "s", "into": "t", "code": "import os"}, "CAP-REQUEST"),
        (handlers.maintain, {"streams": ["nowhere"]}, "CAP-STREAM"),
        (handlers.maintain, {"stream": "nowhere"}, "CAP-REQUEST"),
        (handlers.maintain, {"streams": "nowhere"}, "CAP-REQUEST"),
        (handlers.maintain, {"keep": "a while"}, "CAP-REQUEST"),
        (handlers.maintain, {"keep": 30}, "CAP-REQUEST"),
        (handlers.rollback, {"run": "nowhere-0-1"}, "CAP-RUN"),
        (handlers.audit, {"run": "nowhere-0-1"}, "CAP-RUN"),
        (handlers.audit, {"run": "nowhere-0-1", "table": "t"}, "CAP-REQUEST"),
        (handlers.audit, {"stream": "nowhere", "table": "t"}, "CAP-STREAM"),
        (handlers.audit, {}, "CAP-REQUEST"),
    ],
)
def test_wrong_requests_end_with_2_before_a_session(
    handler: Handler,
    request_: dict[str, object],
    code: str,
    tmp_path: Path,
    session: FakeSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declared = ["--streams", str(APPS.parent / "dags" / "streams.yaml")]
    arguments = ["--request", json.dumps(request_), "--lake", str(tmp_path), *declared]
    assert main(handler, arguments, session) == 2
    assert last_line(capsys).startswith(f"{code}: ")
    assert session.started == []


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    with pytest.raises(CapstanError, match="'untill', did you mean 'until'") as caught:
        handlers.replay({"stream": "s", "into": "t", "untill": "2013"}, Context("/x"))
    assert caught.value.fields["key"] == "untill"


@pytest.mark.parametrize("name", NAMES)
def test_every_app_passes_its_arguments_on(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--request", "7"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(APPS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert last_line(capsys) == "CAP-REQUEST: --request is not a JSON object"


def test_every_app_is_tested() -> None:
    assert sorted(path.stem for path in APPS.glob("*.py")) == list(NAMES)


def test_an_app_is_a_program(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    asked = ["--request", '{"stream": "flights"}', "--lake", str(tmp_path / "no")]
    command = [sys.executable, str(APPS / "verify.py"), *asked, "--result", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("CAP-LAKE: ")
    assert json.loads(result.read_text(encoding="utf-8"))["error"] == "CAP-LAKE"
