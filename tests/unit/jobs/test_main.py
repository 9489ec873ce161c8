"""Submitted jobs: arguments, requests, results and exit codes, with a session that is a fake."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from capstan.api.context import Context
from capstan.backfill.planner import BackfillRequest
from capstan.core.json_object import Json
from capstan.errors import (
    CapstanError,
    CheckFailedError,
    IncompleteError,
    RangeLockedError,
    SystemFailureError,
)
from capstan.jobs import handlers, job_file, job_result
from capstan.jobs.__main__ import run
from capstan.jobs.finished_runs import RollbackRequest, RunAudit, RunAudits
from capstan.jobs.job_result import Handler, JobResult
from capstan.jobs.main import main
from capstan.replay.standalone_audit import TableAudit
from capstan.storage import job_attempts
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake
from capstan.storage.ledger import made_by
from capstan.storage.ledger.made_by import MadeBy
from tests.support.docs import page, table

JOBS = Path(__file__).parents[3] / "spark_apps"
NAMES = (
    "audit",
    "backfill",
    "capture",
    "maintain",
    "plan",
    "publish",
    "put_back",
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


def job(answer: JobResult | Exception) -> Any:
    """A job that gives this answer, and keeps the requests that it was given."""

    def fake(fields: Json, context: Context) -> JobResult:
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
    fake = job(JobResult({"a": 1}))
    written = tmp_path / "request.json"
    written.write_text('{"stream": "s"}', encoding="utf-8")
    lake = ["--lake", str(tmp_path)]
    assert main(fake, [str(written), *lake], session) == 0
    assert main(fake, ["--request", '{"stream": "t"}', *lake, "--config", "x.yaml"], session) == 0
    assert [fields["stream"] for fields, _ in fake.asked] == ["s", "t"]
    assert [context._config for _, context in fake.asked] == [None, "x.yaml"]
    assert {context.lake.root for _, context in fake.asked} == {str(tmp_path)}
    assert session.started == ["capstan fake"] * 2
    assert session.stopped == 2


def test_any_job_is_told_who_has_it_made_beside_its_request(
    tmp_path: Path, session: FakeSession
) -> None:
    fake, seen = job(JobResult({})), []

    def recorded(fields: Json, context: Context) -> JobResult:
        """Record who has the job made."""
        seen.append(made_by._present.get())
        return fake(fields, context)

    request = {"stream": "s", "made_by": {"dag": "d", "dag_run": "r", "user": "ada"}}
    for asked in (request, {"stream": "s"}):
        assert (
            main(recorded, ["--request", json.dumps(asked), "--lake", str(tmp_path)], session) == 0
        )
    assert [fields for fields, _ in fake.asked] == [{"stream": "s"}] * 2
    assert seen == [MadeBy("d", "r", user="ada"), None]


def test_the_result_is_written_whole(tmp_path: Path, session: FakeSession) -> None:
    result = tmp_path / "result.json"
    result.write_text("of an earlier run", encoding="utf-8")
    assert (
        main(job(JobResult({"a": 1})), ["--request", "{}", "--result", str(result)], session) == 0
    )
    assert json.loads(result.read_text(encoding="utf-8")) == {"a": 1}
    assert list(tmp_path.iterdir()) == [result]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "CAP-USAGE"),
        (["a.json", "--request", "{}"], "CAP-USAGE"),
        (["a.json", "--request", "{}", "--attempt", "a"], "CAP-USAGE"),
        (["--request", "{}", "--attempt", ""], "CAP-NAME"),
        (["--request", "{}", "--attempt", "../a"], "CAP-NAME"),
        (["--attempt", "a", "--lake", "/nowhere"], "CAP-REQUEST"),
        (["--request", "{}", "--join"], "CAP-USAGE"),
        (["--attempt", "a", "--join", "--result", "r.json"], "CAP-USAGE"),
        (["--request"], "CAP-USAGE"),
        (["--request", "{}", "--nonsense"], "CAP-USAGE"),
        (["--req", "{}"], "CAP-USAGE"),
        (["--request", "{}", "--lake", ""], "CAP-LAKE"),
        (["/nowhere/request.json"], "CAP-REQUEST"),
        (["--request", "{"], "CAP-REQUEST"),
        (["--request", "[]"], "CAP-REQUEST"),
        (["--request", "[" * 100_000], "CAP-REQUEST"),
        (["--request", '{"made_by": "ada"}'], "CAP-REQUEST"),
        (["--request", '{"made_by": {"dag_run_id": "r"}}'], "CAP-REQUEST"),
        (["--request", '{"made_by": {"try_number": "second"}}'], "CAP-REQUEST"),
    ],
)
def test_wrong_arguments_end_with_2_before_a_session(
    arguments: list[str], code: str, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(job(JobResult({})), arguments, session) == 2
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
    assert main(job(error), arguments, session) == exit_code
    assert last_line(capsys) == f"CAP-X: {error.message}"
    assert json.loads(result.read_text(encoding="utf-8")) == error.to_json()
    assert session.stopped == 1


def test_an_unexpected_error_exits_with_5(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    arguments = ["--request", "{}", "--result", str(result)]
    assert main(job(RuntimeError("first\nsecond")), arguments, session) == 5
    assert last_line(capsys) == "CAP-BROKEN: RuntimeError: first"
    assert json.loads(result.read_text(encoding="utf-8"))["error"] == "CAP-BROKEN"


def test_a_refusal_has_a_result_and_an_exit_code(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    answer = JobResult({"valid": False}, CheckFailedError("CAP-VIOLATION", "seq 3", "look"))
    assert main(job(answer), ["--request", "{}", "--result", str(result)], session) == 1
    assert last_line(capsys) == "CAP-VIOLATION: seq 3"
    actual = json.loads(result.read_text(encoding="utf-8"))
    assert actual == {
        "valid": False, "error": "CAP-VIOLATION", "message": "seq 3", "hint": "look",
    }  # fmt: skip


def attempt_of(tmp_path: Path, name: str = "a") -> JobAttempt:
    return JobAttempt(Lake.at(tmp_path), name)


def test_an_attempt_leaves_its_result_in_the_lake(tmp_path: Path, session: FakeSession) -> None:
    result, lake = tmp_path / "result.json", ["--lake", str(tmp_path), "--attempt", "a"]
    arguments = ["--request", "{}", *lake, "--result", str(result)]
    assert main(job(JobResult({"a": 1})), arguments, session) == 0
    actual = attempt_of(tmp_path).outcome()
    assert actual is not None
    assert (actual.attempt, actual.verb, actual.exit_code) == ("a", "fake", 0)
    assert actual.report == actual.result == {"a": 1} == json.loads(result.read_text("utf-8"))
    refused = JobResult({"valid": False}, CheckFailedError("CAP-VIOLATION", "seq 3", "look"))
    assert main(job(refused), arguments, session) == 1
    actual = attempt_of(tmp_path).outcome()
    assert actual is not None
    assert (actual.exit_code, actual.result) == (1, {"valid": False})
    assert actual.error == {"error": "CAP-VIOLATION", "message": "seq 3", "hint": "look"}
    assert actual.report == json.loads(result.read_text("utf-8"))
    error = RangeLockedError("CAP-HELD", "held", "wait", holder="r")
    assert main(job(error), arguments, session) == 4
    actual = attempt_of(tmp_path).outcome()
    assert actual is not None
    assert (actual.exit_code, actual.result, actual.error) == (4, None, error.to_json())


def test_a_request_comes_from_the_lake(
    tmp_path: Path, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_CONFIG", str(tmp_path / "other.yaml"))
    fake, arguments = job(JobResult({})), ["--lake", str(tmp_path), "--attempt", "a"]
    attempt_of(tmp_path).prepare({"stream": "s"}, "streams: {}\n# copied\n")
    assert main(fake, arguments, session) == 0
    assert main(fake, [*arguments, "--config", "mine.yaml"], session) == 0
    assert main(fake, [*arguments, "--request", '{"stream": "t"}'], session) == 0
    assert [fields["stream"] for fields, _ in fake.asked] == ["s", "s", "t"]
    copied, given, again = (context._config for _, context in fake.asked)
    assert Path(copied).read_text("utf-8") == "streams: {}\n# copied\n"
    assert (given, again) == ("mine.yaml", copied)


def test_files_are_named_by_uri_too(tmp_path: Path, session: FakeSession) -> None:
    (tmp_path / "request.json").write_text('{"stream": "s"}', encoding="utf-8")
    (tmp_path / "streams.yaml").write_text("streams: {}\n", encoding="utf-8")
    fake, uri = job(JobResult({})), f"file://{tmp_path}"
    arguments = [f"{uri}/request.json", "--config", f"{uri}/streams.yaml"]
    assert main(fake, [*arguments, "--lake", str(tmp_path)], session) == 0
    [(fields, context)] = fake.asked
    assert fields == {"stream": "s"}
    assert Path(context._config).read_text("utf-8") == "streams: {}\n"


def test_the_former_name_of_an_option_is_taken(tmp_path: Path, session: FakeSession) -> None:
    fake, requested = job(JobResult({})), ["--request", '{"stream": "s"}', "--lake", str(tmp_path)]
    assert main(fake, [*requested, "--streams", "x.yaml"], session) == 0
    [(_, context)] = fake.asked
    assert context._config == "x.yaml"


def test_the_result_of_an_earlier_start_is_gone_while_a_job_runs(
    tmp_path: Path, session: FakeSession
) -> None:
    attempt_of(tmp_path).end("fake", 0, {"a": 1}, None)

    def killed(fields: Json, context: Context) -> JobResult:
        """Look what is there, as after a kill."""
        assert attempt_of(tmp_path).outcome() is None
        return JobResult({})

    arguments = ["--request", "{}", "--lake", str(tmp_path), "--attempt", "a"]
    assert main(killed, arguments, session) == 0


@pytest.mark.parametrize("end", [JobResult({}), IncompleteError("CAP-X", "early")])
def test_a_result_says_of_which_request_it_is(
    tmp_path: Path, session: FakeSession, end: JobResult | Exception
) -> None:
    arguments = ["--request", '{"stream": "s"}', "--lake", str(tmp_path), "--attempt", "a"]
    main(job(end), arguments, session)
    outcome = attempt_of(tmp_path).outcome()
    assert outcome is not None
    assert (outcome.answers({"stream": "s"}), outcome.answers({})) == (True, False)


def test_a_job_with_an_attempt_gives_signs_of_life(
    tmp_path: Path, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_result, "SIGNS_EVERY", 0.01)
    signs: list[object] = []

    def watched(fields: Json, context: Context) -> JobResult:
        """Wait for two signs."""
        while len(signs) < 2:
            sign = attempt_of(tmp_path).last_sign()
            if sign is not None and sign not in signs:
                signs.append(sign)
        assert attempt_of(tmp_path).is_at_work({})
        return JobResult({})

    arguments = ["--request", "{}", "--lake", str(tmp_path), "--attempt", "a"]
    assert main(watched, arguments, session) == 0
    assert attempt_of(tmp_path).last_sign() is None


def test_a_start_does_not_wait_for_its_own_submission(
    tmp_path: Path, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    submitted = attempt_of(tmp_path)
    submitted.sign({}, begins=timedelta(hours=1))
    seen: list[bool] = []

    def begun(fields: Json, context: Context) -> JobResult:
        """Look for the sign of this start, before half a minute is over."""
        seen.append(submitted.is_at_work({}))
        return JobResult({})

    arguments = ["--request", "{}", "--lake", str(tmp_path), "--attempt", "a", "--join"]
    assert main(begun, arguments, session) == 0
    assert seen == [True]


@pytest.mark.parametrize(("error", "code"), [(None, 0), (CheckFailedError("CAP-X", "no"), 1)])
def test_a_second_start_joins_one_that_is_at_work(
    tmp_path: Path,
    session: FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: CapstanError | None,
    code: int,
) -> None:
    first, fake = attempt_of(tmp_path), job(JobResult({"second": True}))
    arguments = ["--request", "{}", "--lake", str(tmp_path), "--attempt", "a", "--join"]
    first.sign({})
    summary = None if error is None else error.summary()
    monkeypatch.setattr(time, "sleep", lambda _: first.end("fake", code, {"first": True}, summary))
    assert main(fake, arguments, session) == code
    assert (fake.asked, session.started) == ([], [])
    said = "done" if error is None else "CAP-X: no"
    assert last_line(capsys) == f"capstan fake, as started before: {said}"
    # That start has ended, and another is at something else: the next one is of its own.
    for number in (1, 2):
        assert main(fake, arguments, session) == 0
        assert len(fake.asked) == number
        first.sign({"stream": "other"})


def test_a_second_start_does_not_join_a_dead_one(
    tmp_path: Path, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_of(tmp_path).sign({})
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    fake = job(JobResult({}))
    arguments = ["--request", "{}", "--lake", str(tmp_path), "--attempt", "a", "--join"]
    assert main(fake, arguments, session) == 0
    assert len(fake.asked) == 1


def test_a_result_for_a_mistyped_lake_is_only_printed(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "mistyped"
    arguments = ["--request", "{}", "--lake", str(lake), "--attempt", "a"]
    assert main(job(IncompleteError("CAP-X", "early")), arguments, session) == 3
    assert not lake.exists()
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "CAP-X: early"
    assert f"{lake}/jobs/a/result.json cannot be written: CAP-LAKE" in printed.err


def test_an_unwritable_result_exits_with_5(
    tmp_path: Path, session: FakeSession, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "no" / "folder" / "result.json"
    assert main(job(JobResult({})), ["--request", "{}", "--result", str(result)], session) == 5
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
        (handlers.maintain, {"streams": "nowhere"}, "CAP-STREAM"),
        (handlers.maintain, {"keep": "a while"}, "CAP-REQUEST"),
        (handlers.maintain, {"keep": 30}, "CAP-REQUEST"),
        (handlers.put_back, {"stream": "nowhere"}, "CAP-STREAM"),
        (handlers.put_back, {"stream": "../s"}, "CAP-NAME"),
        (handlers.put_back, {"stream": "s", "reason": "late"}, "CAP-REQUEST"),
        (handlers.put_back, {"stream": "s", "undrop": 2, "because": "x"}, "CAP-REQUEST"),
        (
            handlers.put_back,
            {"stream": "s", "fix": "raw AS a", "reason": "x", "because": "y"},
            "CAP-REQUEST",
        ),
        (handlers.put_back, {"stream": "s", "fix": "raw AS a"}, "CAP-REQUEST"),
        (handlers.put_back, {"stream": "s", "fix": "uuid() AS a", "reason": "x"}, "CAP-REQUEST"),
        (handlers.put_back, {"stream": "s", "dry_run": True}, "CAP-REQUEST"),
        (handlers.put_back, {"stream": "s", "fix": "raw AS a", "reason": "x"}, "CAP-STREAM"),
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
    declared = ["--config", str(JOBS.parent / "dags" / "streams.yaml")]
    arguments = ["--request", json.dumps(request_), "--lake", str(tmp_path), *declared]
    assert main(handler, arguments, session) == 2
    assert last_line(capsys).startswith(f"{code}: ")
    assert session.started == []


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    with pytest.raises(CapstanError, match="'untill', did you mean 'until'") as caught:
        handlers.replay({"stream": "s", "into": "t", "untill": "2013"}, Context("/x"))
    assert caught.value.fields["key"] == "untill"


@pytest.mark.parametrize("name", NAMES)
def test_every_job_passes_its_arguments_on(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--request", "7"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert last_line(capsys) == "CAP-REQUEST: --request is not a JSON object"


def test_every_job_is_tested() -> None:
    assert sorted(path.stem for path in JOBS.glob("*.py")) == list(NAMES)
    assert [Path(job_file(name)) for name in NAMES] == [JOBS / f"{name}.py" for name in NAMES]
    assert tuple(handlers.JOBS) == NAMES


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["verify", "--request", "7"], "CAP-REQUEST: --request is not a JSON object"),
        (["verfy", "--help"], "CAP-USAGE: there is no job verfy, did you mean 'verify'?"),
        ([], "CAP-USAGE: no job is named"),
    ],
)
def test_the_package_runs_the_job_that_is_named(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert last_line(capsys) == line


def test_the_docs_name_the_keys_of_each_request() -> None:
    rows = dict(table(page("on-your-cluster"), "job"))
    requests = {
        "audit": (RunAudit, RunAudits, TableAudit),
        "backfill": (BackfillRequest,),
        "capture": (handlers.CaptureRequest,),
        "maintain": (handlers.MaintainRequest,),
        "publish": (handlers.PublishRequest,),
        "put_back": (handlers.PutBackRequest,),
        "rollback": (RollbackRequest,),
        "verify": (handlers.VerifyRequest,),
    }
    assert set(rows) == {f"`{name}`" for name in requests} | {"`plan`, `replay`"}
    [made] = re.findall(r"`made_by`: an object.*?known\.", page("on-your-cluster"), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", made)) == {"made_by", *MadeBy.__dataclass_fields__}
    for name, kinds in requests.items():
        keys = {field.name for kind in kinds for field in dataclasses.fields(kind)}
        assert set(re.findall(r"`(\w+)`", rows[f"`{name}`"])) - {"backfills"} == keys, name


def test_a_job_is_a_program(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    requested = ["--request", '{"stream": "flights"}', "--lake", str(tmp_path / "no")]
    command = [sys.executable, str(JOBS / "verify.py"), *requested, "--result", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("CAP-LAKE: ")
    assert json.loads(result.read_text(encoding="utf-8"))["error"] == "CAP-LAKE"
