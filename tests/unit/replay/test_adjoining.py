"""Which replays are carried out together, as their requests and ledgers tell."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.core.config import Mode, ProjectConfig
from capstan.core.times import Kind, TimeType
from capstan.replay import adjoining
from capstan.replay.adjoining import _alike, _prepared
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.telemetry.instrumentation import subscribe
from tests.support.jvmless_lake import FIRST, lay_tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capstan.replay.execution.job_set import JobSet

HOUR = 3_600_000_000
DAYS = [f"2024-05-{day:02}" for day in range(1, 7)]
BY_DAY = [Request("s", "copy", since=a, until=b) for a, b in pairwise(DAYS)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake whose stream has records every six hours of five complete days."""
    lake = Lake.at(tmp_path / "lake")
    times = [(FIRST + 6 * n * HOUR,) for n in range(20)]
    lay_tape(lake, "s", "ab", times, (FIRST + 120 * HOUR,))
    return lake


def prepared(lake: Lake, requests: list[Request]) -> JobSet | None:
    config = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
    session: Any = None
    return _prepared(session, lake, config, requests, 0.0)


@contextmanager
def meanwhile_nothing() -> Iterator[None]:
    """Nothing is begun that would have to be given up."""
    points: list[str] = []
    with subscribe(lambda point, _: points.append(point)):
        yield
    assert points == []


def bounds(requests: list[Request]) -> list[tuple[object, object]]:
    return [(request.since, request.until) for request in requests]


def test_adjoining_requests_are_alike_in_either_order() -> None:
    assert _alike(BY_DAY) == BY_DAY
    assert _alike(BY_DAY[::-1]) == BY_DAY[::-1]
    assert _alike(BY_DAY[:1]) == BY_DAY[:1]
    assert _alike([*BY_DAY[:2], *BY_DAY[3:]]) == BY_DAY[:2]
    assert _alike([BY_DAY[0], BY_DAY[2], BY_DAY[1]]) == BY_DAY[:1]
    assert _alike([*BY_DAY[:3], BY_DAY[2]]) == BY_DAY[:3]


@pytest.mark.parametrize(
    "other",
    [{"workers": ("a",)}, {"into": "other"}, {"mode": Mode.APPEND}, {"as_of": 0}, {"adopt": True}],
    ids=str,
)
def test_requests_that_differ_are_not_alike(other: dict[str, Any]) -> None:
    requests = [*BY_DAY[:2], *(replace(request, **other) for request in BY_DAY[2:])]
    assert _alike(requests) == BY_DAY[:2]


@pytest.mark.parametrize("turned", [False, True])
def test_each_range_gets_its_messages(lake: Lake, turned: bool) -> None:
    jobs = prepared(lake, BY_DAY[::-1] if turned else BY_DAY)
    assert jobs is not None
    assert bounds([job.plan.request for job in jobs.jobs]) == bounds(BY_DAY)
    assert (jobs.whole.request.since, jobs.whole.request.until) == (DAYS[0], DAYS[-1])
    assert [len(events) for events in jobs.events] == [8] * 5
    assert all(
        job.plan.region.contains(event.time)
        for job, events in zip(jobs.jobs, jobs.events, strict=True)
        for event in events
    )
    assert jobs.newest_first is turned
    assert len({job.plan.identity for job in jobs.jobs}) == len(set(jobs.names)) == 5


def test_each_plan_is_that_of_its_request_alone(lake: Lake) -> None:
    jobs = prepared(lake, BY_DAY)
    assert jobs is not None
    config = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
    for job, request in zip(jobs.jobs, BY_DAY, strict=True):
        plan = adjoining.make_plan(lake, config, request)
        assert (job.plan, job.plan.identity) == (plan, plan.identity)
        assert job.run == runs.name_run(lake, plan.identity, 1, plan.target)


@pytest.mark.parametrize(
    "other",
    [
        {"hold": True},
        {"approve": True},
        {"mode": Mode.MERGE, "keys": ("id",)},
        {"transform": "t"},
        {"pipeline": "p"},
    ],
    ids=str,
)
def test_what_is_no_plain_copy_is_left(lake: Lake, other: dict[str, Any]) -> None:
    config = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
    session: Any = None
    requests = [replace(request, **other) for request in BY_DAY]
    with meanwhile_nothing():
        assert adjoining.replay_together(session, lake, config, requests) == []


def test_messages_under_several_times_are_in_the_run_of_the_least(lake: Lake) -> None:
    times = [(FIRST + 6 * n * HOUR,) for n in range(20)]
    stamps = [times[3:6], times[2:4], [times[8]] * 2, []]
    lay_tape(lake, "stamped", "ab", times, (FIRST + 120 * HOUR,), stamps=stamps)
    jobs = prepared(lake, [replace(request, stream="stamped") for request in BY_DAY])
    assert jobs is not None
    assert [len(events) for events in jobs.events] == [12, 8, 10, 8, 8]


def test_messages_under_times_of_several_coordinates_are_left(lake: Lake) -> None:
    grid = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)
    times = [(0, FIRST + 6 * n * HOUR) for n in range(20)]
    ends = (0, FIRST + 120 * HOUR)
    for stream, stamps in (("plain", []), ("stamped", [times[:2]])):
        lay_tape(lake, stream, "ab", times, ends, time_type=grid, stamps=stamps)
        jobs = prepared(lake, [replace(request, stream=stream) for request in BY_DAY])
        assert (jobs is None) == (stream == "stamped")


def test_what_has_begun_is_left_and_all_after_it(lake: Lake) -> None:
    jobs = prepared(lake, BY_DAY)
    assert jobs is not None
    third = jobs.jobs[2]
    third.at(1).write(Step.FAILED, {"error": "CAP-X"})
    before = prepared(lake, BY_DAY)
    assert before is not None
    assert before.names == jobs.names[:2]
    assert prepared(lake, BY_DAY[1:3]) is None
    assert prepared(lake, BY_DAY[2:]) is None


def test_where_somebody_claims_or_has_claimed_nothing_is_done_together(lake: Lake) -> None:
    jobs = prepared(lake, BY_DAY)
    assert jobs is not None
    second = jobs.jobs[1]
    attempt = claims.claim(lake, second.run, "s", second.plan.locks)
    assert prepared(lake, BY_DAY) is None
    assert prepared(lake, BY_DAY[2:]) is not None
    claims.release(lake, second.run.name, attempt)
    assert prepared(lake, BY_DAY) is None
    # Nor where a run of another request does.
    assert prepared(lake, BY_DAY[2:]) is not None
    claims.claim(lake, RunId("f" * 32, 1, "copy"), "s", jobs.jobs[3].plan.locks)
    assert prepared(lake, BY_DAY[2:]) is None


@pytest.mark.parametrize(("most", "count"), [(40, 5), (39, 2), (15, None)])
def test_a_set_has_no_more_cells_than_an_audit_compares_here(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most: int, count: int | None
) -> None:
    monkeypatch.setattr(adjoining, "MAX_CELLS", most)
    jobs = prepared(lake, BY_DAY)
    assert (None if jobs is None else len(jobs.jobs)) == count


def test_a_set_has_no_more_records_than_a_kill_may_cost(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjoining, "_MOST_RECORDS", 16)
    jobs = prepared(lake, BY_DAY)
    assert jobs is not None
    assert len(jobs.jobs) == 2
