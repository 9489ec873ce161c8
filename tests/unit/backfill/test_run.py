"""Runs of a backfill and its job, with a fake replay and no session."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from datetime import time as clock_time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from capstan.backfill import hold
from capstan.backfill import run as running
from capstan.backfill.pauses import set_paused
from capstan.backfill.planner import BackfillRequest
from capstan.backfill.run import BackfillResult
from capstan.core.config import BackfillPolicy, Order, ProjectConfig, Replay
from capstan.core.config.durations import Hours, Rate
from capstan.errors import IncompleteError, RangeLockedError
from capstan.jobs import handlers
from capstan.jobs.main import main
from capstan.replay.result import ReplayResult
from capstan.storage.lake import Lake
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.made_by import MadeBy, making
from capstan.telemetry.instrumentation import subscribe
from tests.support.contexts import backfill
from tests.support.jvmless_lake import FIRST, lay_tape

if TYPE_CHECKING:
    from collections.abc import Callable

    from capstan.replay.planning.request import Request

HOUR = 3_600_000_000
START, END = datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 5, tzinfo=UTC)
HELD = RangeLockedError("CAP-HELD", "run x holds it", "wait")
STREAMS = """
streams:
  s:
    source: {format: parquet, path: "{lake}/source", schema: "place STRING, at TIMESTAMP"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour}
replays:
  copy: {stream: s, target: copy, since: 2024-05-01, until: 2024-05-05}
  added: {stream: s, target: added, since: 2024-05-01, until: 2024-05-05, mode: append}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake whose stream has four complete days."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "ab", [(FIRST,)], (FIRST + 96 * HOUR,))
    (tmp_path / "streams.yaml").write_text(STREAMS, encoding="utf-8")
    return lake


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The outcomes of replays, in order; later ones publish."""
    waiting: list[object] = []

    def fake(_s: object, _l: Lake, _d: ProjectConfig, request: Request) -> ReplayResult:
        answer = waiting.pop(0) if waiting else "published"
        if isinstance(answer, BaseException):
            raise answer
        unchanged = answer == "unchanged"
        published = {"run": f"r-{str(request.since)[8:10]}", "published": True, "records": 25}
        published.update(answer if isinstance(answer, dict) else {})
        return ReplayResult(Certificate.from_json(published), unchanged=unchanged)

    monkeypatch.setattr(running, "replay", fake)
    monkeypatch.setattr(running, "replay_together", lambda *_: [])
    return waiting


def fill(lake: Lake, policy: BackfillPolicy | None = None, **asked: object) -> BackfillResult:
    replay = Replay(
        name="copy", stream="s", target="copy", since=START, until=END,
        backfill=policy or BackfillPolicy(),
    )  # fmt: skip
    declared = ProjectConfig(Path("x.yaml"), {}, {}, {}, {"copy": replay})
    request = BackfillRequest("copy", **{"chunk": 1, **asked})  # type: ignore[arg-type]
    return backfill(None, lake, declared, request)  # type: ignore[arg-type]


def summed(found: BackfillResult) -> tuple[object, ...]:
    value = found.to_json()
    return tuple(value[name] for name in ("done", "unchanged", "failed", "left"))


def test_each_chunk_is_a_run_and_reports_its_end(lake: Lake, answers: list[object]) -> None:
    answers += ["published", "unchanged"]
    seen: list[object] = []
    with subscribe(lambda point, facts: seen.append((point, facts["number"], facts["of"]))):
        actual = fill(lake)
    assert summed(actual) == (3, 1, 0, 0)
    assert seen == [("backfill.run", n, 4) for n in (1, 2, 3, 4)]
    runs = actual.to_json()["runs"]
    assert [run["run"] for run in runs] == ["r-01", "r-02", "r-03", "r-04"]  # type: ignore[attr-defined]
    assert actual.error is None


def test_what_is_left_of_runs_together_is_run_one_by_one(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def together(_s: object, _l: Lake, _d: ProjectConfig, requests: Any) -> list[ReplayResult]:
        asked.append(len(requests))
        published = [Certificate.from_json({"run": f"t-{str(requests[0].since)[8:10]}"})]
        return [ReplayResult(published[0])] * (2 if len(asked) == 1 else 0)

    monkeypatch.setattr(running, "replay_together", together)
    answers += [HELD]
    actual = fill(lake, keep_going=True)
    assert asked == [4, 2, 1]
    runs = [(run["run"], run.get("error")) for run in actual.to_json()["runs"]]  # type: ignore[attr-defined]
    assert runs == [("t-01", None), ("t-01", None), (None, "CAP-HELD"), ("r-04", None)]


def test_a_failure_ends_the_backfill_and_reports_completed_runs(
    lake: Lake, answers: list[object]
) -> None:
    answers += ["published", HELD]
    actual = fill(lake)
    assert summed(actual) == (1, 0, 1, 2)
    assert actual.error is HELD
    reported = [(run["run"], run.get("error")) for run in actual.to_json()["runs"]]  # type: ignore[attr-defined]
    assert reported == [("r-01", None), (None, "CAP-HELD"), (None, None), (None, None)]


def test_keep_going_continues_and_reports_the_first_error(
    lake: Lake, answers: list[object]
) -> None:
    answers += [HELD, RuntimeError("the disk\nis full")]
    actual = fill(lake, keep_going=True)
    assert summed(actual) == (2, 0, 2, 0)
    assert actual.error is HELD
    second = actual.results[1].error
    assert second is not None
    assert (str(second), second.exit_code) == ("CAP-BROKEN: RuntimeError: the disk", 5)


def test_an_interrupt_is_not_a_failed_run(lake: Lake, answers: list[object]) -> None:
    answers += ["published", KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        fill(lake, keep_going=True)


def test_a_pause_ends_a_backfill_after_its_run_and_refuses_others(
    lake: Lake, answers: list[object]
) -> None:
    def pause(_: str, facts: dict[str, Any]) -> None:
        if facts.get("number") == 2:
            set_paused(lake, "copy", paused=True, because="a move")

    answers += [HELD]
    with subscribe(pause), making(MadeBy(user="ada")):
        actual = fill(lake, keep_going=True)
    # A run that has failed is tried again, too, once they go on.
    assert summed(actual) == (1, 0, 1, 2)
    assert actual.error is actual.held
    with pytest.raises(IncompleteError, match="paused by ada since 20.* UTC: a move$") as refused:
        fill(lake)
    assert (refused.value.code, refused.value.exit_code) == ("CAP-PAUSED", 3)
    assert refused.value.hint.startswith("`capstan backfill copy --resume` ")
    listed = fill(lake, dry_run=True)
    assert (summed(listed), listed.error) == ((0, 0, 0, 4), None)
    assert listed.to_json()["held"] == refused.value.message
    assert set_paused(lake, "copy", paused=False)
    assert summed(fill(lake)) == (4, 0, 0, 0)


def test_a_dry_run_runs_nothing(lake: Lake, answers: list[object]) -> None:
    answers += [AssertionError("was run")]
    assert summed(fill(lake, dry_run=True)) == (0, 0, 0, 4)


class Session:
    """Stands for a Spark session."""

    def __init__(self) -> None:
        self.started = 0

    def __call__(self, _: str) -> Any:
        self.started += 1
        return self

    def stop(self) -> None:
        """Stop nothing."""


@pytest.fixture
def job(lake: Lake, tmp_path: Path) -> Any:
    """Runs the job on a request: its exit code, its result, and how many sessions it took."""

    def run(request: object) -> tuple[int, dict[str, Any], int]:
        session, result = Session(), tmp_path / "result.json"
        code = main(
            handlers.backfill,
            [
                "--request", json.dumps(request), "--lake", lake.root,
                "--config", str(tmp_path / "streams.yaml"), "--result", str(result),
            ],
            session,
        )  # fmt: skip
        return code, json.loads(result.read_text(encoding="utf-8")), session.started

    return run


def test_a_policy_says_what_a_request_does_not(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = BackfillPolicy(chunk=3, order=Order.NEWEST, at_most=1)

    def bounds(**asked: object) -> list[tuple[str, str]]:
        replays = fill(lake, policy, dry_run=True, **asked).replays
        return [(str(each.since)[8:10], str(each.until)[8:10]) for each in replays]

    assert bounds(chunk=None) == [("02", "05"), ("01", "02")]
    assert bounds(chunk=None, order=Order.OLDEST) == [("01", "04"), ("04", "05")]
    assert bounds(chunk=2) == [("03", "05"), ("01", "03")]
    asked: list[int] = []

    def together(*given: Any) -> list[ReplayResult]:
        asked.append(len(given[3]))
        return []

    monkeypatch.setattr(running, "replay_together", together)
    value = fill(lake, policy, chunk=1).to_json()
    assert (asked, value["at_most"], value["chunk"], value["order"]) == ([1] * 4, 1, 1, "newest")


class Clock:
    """A clock that sleeping moves: how long it slept at which times, and what happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0.0
        self.slept: list[tuple[float, float]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        for module in (hold, running):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append((self.at, seconds))
        self.at += seconds
        self.meanwhile()


def test_the_next_run_waits_until_the_rate_is_kept(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(monkeypatch), list[object]()

    def listen(point: str, facts: dict[str, Any]) -> None:
        clock.at += 4 if point == "backfill.run" else 0  # As long as a run takes.
        told.extend([facts["seconds"]] if point == "backfill.waits" else [])

    # Of what stands no row is read, and of the failed one nothing is known.
    answers += ["published", "unchanged", HELD]
    policy = BackfillPolicy(rate=Rate(60, "rows", "minute"))
    with subscribe(listen):
        assert summed(fill(lake, policy, keep_going=True)) == (2, 1, 1, 0)
    assert (told, clock.slept) == ([21], [(4.0, 10.0), (14.0, 10.0), (24.0, 1.0)])
    clock.slept.clear()
    clock.meanwhile = lambda: set_paused(lake, "copy", paused=True)
    assert summed(fill(lake, policy)) == (1, 0, 0, 3)
    assert len(clock.slept) == 1


def test_a_rate_in_bytes_is_of_the_files_that_runs_have_written(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, table = Clock(monkeypatch), str(tmp_path / "table")
    write_deltalake(table, pa.table({"x": [0]}))
    write_deltalake(table, pa.table({"x": range(1000)}), mode="overwrite")
    new = [file.stat().st_size for file in Path(table).glob("*.parquet")]
    [written] = set(new) - {min(new)}
    # What is published without a change has written nothing, and a commit may remove alone.
    answers += [{"target_path": table, "target_version": 1}, {"target_version": None}]
    policy = BackfillPolicy(rate=Rate(1, "kB", "second"))
    fill(lake, policy)
    assert clock.at == pytest.approx(written / 1000)
    # Of one whose commit cannot be read the others wait; those before it and it are reported.
    unread = {"target_path": table, "target_version": 2}
    answers += [{"target_version": None}, unread]
    actual = fill(lake, policy)
    assert (summed(actual), actual.error) == ((2, 0, 0, 2), actual.held)
    assert actual.held is not None
    # Nothing waits for the last one.
    answers += [unread]
    assert (summed(last := fill(lake, policy, chunk=4)), last.error) == ((1, 0, 0, 0), None)


def test_runs_are_reported_when_the_pause_cannot_be_read(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = [None, OSError("the lake is gone")]

    def look(*_: object) -> None:
        found = looks.pop(0)
        if isinstance(found, OSError):
            raise found

    monkeypatch.setattr(running, "wait_until", look)
    actual = fill(lake, keep_going=True)
    assert (summed(actual), str(actual.error)) == (
        (1, 0, 0, 3),
        "CAP-BROKEN: OSError: the lake is gone",
    )


def test_no_run_begins_outside_of_the_hours(
    lake: Lake, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [datetime(2024, 5, 1, hour, tzinfo=UTC) for hour in (22, 23, 5, 6, 7)]
    monkeypatch.setattr(hold, "now", lambda: moments.pop(0))
    policy = BackfillPolicy(hours=Hours(clock_time(22), clock_time(6)))
    actual = fill(lake, policy)
    assert summed(actual) == (2, 0, 0, 2)
    assert actual.held is not None
    said = "runs of replay copy's backfills begin at 22:00-06:00 UTC only, next at 2024-05-01 22:00"
    assert (str(actual.held), actual.held.exit_code) == (f"CAP-HOURS: {said} UTC", 3)
    with pytest.raises(IncompleteError, match="^CAP-HOURS: "):
        fill(lake, policy)


def test_the_job_starts_no_spark_for_what_is_paused(
    job: Any, lake: Lake, answers: list[object]
) -> None:
    set_paused(lake, "copy", paused=True)
    code, result, sessions = job({"replay": "copy"})
    assert (code, result["error"], sessions) == (3, "CAP-PAUSED", 0)
    # The others do not wait for it.
    code, result, _ = job({"backfills": [{"replay": "copy"}, {"replay": "added"}]})
    assert (code, result["error"], result["backfills"][1]["done"]) == (3, "CAP-PAUSED", 1)


def test_the_job_runs_one_backfill(job: Any, answers: list[object]) -> None:
    code, result, _ = job({"replay": "copy", "chunk": 2})
    assert (code, result["done"], result["left"]) == (0, 2, 0)
    answers += [HELD]
    code, result, _ = job({"replay": "copy", "chunk": 2, "order": "newest"})
    assert (code, result["error"], result["left"]) == (4, "CAP-HELD", 1)


def test_the_job_continues_after_a_failed_backfill(job: Any, answers: list[object]) -> None:
    answers += ["published", HELD]
    several = [
        {"replay": "copy"},
        {"replay": "copy"},
        {"replay": "added", "what": "all"},
        {"replay": "copy", "what": "stale"},
    ]
    code, result, _ = job({"backfills": several})
    assert (code, result["error"]) == (4, "CAP-HELD")
    reported = [(item.get("done"), item.get("error")) for item in result["backfills"]]
    assert reported == [(1, None), (0, "CAP-HELD"), (None, "CAP-APPEND"), (0, None)]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, "CAP-REQUEST"),
        ({"replay": "copies"}, "CAP-REPLAY"),
        ({"replay": "copy", "what": "everything"}, "CAP-REQUEST"),
        ({"replay": "copy", "chunks": 3}, "CAP-REQUEST"),
        ({"replay": "copy", "chunk": 0}, "CAP-CHUNK"),
        ({"replay": "added", "what": "all"}, "CAP-APPEND"),
        ({"backfills": [{"replay": "../copy"}]}, "CAP-NAME"),
        ({"backfills": ["copy"]}, "CAP-REQUEST"),
        ({"backfills": "copy"}, "CAP-REQUEST"),
    ],
)
def test_the_job_refuses_without_spark(job: Any, request_: object, code: str) -> None:
    ended, result, sessions = job(request_)
    assert (ended, result["error"], sessions) == (2, code, 0)
