"""Attempts of jobs in the lake: names, requests, results, and what maintenance deletes of them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from capstan.errors import InvalidRequestError
from capstan.storage import job_attempts
from capstan.storage.job_attempts import JobAttempt, JobOutcome, clear_attempts
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pathlib import Path

ERROR = {"error": "CAP-X", "message": "no", "hint": "mend it", "stream": "s"}


@pytest.fixture
def attempt(tmp_path: Path) -> JobAttempt:
    return JobAttempt(Lake.at(tmp_path), "shop-job-1")


def test_a_request_waits_in_the_lake_for_its_job(attempt: JobAttempt, tmp_path: Path) -> None:
    assert (attempt.request(), attempt.declarations(), attempt.outcome()) == (None, None, None)
    attempt.prepare({"stream": "s", "into": "t"}, "streams: {}\n")
    assert json.loads(attempt.request() or "") == {"stream": "s", "into": "t"}
    assert attempt.declarations() == "streams: {}\n"
    folder = tmp_path / "jobs" / "shop-job-1"
    assert sorted(path.name for path in folder.iterdir()) == ["request.json", "streams.yaml"]


def test_the_outcome_is_what_the_job_has_left(attempt: JobAttempt) -> None:
    attempt.end("verify", 1, {"valid": False}, {**ERROR, "at": datetime(2024, 5, 1, tzinfo=UTC)})
    actual = attempt.outcome()
    assert actual is not None
    assert (actual.attempt, actual.verb, actual.exit_code) == ("shop-job-1", "verify", 1)
    assert actual.report == {"valid": False, **ERROR, "at": "2024-05-01 00:00:00+00:00"}
    assert datetime.now(UTC) - datetime.fromisoformat(actual.at) < timedelta(minutes=1)


def test_a_result_says_of_which_request_it_is(attempt: JobAttempt) -> None:
    asked, other = {"stream": "s"}, {"stream": "t"}
    attempt.end("verify", 0, {}, None, {**asked, "made_by": {"dag": "d"}})
    actual = attempt.outcome()
    assert actual is not None and (actual.answers(asked), actual.answers(other)) == (True, False)
    # That of an earlier version does not say it.
    value = {**asdict(actual)}
    del value["request"]
    assert JobOutcome.from_json(value).answers(other)


def test_only_a_driver_at_work_is_in_the_way_of_another_request(
    attempt: JobAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, other = {"stream": "s"}, {"stream": "t"}
    assert not attempt.is_at_work_on_another(other)
    # Which request it reads when it begins is not decided.
    attempt.sign(asked, begins=timedelta(hours=1))
    assert not attempt.is_at_work_on_another(other)
    attempt.sign(asked)
    assert attempt.is_at_work_on_another(other) and not attempt.is_at_work_on_another(asked)
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    assert not attempt.is_at_work_on_another(other)


def test_a_second_start_replaces_the_result_of_the_first(attempt: JobAttempt) -> None:
    attempt.end("replay", 0, {"run": "r-1"}, None)
    attempt.begin()
    assert attempt.outcome() is None
    attempt.end("replay", 5, None, ERROR)
    actual = attempt.outcome()
    assert actual is not None and (actual.result, actual.report) == (None, ERROR)
    # And so does a plan that prepares another start.
    attempt.prepare({})
    assert attempt.outcome() is None


def test_a_job_is_alive_as_long_as_it_says_so(
    attempt: JobAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, before = {"stream": "s"}, datetime.now(UTC)

    def seen() -> tuple[bool, bool]:
        return attempt.is_at_work(request), attempt.has_died()

    assert (attempt.last_sign(), seen()) == (None, (False, False))
    attempt.sign(request)
    assert seen() == (True, False)
    assert not attempt.is_at_work({"stream": "t"})
    sign = attempt.last_sign()
    assert sign is not None and sign >= before
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    assert seen() == (False, True)
    # A killed job may have left its result before.
    attempt._write("result.json", json.dumps(asdict(JobOutcome("a", "v", 0, {}, None, ""))))
    assert not attempt.has_died()


def test_a_submitted_job_may_begin_within_a_time(attempt: JobAttempt) -> None:
    request = {"stream": "s"}
    attempt.prepare({**request, "made_by": {"task": "t"}})
    assert attempt.prepared() == request
    assert not attempt.is_pending(request)
    attempt.sign(request, begins=timedelta(hours=1))
    assert attempt.is_queued() and attempt.is_pending(request)
    assert not (attempt.is_at_work(request) or attempt.is_over() or attempt.has_died())
    assert not attempt.is_pending({"stream": "t"})
    # Its first sign replaces that, and its start deletes the result of an earlier one alone.
    attempt.begin()
    assert attempt.is_queued()
    attempt.sign(request)
    assert not attempt.is_queued() and attempt.is_at_work(request)
    attempt.sign(request, begins=timedelta(0))
    assert attempt.is_over() and attempt.has_died() and not attempt.is_pending(request)


def test_a_result_is_of_its_request_until_it_was_taken(attempt: JobAttempt) -> None:
    request = {"stream": "s"}
    attempt.prepare({**request, "made_by": {"task": "t", "try_number": 2}})
    attempt.end("verify", 0, {}, None)
    assert attempt.is_over() and attempt.is_pending(request)
    assert not attempt.is_pending({"stream": "t"})
    attempt.withdraw()
    attempt.withdraw()
    assert attempt.outcome() is not None and not attempt.is_pending(request)


@pytest.mark.parametrize("end", ["clear", "prepare", "end", "forget"])
def test_signs_of_life_are_of_one_start(attempt: JobAttempt, end: str) -> None:
    attempt.sign({})
    arguments = {"prepare": ({},), "end": ("verify", 0, {}, None)}
    getattr(attempt, end)(*arguments.get(end, ()))
    assert attempt.last_sign() is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-x", ".x", "a:b", "a b", "ä", "a\n", "%41", "x" * 201]
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-NAME: .* cannot name an attempt"):
        JobAttempt(Lake.at(tmp_path), name)
    with pytest.raises(InvalidRequestError, match="^CAP-NAME: "):
        Lake.at(tmp_path).job(name)


@pytest.mark.parametrize("name", ["a", "9", "Shop.job-1_2", "x" * 200])
def test_names_may_be_of_files(tmp_path: Path, name: str) -> None:
    assert Lake.at(tmp_path).job(name) == f"{tmp_path}/jobs/{name}"


def test_a_result_makes_no_lake(tmp_path: Path) -> None:
    attempt = JobAttempt(Lake.at(tmp_path / "mistyped"), "a")
    attempt.begin()
    with pytest.raises(InvalidRequestError, match="^CAP-LAKE: there is no lake"):
        attempt.end("replay", 0, {}, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"attempt": 7}'])
def test_something_else_is_not_taken_for_a_result(
    attempt: JobAttempt, tmp_path: Path, text: str
) -> None:
    attempt.prepare({})
    (tmp_path / "jobs" / "shop-job-1" / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="^CAP-RESULT: .* is not the result of a job"):
        attempt.outcome()


def test_no_target_lies_among_the_attempts(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-NAME: .*it is part of the lake"):
        Lake.at(tmp_path).target(f"{tmp_path}/jobs/t")


def test_old_attempts_are_deleted(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    assert clear_attempts(lake, datetime.now(UTC), timedelta(days=1)) == []
    for name in ("old", "new", "restarted"):
        JobAttempt(lake, name).prepare({})
    now = datetime.now(UTC)
    before = (now - timedelta(days=2)).timestamp()
    for name in ("old", "restarted"):
        os.utime(tmp_path / "jobs" / name / "request.json", (before, before))
    JobAttempt(lake, "restarted").end("replay", 0, {}, None)
    stray = tmp_path / "jobs" / "README"
    stray.write_text("not ours", encoding="utf-8")
    os.utime(stray, (before, before))
    assert clear_attempts(lake, now, timedelta(days=3)) == []
    assert clear_attempts(lake, now, timedelta(days=1)) == ["old"]
    left = sorted(path.name for path in (tmp_path / "jobs").iterdir())
    assert left == ["README", "new", "restarted"]
